"""The floor on MongoDB: one findAndModify, one conditional update, by PyMongo as anybody would.

The document has state, fence, end, owner and result. Time is the worker's: the server of the run has none to compare.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

from .floors import BusyError, LostError

LEASE, RETENTION = 30_000, 86_400_000
_owners = itertools.count(1)


def _now() -> int:
    return time.time_ns() // 1_000_000


def _collection(client: Any) -> Any:
    from pymongo.write_concern import WriteConcern

    majority = WriteConcern(w="majority", j=True)
    return client["twicesafe"].get_collection("floor", write_concern=majority)


def _claimed(owner: bytes, fence: int) -> dict[str, Any]:
    return {"state": 0, "fence": fence, "until": _now() + LEASE, "owner": owner}


def claiming(key: str, owner: bytes) -> tuple[Any, Any]:
    return {"_id": key}, {"$setOnInsert": _claimed(owner, 1)}


def taking_over(key: str, owner: bytes, fence: int) -> tuple[Any, Any]:
    return {"_id": key, "fence": fence}, {"$set": _claimed(owner, fence + 1)}


def completing(key: str, owner: bytes, fence: int, payload: bytes) -> tuple[Any, Any]:
    return (
        {"_id": key, "owner": owner, "fence": fence, "state": 0},
        {"$set": {"state": 1, "until": _now() + RETENTION, "result": payload}},
    )


def found_in(document: dict[str, Any]) -> bytes | None:
    """The result of a key that is done; None: the lease or the retention is over."""
    if document["until"] > _now():
        if document["state"] == 1:
            return bytes(document["result"])
        raise BusyError
    return None


def new_owner() -> bytes:
    return b"0123456789" + next(_owners).to_bytes(6, "big")


class MongodbFloor:
    def __init__(self, url: str) -> None:
        from pymongo import MongoClient

        self._client: Any = MongoClient(url.partition("?")[0], timeoutMS=30_000)
        self._keys = _collection(self._client)

    def claim(self, key: str) -> tuple[bytes, int, bytes | None]:
        owner = new_owner()
        found = self._keys.find_one_and_update(*claiming(key, owner), upsert=True)
        if found is None:
            return owner, 1, None
        result, fence = found_in(found), found["fence"]
        if result is not None:
            return b"", fence, result
        if not self._keys.update_one(*taking_over(key, owner, fence)).matched_count:
            raise BusyError
        return owner, fence + 1, None

    def complete(self, key: str, owner: bytes, fence: int, payload: bytes) -> None:
        if not self._keys.update_one(*completing(key, owner, fence, payload)).matched_count:
            raise LostError

    def close(self) -> None:
        self._client.close()


class AsyncMongodbFloor:
    def __init__(self, url: str) -> None:
        self._url = url.partition("?")[0]
        self._client: Any = None

    def _connected(self) -> Any:
        from pymongo import AsyncMongoClient

        self._client = AsyncMongoClient(self._url, timeoutMS=30_000)
        self._keys = _collection(self._client)
        return self._keys

    async def claim(self, key: str) -> tuple[bytes, int, bytes | None]:
        keys = self._keys if self._client is not None else self._connected()
        owner = new_owner()
        found = await keys.find_one_and_update(*claiming(key, owner), upsert=True)
        if found is None:
            return owner, 1, None
        result, fence = found_in(found), found["fence"]
        if result is not None:
            return b"", fence, result
        if not (await keys.update_one(*taking_over(key, owner, fence))).matched_count:
            raise BusyError
        return owner, fence + 1, None

    async def complete(self, key: str, owner: bytes, fence: int, payload: bytes) -> None:
        done = await self._keys.update_one(*completing(key, owner, fence, payload))
        if not done.matched_count:
            raise LostError

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
