"""MongoDB: one document per key, one conditional write per decision, acknowledged by a majority.

    mongodb://user:password@host1:27017,host2,host3/database?replicaSet=rs0        mongodb+srv:// too
    ?collection=twicesafe&skew=5&timeout=5&pool=50&migrate=false
    all other options go to the driver (tls, authSource, replicaSet …)

    settings         the URL                             collection       creates and checks the index
    documents        records as documents                client           PyMongo
    programs         the requests, as `versioned` asks   store            threads
    searches         sweep, browse, survey, audit log    async_store      event loops (AsyncMongoClient)
                                                         error_messages   what an error means

Every write waits for a majority of the members and their journals. No decision uses a clock in the server's conditions:
docs/decisions/0029-mongodb.md says why, and what was not tried.
"""

from typing import Any

from .store import MongodbStore

__all__ = ["AsyncMongodbStore", "MongodbStore"]


def __getattr__(name: str) -> Any:
    if name == "AsyncMongodbStore":
        from .async_store import AsyncMongodbStore

        return AsyncMongodbStore
    raise AttributeError(name)
