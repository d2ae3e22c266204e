"""The blocking Redis store: redis-py connections in a pool per server, for the threads of a process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

from ..._core.driving import drive
from ..._core.protocol import Request
from ..._values.drivers import require
from ...stores._base import Capabilities, Finding, Store
from ..sql.connection_pool import Pool
from .doctor import examine
from .error_messages import explain
from .programs import RedisPrograms
from .routing import PlainCommand, RoundTrip, Router, may_repeat
from .scripts import Scripts
from .servers import GREETING, Servers
from .settings import Address, Settings
from .wakeups import Waiter, WakeupListener

__all__ = ["BATCH", "CAPABILITIES", "RedisStore", "packer", "pauses", "scripts_for"]

T = TypeVar("T")

Greet: TypeAlias = Callable[[bytes], None]

CAPABILITIES = Capabilities(native_expiry=True, wake=True)

QUICK = frozenset({"claim", "complete", "fail", "renew", "abandon", "read"})
"""Simple requests that may be sent twice."""

BATCH = 1000
"""Requests in one round trip at most."""


def scripts_for(settings: Settings) -> Scripts:
    if not settings.wake:
        return Scripts("")
    return Scripts("SPUBLISH" if settings.kind == "cluster" else "PUBLISH")


class RedisStore(Store):
    capabilities: ClassVar[Capabilities] = CAPABILITIES

    def __init__(
        self,
        settings: Settings,
        scripts: Scripts | None = None,
        servers: Servers | None = None,
    ) -> None:
        self.settings = settings
        self.url = settings.url
        self.programs = RedisPrograms(settings.prefix, scripts or scripts_for(settings))
        self._router = Router(settings, servers)
        self._pools: dict[Address, Pool[Link]] = {}
        self.wakeups = WakeupListener(self._locate, self._connection, settings.kind == "cluster")
        self._router.servers.changed = self.wakeups.restart
        self._tap: Callable[[str, Any], None] | None = None
        """Tests only: called before and after every trip's commands."""
        (reply,) = self._execute([PlainCommand((b"PING",))])
        if isinstance(reply, Exception):
            raise reply

    @classmethod
    def open(cls, url: str) -> Self:
        require("redis.connection")
        return cls(Settings.of(url))

    def perform(self, request: Request) -> Any:
        home = self._router.direct
        if home is not None and request.op in QUICK and self._tap is None:
            # The lean way: one call, one server. Whatever is not plain goes the long way below.
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
            ready, news = threading.Event(), threading.Event()
            waiter = Waiter(self.programs.key(id), ready.set, news.set)
            self.wakeups.attend(waiter)
            try:
                if ready.wait(seconds) and not news.is_set():
                    # Asked when we would hear: what ended before that is seen, what ends later is heard.
                    if self._awaits(id):
                        news.wait(until - time.monotonic())
                    return
            finally:
                self.wakeups.leave(waiter)
        for pause in pauses():
            left = until - time.monotonic()
            if left <= 0 or not self._awaits(id):
                return
            time.sleep(min(pause, left))

    def _awaits(self, id_: bytes) -> bool:
        return drive(self.programs.awaits(id_), self._execute)

    def doctor(self) -> list[Finding]:
        return drive(examine(self.settings), self._execute)

    def close(self) -> None:
        self.wakeups.close()
        for pool in list(self._pools.values()):
            pool.close()

    # -- trips ----------------------------------------------------------------------------------

    def _execute(self, commands: list[Any]) -> list[Any]:
        tap = self._tap
        if tap is None:
            return drive(self._router.run(commands), self._exchange)
        tap("before", commands)
        replies = drive(self._router.run(commands), self._exchange)
        tap("after", commands)
        return replies

    def _exchange(self, batch: RoundTrip) -> dict[Address, Any]:
        landed: dict[Address, Any] = {}
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
                    landed[address] = error
            for address, link in links.items():
                try:
                    landed[address] = link.read(len(batch.lines[address]))
                except Exception as error:
                    landed[address] = error
        return landed

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
                    lambda: Link(self._connection(address), self._greeter(address)),
                    self.settings.pool,
                    self.settings.timeout,
                ),
            )
        return pool

    def _greeter(self, address: Address) -> Greet | None:
        servers = self._router.servers
        if address.sentinel or not servers.asks_first:
            return None
        return lambda said: servers.greet(address, said)

    def _connection(self, address: Address) -> Any:
        from redis.connection import Connection, SSLConnection

        kind = SSLConnection if self.settings.tls else Connection
        return kind(**self.settings.connection(address))


class Link:
    """One connection: lines out, replies in. Cut, it connects anew at its next use."""

    __slots__ = ("_connection", "_errors", "_greet", "_pack")

    def __init__(self, connection: Any, greet: Greet | None = None) -> None:
        from redis.exceptions import ResponseError

        self._connection = connection
        self._errors = ResponseError
        self._greet = greet
        self._pack = packer(connection)

    def send(self, lines: list[tuple[Any, ...]]) -> None:
        pack = self._pack
        if self._greet is not None and self._connection._sock is None:
            self._meet(self._greet)
        self._connection.send_packed_command([b"".join([pack(line) for line in lines])])

    def read(self, count: int) -> list[Any]:
        read, errors = self._connection.read_response, self._errors
        replies: list[Any] = []
        for _ in range(count):
            try:
                replies.append(read(disable_decoding=True))
            except errors as error:
                replies.append(error)
        return replies

    def ask(self, line: tuple[Any, ...]) -> Any:
        """The reply, or what went wrong."""
        try:
            if self._greet is not None and self._connection._sock is None:
                self._meet(self._greet)
            self._connection.send_packed_command((self._pack(line),))
            return self._connection.read_response(disable_decoding=True)
        except Exception as error:
            return error

    def _meet(self, greet: Greet) -> None:
        """Connect, and hear who is there before anything is asked of it."""
        self._connection.connect()
        try:
            self._connection.send_packed_command((self._pack(GREETING),))
            greet(self._connection.read_response(disable_decoding=True))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection.disconnect()


def packer(connection: Any) -> Callable[[tuple[Any, ...]], bytes]:
    """From a line to bytes: hiredis where it is, else the driver's own."""
    try:
        from hiredis import pack_command
    except ImportError:
        return lambda line: b"".join(connection.pack_command(*line))

    def pack(line: tuple[Any, ...]) -> bytes:
        # Numbers as text: hiredis 3.5 brings the process down if a signal is pending while it
        # prints a number itself.
        words: Any = [str(word) if type(word) is int else word for word in line]
        packed: bytes = pack_command(tuple(words))
        return packed

    return pack


def pauses() -> Any:
    """Where nobody can wake us: polls that grow from 2 ms to 250 ms."""
    pause = 0.002
    while True:
        yield pause
        pause = min(pause * 1.5, 0.25)
