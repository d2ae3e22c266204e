"""DynamoDB: one item per key, one conditional write per decision.

    dynamodb://table?region=eu-central-1       credentials are those that boto3 finds
    ?endpoint=http://127.0.0.1:8000            an emulator
    ?skew=5&timeout=5&pool=50&migrate=false …

    settings          the URL                            table           creates and checks the table
    items             records as items                   client          boto3
    programs          the requests about one record      store           threads
    sweep_and_search  the requests about many records    async_store     event loops (aiobotocore)
                                                         error_messages  what an error means

A refused write returns the item that is there, so `_core.lifecycle` decides here, in the worker. Every
write names the version that it is based on. docs/decisions/0027-dynamodb.md says why this is safe.
"""

from typing import Any

from .store import DynamodbStore

__all__ = ["AsyncDynamodbStore", "DynamodbStore"]


def __getattr__(name: str) -> Any:
    if name == "AsyncDynamodbStore":
        from .async_store import AsyncDynamodbStore

        return AsyncDynamodbStore
    raise AttributeError(name)
