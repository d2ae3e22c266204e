"""The built-in stores, one package per engine. `sql` is shared by the SQL ones, `versioned` by DynamoDB and MongoDB.

Stores are opened by URL (`twicesafe.stores.open_store`). To write your own store, start from
`twicesafe.stores`; its smallest example is `twicesafe.stores.memory`.
"""
