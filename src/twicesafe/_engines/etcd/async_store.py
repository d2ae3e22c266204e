"""The async etcd store, for event loops. Each loop has its own channels; many calls share one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, ClassVar, Self, TypeVar

from ..._core.driving import drive_async
from ..._core.protocol import Request
from ..._forking import RenewedLock
from ..._values.drivers import require
from ...stores._base import AsyncStore, Capabilities, Finding, Program
from ...stores._batching import PerLoop, error_for_each, uncancellable
from .error_messages import timed_out
from .routing import NEEDS, EtcdPause, Grant, MemberAttempt
from .settings import Settings
from .store import BATCH, CAPABILITIES, EtcdStore, Parts, stubs
from .wakeups import Waiter

__all__ = ["AsyncEtcdStore"]

T = TypeVar("T")


class AsyncEtcdStore(AsyncStore):
    """The async store, for event loops."""

    capabilities: ClassVar[Capabilities] = CAPABILITIES

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.settings, self.router, self.programs = parts.settings, parts.router, parts.programs
        self.url = parts.settings.url
        self._loops = PerLoop(lambda: _Channels(parts))
        self._blocking: EtcdStore | None = None
        self._opening = RenewedLock()

    @classmethod
    def open(cls, url: str) -> Self:
        require("grpc", "grpc.aio", "google.protobuf")
        return cls(Parts(Settings.of(url)))

    def blocking_store(self) -> EtcdStore:
        with self._opening.now:
            if self._blocking is None:
                self._blocking = EtcdStore(self.parts)
            return self._blocking

    async def ready(self) -> None:
        channels = self._loops.here()
        if not channels.checked:
            await self._run(self.programs.check_access())
            channels.checked = True

    async def perform(self, request: Request) -> Any:
        return await self._run(self.programs.perform(request))

    def submit(self, request: Request) -> Awaitable[Any]:
        return uncancellable(self._run(self.programs.perform(request)))

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, len(requests), BATCH):
            part = requests[start : start + BATCH]
            await self._run(self.programs.prepare(part))
            answers += await asyncio.gather(
                *(self._run(self.programs.perform(request)) for request in part),
                return_exceptions=True,
            )
        return answers

    async def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        try:
            async with asyncio.timeout(seconds):
                revision = await self._run(self.programs.awaits(id))
                if not revision:
                    return
                blocking = self._blocking
                if blocking is None:
                    blocking = await asyncio.to_thread(self.blocking_store)
                changed = asyncio.Event()
                wake = _waker(asyncio.get_running_loop(), changed)
                waiter = Waiter(self.programs.keys.of(id)[1], revision, wake)
                blocking.wakeups.watch(waiter)
                try:
                    await changed.wait()
                finally:
                    blocking.wakeups.unwatch(waiter)
        except TimeoutError:
            return

    async def doctor(self) -> list[Finding]:
        from .doctor import examine

        return await self._run(examine(self.settings))

    async def close(self) -> None:
        channels = self._loops.forget()
        if channels is not None:
            await channels.close()
        blocking, self._blocking = self._blocking, None
        if blocking is not None:
            await asyncio.to_thread(blocking.close)

    def _run(self, program: Program[T]) -> Coroutine[Any, Any, T]:
        return drive_async(self.router.route(program), self._loops.here().attempt)


class _Channels:
    """The channels of one event loop, one per member."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._grants: dict[int, asyncio.Task[None]] = {}
        self._channels: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._needs: Any = None
        """The metadata of most calls, made once; the driver would make it for each call."""
        self.checked = False

    async def attempt(self, step: MemberAttempt | Grant | EtcdPause) -> Any:
        if isinstance(step, EtcdPause):
            return await asyncio.sleep(step.seconds)
        if isinstance(step, Grant):
            return await self._grant(step)
        channel, calls = self._channels.get(step.member) or self._connect(step.member)
        metadata = self._needs if step.metadata is NEEDS else step.metadata
        try:
            return await calls[step.call.name](
                step.call.request, timeout=step.seconds, metadata=metadata
            )
        except Exception as error:
            if timed_out(error) and self._channels.get(step.member, (None,))[0] is channel:
                del self._channels[step.member]  # as the blocking store does
            raise

    async def _grant(self, step: Grant) -> None:
        """One task asks, all wait for it."""
        task = self._grants.get(step.seconds)
        if task is None:
            steps = self._parts.router.route(self._parts.programs.grant(step))
            task = asyncio.ensure_future(drive_async(steps, self.attempt))
            self._grants[step.seconds] = task
            task.add_done_callback(lambda _: self._grants.pop(step.seconds, None))
        try:
            await asyncio.shield(task)
        except Exception as error:
            raise error_for_each(error, 1)[0] from error

    def _connect(self, member: int) -> tuple[Any, dict[str, Any]]:
        import grpc.aio

        settings = self._parts.settings
        channel = settings.channel(grpc.aio, settings.members[member])
        self._needs = grpc.aio.Metadata(*NEEDS)
        found = self._channels[member] = channel, stubs(channel)
        return found

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel, _ in channels.values():
            await channel.close()


def _waker(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> Callable[[], None]:
    """Sets an event of this loop, from any thread."""

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(event.set)
        except RuntimeError:
            return  # its loop is closed: there is no waiter left

    return wake
