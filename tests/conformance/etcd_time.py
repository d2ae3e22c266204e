"""An etcd store whose time the test moves: leases end when the test says so, on a real server.

etcd ends a lease by revoking it, and that is what `advance` does. So everything but the waiting is real; what really
waits is in tests/stores/test_etcd_time.py.
"""

from __future__ import annotations

from typing import Any

import grpc

from tests.servers import shared
from twicesafe._engines.etcd.async_store import AsyncEtcdStore
from twicesafe._engines.etcd.leases import Leases
from twicesafe._engines.etcd.messages import message
from twicesafe._engines.etcd.programs import EtcdPrograms
from twicesafe._engines.etcd.settings import Settings
from twicesafe._engines.etcd.store import EtcdStore, Parts, stubs
from twicesafe.testing import Place, StoreUnderTest

_ends: dict[str, dict[int, float]] = {}
"""When the leases of a place end, in milliseconds of its clock."""


class MovedLeases(Leases):
    """Leases of the place's time. etcd itself keeps them for an hour longer."""

    def __init__(self, place: Place) -> None:
        super().__init__(lambda: place.clock() / 1000, slack=0)
        self._all = _ends.setdefault(place.name, {})

    def seconds(self, ms: int) -> int:
        return super().seconds(ms) + 3600

    def add(self, lease: int, asked: float, ms: int, seconds: int) -> None:
        self._all[lease] = asked + ms
        self._keep(lease, asked + ms)


class MovedPrograms(EtcdPrograms):
    def __init__(self, prefix: str, place: Place) -> None:
        super().__init__(prefix, MovedLeases(place), place.clock)
        self._place = place

    def remaining(self, lease: int) -> Any:
        yield from super().remaining(lease)
        now = self._place.clock()
        return int(_ends[self._place.name].get(lease, now) - now)


class Etcd(StoreUnderTest):
    def parts(self, place: Place) -> Parts:
        parts = Parts(Settings.of(f"{shared('etcd').url}/{place.name}?timeout=120"))
        parts.programs = MovedPrograms(place.name, place)
        return parts

    def open_store(self, place: Place) -> EtcdStore:
        return EtcdStore(self.parts(place))

    def open_async_store(self, place: Place) -> AsyncEtcdStore:
        return AsyncEtcdStore(self.parts(place))

    def advance(self, place: Place, ms: int) -> None:
        super().advance(place, ms)
        ends = _ends.get(place.name, {})
        due = [lease for lease, end in ends.items() if end <= place.clock()]
        for lease in due:
            calls()["LeaseRevoke"](message("LeaseRevokeRequest")(ID=lease), timeout=120)
            del ends[lease]

    def corrupt(self, place: Place, id: bytes) -> None:  # noqa: A002
        key = f"{place.name}/r/{id[:16].hex()}".encode()
        put = {"request_put": {"key": key, "value": b"\x01\xc1"}}
        calls()["Txn"](message("TxnRequest")(success=[put]), timeout=120)

    def refuse(self, place: Place) -> bytes:
        return b"R" * 1_600_000  # the limit is 1.5 MiB

    def tidy(self, place: Place) -> None:
        _ends.pop(place.name, None)
        everything = message("DeleteRangeRequest")(
            key=f"{place.name}/".encode(), range_end=f"{place.name}0".encode()
        )
        calls()["DeleteRange"](everything, timeout=120)


_calls: dict[str, Any] = {}


def calls() -> dict[str, Any]:
    """etcd's API, on the shared server."""
    if not _calls:
        _calls.update(stubs(grpc.insecure_channel(f"127.0.0.1:{shared('etcd').port}")))
    return _calls
