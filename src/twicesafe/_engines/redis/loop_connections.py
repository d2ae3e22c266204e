"""The connections of one event loop to Redis: for claims, for ends, and for everything else.

A request is sent behind those that are on their way, and its answer is read while theirs follow. The
server works on some requests while we pack others. A lone request is sent at once, and the requests
of one turn of the loop share a write (`AsyncLink`).

That is the short way, and nearly always enough. A request takes the long way, through the router,
if its server must be looked up, if it must wait for replicas, if the connection was lost, or if the
server answered with an error. Requests that arrive meanwhile queue up behind it and form its next
batch (`AsyncBatcher`), so that none overtakes another. A request that is sent again gets the same
answer, by the owner token.

A cancelled claim may already be sent, so the `Abandon` that releases it follows on the same connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..._core.driving import drive_async
from ..._core.protocol import Request
from ...errors import StoreUnavailableError
from ...stores._base import Program
from ...stores._batching import AsyncBatcher, Uncancellable, uncancellable
from .async_connection import AsyncLink
from .error_messages import explain
from .routed_commands import PlainCommand, may_repeat
from .servers import RoundTrip
from .settings import Address
from .store import BATCH, QUICK

if TYPE_CHECKING:
    from .async_store import AsyncRedisStore

__all__ = ["LoopConnections"]

T = TypeVar("T")


class LoopConnections:
    """The connections of one event loop, and which request goes to which."""

    def __init__(self, store: AsyncRedisStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        claims = _Pipeline(store)
        ends = _Pipeline(store, spare=claims.connection)
        self._pipelines = {**dict.fromkeys(QUICK, ends), "claim": claims, "abandon": claims}
        self._claims, self._ends = claims.connection, ends.connection
        self._other = _Connection(store)

    async def connect(self) -> None:
        await self._claims.connect()
        with contextlib.suppress(StoreUnavailableError):  # then it shares the other one
            await self._ends.connect()

    async def settle(self) -> None:
        """Decide how new records are written. Part of connecting."""
        await self._claims.run_unseen(self._store.programs.settle())

    def perform(self, request: Request) -> Awaitable[Any]:
        pipeline = self._pipelines.get(request.op)
        if pipeline is None:
            return self.run(self._store.programs.perform(request))
        return pipeline.send(request, self._loop.create_future())

    def submit(self, request: Request) -> Awaitable[Any]:
        pipeline = self._pipelines.get(request.op)
        if pipeline is None:
            return uncancellable(self.run(self._store.programs.perform(request)))
        return pipeline.send(request, Uncancellable(loop=self._loop))

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


class _Pipeline:
    """Requests in the order in which they came, the short way or the long way.

    `spare`: another connection, for a server that gives us no connection of our own. Work that is
    done must be recorded.
    """

    def __init__(self, store: AsyncRedisStore, spare: _Connection | None = None) -> None:
        self._store, self._spare = store, spare
        self._programs = store.programs
        self.answer = store.programs.answer
        self.connection = _Connection(store, self)
        self._long_way = AsyncBatcher(
            lambda request: self._run(lambda: self._programs.perform(request)),
            lambda requests: self._run(lambda: self._programs.perform_all(requests)),
            BATCH,
        )

    async def _run(self, program: Callable[[], Program[T]]) -> T:
        spare = self._spare
        if spare is not None and spare.is_up and not self.connection.is_up:
            try:
                await self.connection.connect()
            except StoreUnavailableError:
                return await spare.run(program())
        return await self.connection.run(program())

    def send(self, request: Request, answer: asyncio.Future[Any]) -> asyncio.Future[Any]:
        """Send it; returns `answer`, which gets the answer or the error."""
        link = None if self._long_way.is_busy else self.connection.short_way()
        if link is None:
            self._long_way.submit(request, answer)
        else:
            link.ask(self._programs.ask(request).line(), request, answer)
        return answer

    def is_home(self, address: Address) -> bool:
        return self._store.router.direct == address

    def take_long_way(self, request: Request, answer: asyncio.Future[Any], why: Any) -> None:
        if isinstance(why, Exception):
            self._store.router.servers.distrust()
            if not may_repeat(why):
                answer.set_exception(explain(why, self._store.url))
                return
        self._long_way.submit(request, answer)


class _Connection:
    """One connection per server, one round trip at a time."""

    def __init__(self, store: AsyncRedisStore, pipeline: _Pipeline | None = None) -> None:
        self._store = store
        self._pipeline = pipeline
        self._links: dict[Address, AsyncLink] = {}
        self._turn = asyncio.Lock()

    @property
    def is_up(self) -> bool:
        return any(link.up for link in self._links.values())

    async def connect(self) -> None:
        """Connect to every server."""
        await self.run_unseen(_greet_all())

    async def run_unseen(self, program: Program[T]) -> T:
        """Run a program that touches no record, so `_tap` does not see it."""
        async with self._turn:
            return await drive_async(program, self._send)

    async def _send(self, commands: list[Any]) -> list[Any]:
        return await drive_async(self._store.router.run(commands), self._exchange)

    def short_way(self) -> AsyncLink | None:
        """The connection to the one server of all requests, if there is one and no program uses it."""
        store = self._store
        home = store.router.direct
        if home is None or store._tap is not None or self._turn.locked():
            return None
        link = self._links.get(home)
        return link if link is not None and link.up else None

    async def run(self, program: Program[T]) -> T:
        async with self._turn:
            return await drive_async(program, self._execute)

    async def _execute(self, commands: list[Any]) -> list[Any]:
        store = self._store
        tap = store._tap
        if tap is None:
            return await drive_async(store.router.run(commands), self._exchange)
        tap("before", commands)
        replies = await self._send(commands)
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
            batch.meanwhile()
            for address, replies in waiting.items():
                try:
                    received[address] = await replies
                except Exception as error:
                    received[address] = error
        except BaseException:
            for replies in waiting.values():
                replies.cancel()  # their replies are still to come
            raise
        return received

    def _link(self, address: Address) -> AsyncLink:
        link = self._links[address] = AsyncLink(
            self._store.settings, address, self._store.router.servers, self._pipeline
        )
        return link

    async def close(self) -> None:
        while self._links:
            _, link = self._links.popitem()
            await link.close()


def _greet_all() -> Program[None]:
    node = 0
    while True:
        (reply,) = yield [PlainCommand((b"PING",), node=node)]
        if isinstance(reply, Exception):
            raise reply
        if reply is None:
            return
        node += 1
