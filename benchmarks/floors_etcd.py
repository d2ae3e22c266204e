"""The floor on etcd: one transaction per phase, sent by grpcio as anybody would.

The record is one key: state, owner, result. A second key, kept by an etcd lease, says that the claim lasts. One
lease for all claims and one for all results are granted in the beginning: the floor pays for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from .floors import BusyError, LostError
from .floors_redis import LEASE, RETENTION, new_owner

RUNNING, DONE = b"r", b"d"


def _names(key: str) -> tuple[bytes, bytes]:
    return f"floor/r/{key}".encode(), f"floor/l/{key}".encode()


def _claim(key: str, owner: bytes, lease: int, revision: int = 0) -> Any:
    """Of a key that is new, or whose record still has this revision."""
    from twicesafe._engines.etcd.messages import message

    record, alive = _names(key)
    same: dict[str, Any] = {"target": 2, "key": record, "mod_revision": revision}
    absent: dict[str, Any] = {"target": 1, "key": alive, "create_revision": 0}
    return message("TxnRequest")(
        compare=[same, absent],
        success=[
            {"request_put": {"key": record, "value": RUNNING + owner}},
            {"request_put": {"key": alive, "lease": lease}},
        ],
        failure=[{"request_range": {"key": record}}, {"request_range": {"key": alive}}],
    )


def _complete(key: str, owner: bytes, fence: int, payload: bytes, lease: int) -> Any:
    from twicesafe._engines.etcd.messages import message

    record, alive = _names(key)
    return message("TxnRequest")(
        compare=[{"target": 2, "key": record, "mod_revision": fence}],
        success=[
            {"request_put": {"key": record, "value": DONE + owner + payload, "lease": lease}},
            {"request_delete_range": {"key": alive}},
        ],
    )


def _answer(reply: Any, owner: bytes) -> tuple[bytes, int, bytes | None] | int:
    """What the caller gets; or the revision of a record whose claim is over."""
    if reply.succeeded:
        return owner, reply.header.revision, None
    [kv] = reply.responses[0].response_range.kvs
    if kv.value[:1] == DONE:
        return b"", 0, kv.value[17:]
    if reply.responses[1].response_range.kvs:
        raise BusyError
    return int(kv.mod_revision)


def _lease_requests() -> list[Any]:
    from twicesafe._engines.etcd.messages import message

    grant = message("LeaseGrantRequest")
    return [grant(TTL=10 * LEASE // 1000), grant(TTL=RETENTION // 1000)]


class EtcdFloor:
    def __init__(self, url: str) -> None:
        import grpc

        from twicesafe._engines.etcd.store import stubs

        self._channel = grpc.insecure_channel(urlsplit(url).netloc)
        calls = stubs(self._channel)
        self._txn = calls["Txn"]
        self._lease, self._retention = (calls["LeaseGrant"](one).ID for one in _lease_requests())

    def claim(self, key: str) -> tuple[bytes, int, bytes | None]:
        owner = new_owner()
        answer = _answer(self._txn(_claim(key, owner, self._lease)), owner)
        while isinstance(answer, int):
            answer = _answer(self._txn(_claim(key, owner, self._lease, answer)), owner)
        return answer

    def complete(self, key: str, owner: bytes, fence: int, payload: bytes) -> None:
        if not self._txn(_complete(key, owner, fence, payload, self._retention)).succeeded:
            raise LostError

    def batch(self, keys: Sequence[str], payloads: Sequence[bytes]) -> None:
        """All of them new: claimed at once on one connection, then completed at once."""
        owners = [new_owner() for _ in keys]
        claims = [
            self._txn.future(_claim(key, owner, self._lease))
            for key, owner in zip(keys, owners, strict=True)
        ]
        fences = [claim.result().header.revision for claim in claims]
        ends = [
            self._txn.future(_complete(*each, self._retention))
            for each in zip(keys, owners, fences, payloads, strict=True)
        ]
        if not all(end.result().succeeded for end in ends):
            raise LostError

    def close(self) -> None:
        self._channel.close()


class AsyncEtcdFloor:
    """Call by call: each of many tasks sends its own transaction, on one connection."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._channel: Any = None

    async def _connect(self) -> None:
        import grpc.aio

        from twicesafe._engines.etcd.store import stubs

        channel = grpc.aio.insecure_channel(urlsplit(self._url).netloc)
        calls = stubs(channel)
        self._txn = calls["Txn"]
        self._lease, self._retention = [
            (await calls["LeaseGrant"](one)).ID for one in _lease_requests()
        ]
        self._channel = channel

    async def claim(self, key: str) -> tuple[bytes, int, bytes | None]:
        if self._channel is None:
            await self._connect()
        owner = new_owner()
        answer = _answer(await self._txn(_claim(key, owner, self._lease)), owner)
        while isinstance(answer, int):
            answer = _answer(await self._txn(_claim(key, owner, self._lease, answer)), owner)
        return answer

    async def complete(self, key: str, owner: bytes, fence: int, payload: bytes) -> None:
        reply = await self._txn(_complete(key, owner, fence, payload, self._retention))
        if not reply.succeeded:
            raise LostError

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
