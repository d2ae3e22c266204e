"""The async Redis store: concurrent calls of one event loop share round trips.

Each loop has three connections: for claims, for ends, and for everything else. So the server works
on one batch while we pack another. A single call is sent at once; calls that arrive meanwhile form
the next batch (`AsyncBatcher`). A batch that is cancelled drops its connection; a retry on a new one
gets the same answer, by the owner token. A claim that was cancelled while it waited for its batch is
sent all the same: the `Abandon` that releases it follows on the same connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, ClassVar, Self, TypeVar

from ..._core.driving import drive_async
from ..._core.protocol import Request
from ..._values.drivers import require
from ...stores._base import AsyncStore, Capabilities, Finding, Program
from ...stores._batching import AsyncBatcher, PerLoop, uncancellable
from .async_connection import Link
from .doctor import examine
from .error_messages import explain
from .programs import RedisPrograms
from .routing import PlainCommand, RoundTrip, Router, may_repeat
from .scripts import Scripts
from .settings import Address, Settings
from .store import BATCH, CAPABILITIES, QUICK, RedisStore, pauses, scripts_for
from .wakeups import Waiter

__all__ = ["AsyncRedisStore"]

T = TypeVar("T")


class AsyncRedisStore(AsyncStore):
    """The async store, for event loops."""

    capabilities: ClassVar[Capabilities] = CAPABILITIES

    def __init__(self, settings: Settings, scripts: Scripts | None = None) -> None:
        self.settings = settings
        self.url = settings.url
        self.programs = RedisPrograms(settings.prefix, scripts or scripts_for(settings))
        self.router = Router(settings)
        self._tap: Callable[[str, Any], None] | None = None
        self._loops = PerLoop(lambda: _LoopConnections(self))
        self._blocking: RedisStore | None = None

    @classmethod
    def open(cls, url: str) -> Self:
        require("redis.connection", "redis.asyncio.connection", "hiredis")
        return cls(Settings.of(url))

    def blocking_store(self) -> RedisStore:
        if self._blocking is None:
            self._blocking = RedisStore(self.settings, self.programs.scripts, self.router.servers)
        return self._blocking

    async def ready(self) -> None:
        await self._loops.here().connect()

    async def perform(self, request: Request) -> Any:
        return await self._loops.here().perform(request)

    def submit(self, request: Request) -> Awaitable[Any]:
        return self._loops.here().submit(request)

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        return await self._loops.here().perform_many(requests)

    async def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        connections = self._loops.here()
        try:
            async with asyncio.timeout(seconds):
                if not self.settings.wake or not await self._wait_for_wakeup(connections, id):
                    for pause in pauses():
                        if not await connections.run(self.programs.awaits(id)):
                            return
                        await asyncio.sleep(pause)
        except TimeoutError:
            return

    async def _wait_for_wakeup(self, connections: _LoopConnections, id_: bytes) -> bool:
        """Wait for a wake-up; False: none can come."""
        blocking = self._blocking
        if blocking is None:
            blocking = await asyncio.to_thread(self.blocking_store)
        ready, changed = _Signal(), _Signal()
        waiter = Waiter(self.programs.key(id_), ready.set, changed.set)
        blocking.wakeups.watch(waiter)
        try:
            await ready.future
            if changed.future.done():
                return False  # listening failed
            # Ask after listening has begun: an earlier end is seen now, a later one is announced.
            if await connections.run(self.programs.awaits(id_)):
                await changed.future
            return True
        finally:
            blocking.wakeups.unwatch(waiter)

    async def doctor(self) -> list[Finding]:
        return await self._loops.here().run(examine(self.settings))

    async def close(self) -> None:
        connections = self._loops.forget()
        if connections is not None:
            await connections.close()
        blocking, self._blocking = self._blocking, None
        if blocking is not None:
            await asyncio.to_thread(blocking.close)


class _Signal:
    """A future that another thread may complete."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()

    def set(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._arrive)
        except RuntimeError:
            return  # its loop is closed: there is no waiter left

    def _arrive(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class _LoopConnections:
    """The connections of one event loop."""

    def __init__(self, store: AsyncRedisStore) -> None:
        self._store = store
        self._claims = _Connection(store)
        self._ends = _Connection(store)
        self._other = _Connection(store)
        claims = self._batcher(self._claims)
        self._batchers = dict.fromkeys(QUICK, self._batcher(self._ends))
        self._batchers |= {"claim": claims, "abandon": claims}

    def _batcher(self, connection: _Connection) -> AsyncBatcher:
        programs = self._store.programs
        return AsyncBatcher(
            connection.perform,
            lambda requests: connection.run(programs.perform_all(requests)),
            BATCH,
        )

    async def connect(self) -> None:
        for connection in (self._claims, self._ends):
            await connection.connect()

    def perform(self, request: Request) -> Coroutine[Any, Any, Any]:
        batcher = self._batchers.get(request.op)
        if batcher is not None:
            return batcher.perform(request)
        return self.run(self._store.programs.perform(request))

    def submit(self, request: Request) -> Awaitable[Any]:
        batcher = self._batchers.get(request.op)
        if batcher is None:
            return uncancellable(self.perform(request))
        return batcher.submit(request)

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, len(requests), BATCH):
            part = requests[start : start + BATCH]
            answers += await self.run(self._store.programs.perform_all(part))
        return answers

    def run(self, program: Program[T]) -> Coroutine[Any, Any, T]:
        return self._other.run(program)

    async def close(self) -> None:
        for connection in (self._claims, self._ends, self._other):
            await connection.close()


