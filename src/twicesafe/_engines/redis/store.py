"""The blocking Redis store: one pool of redis-py connections per server, for all threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

from ..._core.driving import drive
from ..._core.protocol import Request
from ..._values.drivers import require
from ...stores._base import Capabilities, Finding, Progress, Store
from ..sql.connection_pool import Pool
from .doctor import examine
from .error_messages import explain
from .key_scans import COMPACT
from .programs import RedisPrograms
from .routed_commands import PlainCommand, may_repeat
from .routing import Router
from .scripts import Scripts
from .servers import WHO_ARE_YOU, Line, Packed, RoundTrip, Servers, by_line, count_of
from .settings import Address, Settings
from .wakeups import Waiter, WakeupListener

__all__ = ["BATCH", "CAPABILITIES", "RedisStore", "packed", "packer", "pauses", "scripts_for"]

T = TypeVar("T")

CheckServer: TypeAlias = Callable[[bytes], None]

CAPABILITIES = Capabilities(native_expiry=True, wake=True, steps=True, copies=True)

QUICK = frozenset({"claim", "complete", "fail", "renew", "abandon", "read", "record_step"})
"""Requests that are one script call, and may be sent twice."""

BATCH = 1000
"""The most requests in one round trip."""


def scripts_for(settings: Settings) -> Scripts:
    if not settings.wake:
        return Scripts("")
    return Scripts("SPUBLISH" if settings.kind == "cluster" else "PUBLISH")


class RedisStore(Store):
    """The blocking store, for threads."""

    capabilities: ClassVar[Capabilities] = CAPABILITIES
    answers_together: ClassVar[bool] = True

    def __init__(
        self,
        settings: Settings,
        scripts: Scripts | None = None,
        servers: Servers | None = None,
    ) -> None:
        self.settings = settings
        self.url = settings.url
        self.programs = RedisPrograms(
            settings.prefix, scripts or scripts_for(settings), settings.kind == "cluster"
        )
        self._router = Router(settings, servers)
        self._pools: dict[Address, Pool[Link]] = {}
        self.wakeups = WakeupListener(self._locate, self._connection, settings.kind == "cluster")
        self._router.servers.changed = self.wakeups.restart
        self._tap: Callable[[str, Any], None] | None = None
        """Tests only: called before and after every list of commands."""
        (reply,) = self._execute([PlainCommand((b"PING",))])
        if isinstance(reply, Exception):
            raise reply
        drive(self.programs.settle(), self._execute)

    @classmethod
    def open(cls, url: str) -> Self:
        require("redis.connection")
        return cls(Settings.of(url))

    def perform(self, request: Request) -> Any:
        home = self._router.direct
        if home is not None and request.op in QUICK and self._tap is None:
            # The fast way: one call, one server. All other cases take the long way below.
            call = self.programs.ask(request)
            with self._pool(home).connection() as link:
                reply = link.ask(call.line())
            if self._router.is_plain(home, reply):
                answer = self.programs.answer(request, reply)
                if isinstance(answer, Exception):
                    raise answer
                return answer
            if isinstance(reply, Exception) and not may_repeat(reply):
                raise explain(reply, self.url)
        return drive(self.programs.perform(request), self._execute)

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, len(requests), BATCH):
            part = requests[start : start + BATCH]
            answers += drive(self.programs.perform_all(part), self._execute)
        return answers

    def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        until = time.monotonic() + seconds
        if self.settings.wake:
            ready, changed = threading.Event(), threading.Event()
            waiter = Waiter(self.programs.key(id), ready.set, changed.set)
            self.wakeups.watch(waiter)
            try:
                if ready.wait(seconds) and not changed.is_set():
                    # Ask after listening has begun: an earlier end is seen now, a later one is announced.
                    if self._awaits(id):
                        changed.wait(until - time.monotonic())
                    return
            finally:
                self.wakeups.unwatch(waiter)
        for pause in pauses():
            left = until - time.monotonic()
            if left <= 0 or not self._awaits(id):
                return
            time.sleep(min(pause, left))

    def _awaits(self, id_: bytes) -> bool:
        return drive(self.programs.awaits(id_), self._execute)

    def doctor(self) -> list[Finding]:
        return drive(examine(self.settings), self._execute)

    def migrate(self, tell: Progress = None) -> list[str]:
        if self.programs.how is COMPACT:
            return []
        drive(self.programs.write_compact(), self._execute)
        return [
            f"{self.settings.prefix}: new records are compact; those that are there stay as they are"
        ]

    def close(self) -> None:
        self.wakeups.close()
        for pool in list(self._pools.values()):
            pool.close()

    # -- round trips ----------------------------------------------------------------------------

    def _execute(self, commands: list[Any]) -> list[Any]:
        tap = self._tap
        if tap is None:
            return drive(self._router.run(commands), self._exchange)
        tap("before", commands)
        replies = drive(self._router.run(commands), self._exchange)
        tap("after", commands)
        return replies

    def _exchange(self, batch: RoundTrip) -> dict[Address, Any]:
        received: dict[Address, Any] = {}
        with ExitStack() as stack:
            links: dict[Address, Link] = {}
            for address in sorted(batch.lines):
                try:
                    link = stack.enter_context(self._pool(address).connection())
                    if batch.fresh:
                        link.close()
                    link.send(batch.lines[address])
                    links[address] = link
                except Exception as error:
                    received[address] = error
            batch.meanwhile()
            for address, link in links.items():
                try:
                    received[address] = link.read(batch.lines[address])
                except Exception as error:
                    received[address] = error
        return received

    def _locate(self, key: bytes) -> Address:
        servers = self._router.servers
        return drive(servers.locate(key, servers.clock()), self._exchange)

    # -- connections ----------------------------------------------------------------------------

    def _pool(self, address: Address) -> Pool[Link]:
        pool = self._pools.get(address)
        if pool is None:
            pool = self._pools.setdefault(
                address,
                Pool(
                    lambda: Link(self._connection(address), self._server_check(address)),
                    self.settings.pool,
                    self.settings.timeout,
                ),
            )
        return pool

    def _server_check(self, address: Address) -> CheckServer | None:
        servers = self._router.servers
        if address.sentinel or not servers.checks_new_connections:
            return None
        return lambda info: servers.check_server(address, info)

    def _connection(self, address: Address) -> Any:
        from redis.connection import Connection, SSLConnection

        kind = SSLConnection if self.settings.tls else Connection
        return kind(**self.settings.connection(address))


class Link:
    """One connection: sends commands, reads replies. If it was lost, its next use reconnects."""

    __slots__ = ("_check", "_connection", "_errors", "_pack")

    def __init__(self, connection: Any, check: CheckServer | None = None) -> None:
        from redis.exceptions import ResponseError

        self._connection = connection
        self._errors = ResponseError
        self._check = check
        self._pack = packer(connection)

    def send(self, lines: list[Line]) -> None:
        if self._check is not None and self._connection._sock is None:
            self._connect_and_check(self._check)
        self._connection.send_packed_command([packed(lines, self._pack)])

    def read(self, lines: list[Line]) -> list[Any]:
        read, errors = self._connection.read_response, self._errors
        replies: list[Any] = []
        for _ in range(count_of(lines)):
            try:
                replies.append(read(disable_decoding=True))
            except errors as error:
                replies.append(error)
        return by_line(lines, replies)

    def ask(self, line: tuple[Any, ...]) -> Any:
        """The reply, or the exception."""
        try:
            if self._check is not None and self._connection._sock is None:
                self._connect_and_check(self._check)
            self._connection.send_packed_command((self._pack(line),))
            return self._connection.read_response(disable_decoding=True)
        except Exception as error:
            return error

    def _connect_and_check(self, check: CheckServer) -> None:
        """Connect, and check that it is the primary before any command is sent."""
        self._connection.connect()
        try:
            self._connection.send_packed_command((self._pack(WHO_ARE_YOU),))
            check(self._connection.read_response(disable_decoding=True))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection.disconnect()


def packed(lines: list[Line], pack: Callable[[tuple[Any, ...]], bytes]) -> bytes:
    return b"".join([line.data if isinstance(line, Packed) else pack(line) for line in lines])


def packer(connection: Any) -> Callable[[tuple[Any, ...]], bytes]:
    """Turns a command into bytes: with hiredis if it is installed, otherwise with redis-py."""
    try:
        from hiredis import pack_command
    except ImportError:
        return lambda line: b"".join(connection.pack_command(*line))

    def pack(line: tuple[Any, ...]) -> bytes:
        # Numbers as text: hiredis 3.5 crashes the process if a signal is pending while it formats a
        # number.
        words: Any = [str(word) if type(word) is int else word for word in line]
        packed: bytes = pack_command(tuple(words))
        return packed

    return pack


def pauses() -> Any:
    """Seconds between polls, where wake-ups are off: from 2 ms to 250 ms."""
    pause = 0.002
    while True:
        yield pause
        pause = min(pause * 1.15, 0.25)
