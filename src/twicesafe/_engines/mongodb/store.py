"""The blocking MongoDB store: one client of PyMongo for all threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final, Self

from ..._core.driving import drive
from ..._core.protocol import Request
from ..._values.drivers import require
from ...stores._base import Capabilities
from ..versioned.stores import EnginePrograms, VersionedStore
from .client import Places, checked, connected, is_cursor, places_of, refused
from .collection import ask_time, examine, is_replicated, migrate, prepare
from .documents import DriverCall
from .programs import MongodbPrograms
from .settings import Settings

__all__ = ["CAPABILITIES", "ENGINE", "UNTRIED", "MongodbStore", "result_of"]

CAPABILITIES = Capabilities(server_clock=False, native_expiry=True, copies=True)

UNTRIED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "native_expiry": "the server of the tests has no TTL index",
        "MongoDB itself": "the tests run on FerretDB 1.24 with one command at a time",
        "replica sets and sharded clusters": "majority writes, linearizable reads, failover and "
        "retryable writes",
    }
)

ENGINE: Final = EnginePrograms(MongodbPrograms, prepare, migrate, examine)


class MongodbStore(VersionedStore):
    """The blocking store, for threads."""

    capabilities: ClassVar[Capabilities] = CAPABILITIES
    untried: ClassVar[Mapping[str, str]] = UNTRIED
    engine: ClassVar[EnginePrograms] = ENGINE
    _places: Places | None

    @classmethod
    def open(cls, url: str) -> Self:
        require("pymongo", extra="mongodb")
        return cls(checked(Settings.of(url)))

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        return drive(self.programs.perform_many(requests), self._execute)

    def close(self) -> None:
        with self._lock.now:
            places, self._places = self._places, None
        if places is not None:
            places.client.close()

    # -- calls ----------------------------------------------------------------------------------

    def _execute(self, call: DriverCall) -> Any:
        places, tap = self._places or self._connect(), self._tap
        if tap is not None:
            tap("before", call)
        reply = self._send(places, call)
        if tap is not None:
            tap("after", call)
        return reply

    def _send(self, places: Places, call: DriverCall) -> Any:
        try:
            reply = places.begin(call)
            return list(reply) if is_cursor(call) else result_of(reply, call)
        except Exception as error:
            return refused(error, call, self.settings)

    def _connect(self) -> Places:
        from pymongo import MongoClient

        with self._lock.now:
            if self._places is None:
                client: Any = connected(MongoClient, self.settings, retries=True)
                try:
                    replicated = self._is_replicated(client)
                except BaseException:
                    client.close()
                    raise
                if not replicated:
                    client.close()
                    client = connected(MongoClient, self.settings, retries=False)
                self._places = places_of(client, self.settings, replicated)
            return self._places

    def _is_replicated(self, client: Any) -> bool:
        """Ask the server what it is, and its time."""
        first = places_of(client, self.settings, replicated=False)
        return is_replicated(
            drive(ask_time(self.leases.clock), lambda call: self._send(first, call))
        )

    def _forget_connections(self) -> None:
        self._places = None


def result_of(reply: Any, call: DriverCall) -> Any:
    return reply.bulk_api_result if call.operation == "bulk_write" else reply
