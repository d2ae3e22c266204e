"""MongoDB: one document per key, one conditional write per decision, acknowledged by a majority.

    mongodb://user:password@host1:27017,host2,host3/database?replicaSet=rs0        mongodb+srv:// too
    ?collection=twicesafe&skew=5&timeout=5&pool=50&migrate=false
    all other options go to the driver (tls, authSource, replicaSet …)

    settings          the URL                            collection      creates and checks the index
    documents         records as documents               client          PyMongo
    programs          the requests about one record      store           threads
    sweep_and_search  the requests about many records    async_store     event loops (AsyncMongoClient)
                                                         error_messages  what an error means

Every write waits until a majority of the members have it in their journals. The conditions of a write compare
versions, never times. docs/decisions/0029-mongodb.md says why, and what was not tried.
"""

from typing import Any

from .store import MongodbStore

__all__ = ["AsyncMongodbStore", "MongodbStore"]


def __getattr__(name: str) -> Any:
    if name == "AsyncMongodbStore":
        from .async_store import AsyncMongodbStore

        return AsyncMongodbStore
    raise AttributeError(name)
