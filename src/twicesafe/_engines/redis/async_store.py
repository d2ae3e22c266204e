"""The async Redis store, for event loops. Each loop has its own connections (`loop_connections`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Self

from ..._core.protocol import Request
from ..._forking import RenewedLock
from ..._values.drivers import require
from ...stores._base import AsyncStore, Capabilities, Finding, Progress
from ...stores._batching import PerLoop
from .doctor import examine
from .loop_connections import LoopConnections
from .programs import RedisPrograms
from .routing import Router
from .scripts import Scripts
from .settings import Settings
from .store import CAPABILITIES, RedisStore, pauses, scripts_for
from .wakeups import Waiter

__all__ = ["AsyncRedisStore"]


class AsyncRedisStore(AsyncStore):
    """The async store, for event loops."""

    capabilities: ClassVar[Capabilities] = CAPABILITIES
    answers_together: ClassVar[bool] = True

    def __init__(self, settings: Settings, scripts: Scripts | None = None) -> None:
        self.settings = settings
        self.url = settings.url
        self.programs = RedisPrograms(
            settings.prefix, scripts or scripts_for(settings), settings.kind == "cluster"
        )
        self.router = Router(settings)
        self._tap: Callable[[str, Any], None] | None = None
        self._loops = PerLoop(lambda: LoopConnections(self))
        self._blocking: RedisStore | None = None
        self._opening = RenewedLock()
        self._is_settled = False

    @classmethod
    def open(cls, url: str) -> Self:
        require("redis.connection", "redis.asyncio.connection", "hiredis")
        return cls(Settings.of(url))

    def blocking_store(self) -> RedisStore:
        with self._opening.now:
            if self._blocking is None:
                self._blocking = RedisStore(
                    self.settings, self.programs.scripts, self.router.servers
                )
            return self._blocking

    async def ready(self) -> None:
        connections = self._loops.here()
        await connections.connect()
        if not self._is_settled:
            await connections.settle()
            self._is_settled = True

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

    async def _wait_for_wakeup(self, connections: LoopConnections, id_: bytes) -> bool:
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

    async def migrate(self, tell: Progress = None) -> list[str]:
        return await asyncio.to_thread(lambda: self.blocking_store().migrate(tell))

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
