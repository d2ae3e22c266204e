"""The built-in stores, one package per engine: sqlite, postgresql, mysql, redis, dynamodb. `sql` is shared by the SQL ones.

Stores are opened by URL (`twicesafe.stores.open_store`). To write your own store, start from
`twicesafe.stores`; its smallest example is `twicesafe.stores.memory`.
"""
