"""The blocking DynamoDB store: one client of boto3 for all threads.

A batch is many calls at once, one per request. DynamoDB's own batches would not be cheaper, and none
of them is right here: BatchWriteItem has no conditions, and one bad item of a transaction fails all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, ClassVar, Final, Self, TypeVar

from ..._core.protocol import Request
from ..._values.drivers import require
from ...stores._base import Capabilities
from ..versioned.stores import EnginePrograms, VersionedStore
from .client import arguments, connect, received, refused
from .items import BotoCall
from .programs import SCANS, DynamodbPrograms
from .settings import Settings
from .table import TablePause, examine, migrate, prepare

__all__ = ["CAPABILITIES", "ENGINE", "UNTRIED", "DynamodbStore"]

T = TypeVar("T")
R = TypeVar("R")

CAPABILITIES = Capabilities(server_clock=False, batch=False, native_expiry=True, copies=True)

UNTRIED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "AWS itself": "the tests run on an emulator, and on AWS's own server for one machine",
        "multi-region strong consistency": "no emulator has it",
    }
)

ENGINE: Final = EnginePrograms(DynamodbPrograms, prepare, migrate, examine)


class DynamodbStore(VersionedStore):
    """The blocking store, for threads."""

    capabilities: ClassVar[Capabilities] = CAPABILITIES
    untried: ClassVar[Mapping[str, str]] = UNTRIED
    engine: ClassVar[EnginePrograms] = ENGINE
    _clients: dict[bool, Any]
    """One that repeats calls, and one that does not: by `BotoCall.once`."""
    _threads: ThreadPoolExecutor | None

    @classmethod
    def open(cls, url: str) -> Self:
        require("boto3", extra="dynamodb")
        return cls(Settings.of(url))

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers: list[Any] = [None] * len(requests)
        single = [place for place, ask in enumerate(requests) if ask.op not in SCANS]
        found = self._at_once(lambda place: self._attempt(requests[place]), single)
        for place, answer in zip(single, found, strict=True):
            answers[place] = answer
        for place, ask in enumerate(requests):
            if ask.op in SCANS:
                answers[place] = self._attempt(ask)
        return answers

    def _attempt(self, request: Request) -> Any:
        try:
            return self.perform(request)
        except Exception as error:
            return error

    def close(self) -> None:
        with self._lock.now:
            clients, self._clients = self._clients, {}
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()
        for client in clients.values():
            client.close()

    # -- commands ---------------------------------------------------------------------------------

    def _execute(self, command: Any) -> Any:
        if isinstance(command, BotoCall):
            return self._call(command)
        if isinstance(command, TablePause):
            return time.sleep(command.seconds)
        return self._at_once(self._call, command)

    def _call(self, call: BotoCall) -> Any:
        client = self._clients.get(call.once) or self._connect(call.once)
        settings, clock, tap = self.settings, self.leases.clock, self._tap
        if tap is not None:
            tap("before", call)
        sent = clock.steady()
        try:
            reply = getattr(client, call.operation)(**arguments(settings, call))
        except Exception as error:
            reply = refused(error, settings, clock, sent)
        else:
            reply = received(reply, settings, clock, sent)
        if tap is not None:
            tap("after", call)
        return reply

    def _connect(self, once: bool = False) -> Any:
        with self._lock.now:
            if once not in self._clients:
                self._clients[once] = connect(self.settings, once)
            return self._clients[once]

    def _at_once(self, do: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """All of these in threads, as many at a time as there are connections; never nested."""
        if len(items) < 2:
            return [do(item) for item in items]
        with self._lock.now:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.settings.pool, "twicesafe-dynamodb")
            threads = self._threads
        return list(threads.map(do, items))

    def _forget_connections(self) -> None:
        self._clients, self._threads = {}, None
