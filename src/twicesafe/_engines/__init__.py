"""Our own stores, one package per engine: sqlite, postgresql, mysql, redis; `sql` is what the SQL ones share.

Stores are opened by URL (`twicesafe.stores.open_store`). To write a store of your own, start from
`twicesafe.stores`; its smallest example is `twicesafe.stores.memory`.
"""