class _Connection:
    """One connection per server, one round trip at a time."""

    def __init__(self, store: AsyncRedisStore) -> None:
        self._store = store
        self._links: dict[Address, Link] = {}
        self._turn = asyncio.Lock()

    async def connect(self) -> None:
        """Connect to every server. `_tap` does not see it: no record is touched."""
        async with self._turn:
            node = 0
            while True:
                run = self._store.router.run([PlainCommand((b"PING",), node=node)])
                (reply,) = await drive_async(run, self._exchange)
                if isinstance(reply, Exception):
                    raise reply
                if reply is None:
                    return
                node += 1

    async def perform(self, request: Request) -> Any:
        """The fast way: one call, one server. Any reply that is not plain takes the long way."""
        store = self._store
        home = store.router.direct
        if home is None or store._tap is not None or self._turn.locked():
            return await self.run(store.programs.perform(request))
        call = store.programs.ask(request)
        async with self._turn:
            reply: Any = (await self._exchange(RoundTrip({home: [call.line()]})))[home]
        if isinstance(reply, list):
            (reply,) = reply
        if not store.router.is_plain(home, reply):
            if isinstance(reply, Exception) and not may_repeat(reply):
                raise explain(reply, store.url)
            return await self.run(store.programs.perform(request))
        answer = store.programs.answer(request, reply)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def run(self, program: Program[T]) -> T:
        async with self._turn:
            return await drive_async(program, self._execute)

    async def _execute(self, commands: list[Any]) -> list[Any]:
        store = self._store
        tap = store._tap
        if tap is None:
            return await drive_async(store.router.run(commands), self._exchange)
        tap("before", commands)
        replies = await drive_async(store.router.run(commands), self._exchange)
        tap("after", commands)
        return replies

    async def _exchange(self, batch: RoundTrip) -> dict[Address, Any]:
        received: dict[Address, Any] = {}
        waiting: dict[Address, asyncio.Future[list[Any]]] = {}
        try:
            for address, lines in batch.lines.items():
                try:
                    link = self._links.get(address) or self._link(address)
                    if batch.fresh:
                        await link.close()
                    if not link.up:
                        await link.connect()
                    waiting[address] = link.send(lines)
                except Exception as error:
                    received[address] = error
            for address, replies in waiting.items():
                try:
                    received[address] = await replies
                except Exception as error:
                    received[address] = error
        except BaseException:
            # Cancelled: the replies are still to come, and no later call may read them.
            for address in waiting:
                await self._links.pop(address).close()
            raise
        return received

    def _link(self, address: Address) -> Link:
        link = self._links[address] = Link(
            self._store.settings, address, self._store.router.servers
        )
        return link

    async def close(self) -> None:
        while self._links:
            _, link = self._links.popitem()
            await link.close()
