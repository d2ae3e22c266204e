"""The event-loop runtime: performs the same commands on an asyncio event loop.

Cancellation is where async receivers break, so the rule is explicit. A claim request may be
cancelled: the claim is then released by its owner token. A recording (Complete, Fail, Abandon) may
not: it runs to its end, and the cancellation is raised right after. The handler itself is cancelled
at once, and its claim is released or held before the caller sees the cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar, overload

from .. import _forking
from .._core.call import Call
from .._core.commands import (
    AwaitFlight,
    Detach,
    EndFlight,
    Flow,
    Invoke,
    JoinFlight,
    Launch,
    LostBeforeStartError,
    NotStarted,
    OnTransaction,
    PerformMany,
    Raised,
    Reply,
    Returned,
    Sleep,
    Watch,
    Within,
)
from .._core.delivery import deliver_fast_async
from .._core.driving import drive_async
from .._core.durable.run import deliver_run
from .._core.durable.run_state import RunState, StepCall
from .._core.durable.steps import take, take_fast_async
from .._core.protocol import ClaimRequest
from .._core.settling import RELEASE_TIMEOUT
from .._values.breaker import Breaker
from .._values.context import ActiveClaim
from .._values.outcomes import Outcome
from ..errors import LeaseLostError, TwicesafeError, UsageError
from .batch_jobs import TaskJobs
from .checked_store import AsyncCheckedStore
from .flow_run import CLAIMS, RECORDING, FlowRun, invoke_async
from .guarded_store import AsyncGuardedStore, GuardedStore, StoreGuard
from .loop_connection import LoopConnection
from .shared_state import SharedState

__all__ = ["EventLoopFlowRun", "EventLoopRuntime", "running_loop"]

T = TypeVar("T")


def running_loop() -> asyncio.AbstractEventLoop:
    """The running asyncio loop; without one (under trio, say) an error says what to do."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "the async classes need a running asyncio event loop, and there is none: call them in a "
            "coroutine that asyncio runs; under trio, call the blocking classes in a thread: await "
            "trio.to_thread.run_sync(…)"
        ) from None


class EventLoopRuntime(SharedState):
    """Runs flows on one store, for all tasks of all event loops."""

    def __init__(self, store: Any, **shared: Any) -> None:
        if store.hidden_keys is not None:
            store = AsyncCheckedStore(store)
        super().__init__(store, self._perform_blocking, **shared)
        self._connection: LoopConnection | None = None

    def _perform_blocking(self, requests: Any) -> list[Any]:
        """The lease keeper's own access to the store: an event loop may be blocked."""
        # Not kept here: a store that was closed and opened again has another one.
        return self.store.blocking_store().perform_many(requests)  # type: ignore[no-any-return]

    def break_circuit(self, settings: Breaker, fallback: Any) -> StoreGuard:
        """Stop asking a store that fails. A renewal goes to the store that granted its claim."""
        guard = self._guard_by(settings, AsyncGuardedStore, fallback)
        mine = _Blocking(self._perform_blocking)
        lent = None
        if fallback is not None:
            lent = _Blocking(lambda requests: fallback.blocking_store().perform_many(requests))
        self.keeper._perform_many = GuardedStore(mine, lent, guard).perform_many
        return guard

    async def new_run(self) -> EventLoopFlowRun:
        """A run with a connected store. If connecting failed, its first request raises."""
        connection = self._connection
        if connection is not None and connection.made and connection.loop() is running_loop():
            return EventLoopFlowRun(self)
        if self.guard is not None and self.guard.is_resting():
            return EventLoopFlowRun(self)  # its claim is refused without connecting
        refused = await self.connect()
        if self.guard is not None and refused is not None:
            self.guard.judge(refused)
        run = EventLoopFlowRun(self)
        run.refused = refused
        return run

    async def connect(self) -> Exception | None:
        """Connect on this loop before any lease is running; returns the error, if any."""
        loop, connection = running_loop(), self._connection
        if connection is None or connection.loop() is not loop:
            connection = self._connection = LoopConnection(loop)
        return await connection.connect(self.store)

    @overload
    async def run(self, work: Call) -> Outcome[Any] | Raised: ...
    @overload
    async def run(self, work: Flow[T]) -> T: ...
    async def run(self, work: Call | Flow[Any]) -> Any:
        """Run a flow, or deliver a call."""
        run = await self.new_run()
        try:
            if type(work) is not Call:
                result = await drive_async(work, run.perform)  # type: ignore[arg-type]
            elif work.durable is None:
                result = await deliver_fast_async(work, run.join(work), run)
            else:
                result = await drive_async(deliver_run(work, run.join(work)), run.perform)
        except BaseException as error:
            await run.interrupted(error)
            run.deliver(instead_of=error)
            raise
        finally:
            run.end()
        if run.cancelled is not None:
            run.deliver()
        return result

    async def take(self, state: RunState, call: StepCall) -> Reply:
        """`run(take(state, call))`, in less time: a step holds no claim and leads no flight."""
        run = await self.new_run()
        try:
            if run.refused is None:
                reply = await take_fast_async(state, call, run)
            else:  # its first request raises the refusal
                reply = await drive_async(take(state, call), run.perform)
        except BaseException as error:
            run.deliver(instead_of=error)
            raise
        if run.cancelled is not None:
            run.deliver()
        return reply


class _Blocking:
    """The lease keeper's access to one of two stores, as a store: if it does not open, the other is still asked."""

    def __init__(self, perform_many: Callable[[Any], list[Any]]) -> None:
        self._perform_many = perform_many

    def perform_many(self, requests: Any) -> list[Any]:
        try:
            return self._perform_many(requests)
        except Exception as error:
            return [error] * len(requests)


class EventLoopFlowRun(FlowRun):
    """One flow in the caller's own task."""

    __slots__ = ()

    _jobs: TaskJobs | None

    def perform(self, command: Any) -> Any:
        """The answer, or a coroutine that returns it."""
        kind = type(command)
        if self.refused is not None and (kind is PerformMany or kind not in _ACTS):
            self._raise_refused()
        act = _ACTS.get(kind)
        if act is not None:
            return act(self, command)
        if kind in CLAIMS:
            return self.claim(command)
        return self.record(command) if kind in RECORDING else self._perform(command)

    def claim(self, ask: ClaimRequest) -> Awaitable[Any]:
        if self.refused is not None:
            self._raise_refused()
        self._asked = ask  # until it is held or refused
        return self._perform(ask)  # type: ignore[no-any-return]

    async def record(self, what: Any) -> Any:
        """Record despite a cancellation, which is raised after the flow."""
        if self._store.immediate:
            return await self._perform(what)
        answer = self._store.submit(what)
        try:
            return await answer
        except asyncio.CancelledError as error:
            if not answer.done():
                raise
            self.cancelled = error
            return answer.result()

    def _raise_refused(self) -> NoReturn:
        refused, self.refused = self.refused, None
        assert refused is not None
        raise refused

    async def interrupted(self, error: BaseException) -> None:
        """Release claims that were requested and never held."""
        asked, self._asked = self._asked, None
        if asked is None or isinstance(error, TwicesafeError):
            return
        release = asyncio.ensure_future(self._give_back(asked))
        release.add_done_callback(_swallow)
        try:
            await asyncio.wait({release}, timeout=RELEASE_TIMEOUT)
        except asyncio.CancelledError:
            return  # cancelled twice: the release continues in the background

    async def _to_its_end(self, recording: Awaitable[T]) -> T:
        task = asyncio.ensure_future(recording)
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as error:
                self.cancelled = error
        return task.result()

    # -- one method per command ---------------------------------------------------------------

    async def _await_flight(self, command: AwaitFlight) -> Any:
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()

        def tell(in_time: bool) -> None:
            if not woken.done():
                woken.set_result(in_time)

        def wake() -> None:
            if _runs(loop):  # most waiters share the leader's loop: no need to wake it
                return tell(True)
            try:
                loop.call_soon_threadsafe(tell, True)
            except RuntimeError:
                return None  # its loop is closed: there is no waiter left
            return None

        flight = command.flight
        if self._wait_for(command, wake):
            alarm = loop.call_later(command.seconds, tell, False)
            try:
                if not await woken:
                    return None
            finally:
                alarm.cancel()
                self._flights.leave(flight, wake)
        return flight.answer or True

    async def _invoke(self, command: Invoke) -> Reply:
        claim, run, seconds = command.claim, command.run, command.timeout
        if claim is None:
            return await invoke_async(None, run, seconds)
        return await self.invoke(claim, run, seconds)

    async def invoke(
        self, claim: ActiveClaim, run: Callable[[], Any], seconds: float | None = None
    ) -> Reply:
        if not claim.pid:
            self.hold(claim)
        elif claim.lost:
            return Raised(
                LostBeforeStartError("the claim expired before its handler started", key=claim.key)
            )
        reply = await invoke_async(claim, run, seconds)
        if claim.pid != _forking.pid:
            raise LeaseLostError(
                "this process was forked in the handler; only the parent may end the claim",
                key=claim.key,
            )
        return reply

    async def _detach(self, command: Detach) -> Any:
        """A coroutine can be cancelled, so it needs no thread: `_invoke` applies the timeout."""
        return await drive_async(command.flow, self.perform)

    async def _launch(self, command: Launch) -> list[tuple[int, Any]]:
        if command.jobs:
            if self.cancelled is not None:
                return [(index, NotStarted()) for index, _ in command.jobs]
            self.hold_all(job.claim for _, job in command.jobs)
            self._jobs = TaskJobs(command, self._run_job)
        assert self._jobs is not None
        stop = command.stop or self.cancelled is not None
        try:
            return await self._jobs.finished(command.linger, stop)
        except asyncio.CancelledError as error:
            # Start no more, cancel what runs, and record or release all of it.
            self.cancelled = error
            return await self._to_its_end(self._jobs.finished(command.linger, stop=True))

    async def _run_job(self, job: Invoke | Detach) -> Reply:
        if isinstance(job, Invoke):
            return await self._invoke(job)
        try:
            return Returned(await self._detach(job))
        except Exception as error:
            return Raised(error)

    async def _on_transaction(self, command: OnTransaction) -> Any:
        """A statement that is cancelled may be executed all the same: a BEGIN would leave the
        user's connection in a transaction. So it ends before it is rolled back, in the background
        if that takes long."""
        act = asyncio.ensure_future(getattr(command.transaction, command.act)(*command.args))
        try:
            return await asyncio.shield(act)
        except Exception:
            raise
        except BaseException:
            ending = asyncio.ensure_future(_roll_back(act, command.transaction))
            await asyncio.wait({ending}, timeout=RELEASE_TIMEOUT)
            raise

    async def _watch(self, command: Watch) -> None:
        self._mark_delayed()
        if self._store.capabilities.wake:
            await self._store.watch(command.id, command.seconds)
        else:
            await asyncio.sleep(command.poll)

    async def _sleep(self, command: Sleep) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + command.seconds
        while (left := until - loop.time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError as error:
                if not command.firm:
                    raise
                self.cancelled = error

    async def _within(self, command: Within) -> Any:
        recording = asyncio.ensure_future(self._perform(command.request))
        recording.add_done_callback(_swallow)
        loop = asyncio.get_running_loop()
        until = loop.time() + command.seconds
        while not recording.done() and loop.time() < until:
            try:
                await asyncio.wait({recording}, timeout=until - loop.time())
            except asyncio.CancelledError as error:
                self.cancelled = error  # again; it is raised after this
        return recording.result() if recording.done() else None

    async def _perform_many(self, command: PerformMany) -> list[Any]:
        if self._asks(command):
            return await self._store.perform_many(command.requests)  # type: ignore[no-any-return]
        return await self._to_its_end(self._store.perform_many(command.requests))


_ACTS: dict[type, Callable[[EventLoopFlowRun, Any], Any]] = {
    JoinFlight: EventLoopFlowRun._join_flight,
    AwaitFlight: EventLoopFlowRun._await_flight,
    EndFlight: EventLoopFlowRun._end_flight,
    Invoke: EventLoopFlowRun._invoke,
    Detach: EventLoopFlowRun._detach,
    Launch: EventLoopFlowRun._launch,
    Watch: EventLoopFlowRun._watch,
    Sleep: EventLoopFlowRun._sleep,
    Within: EventLoopFlowRun._within,
    PerformMany: EventLoopFlowRun._perform_many,
    OnTransaction: EventLoopFlowRun._on_transaction,
}


def _runs(loop: asyncio.AbstractEventLoop) -> bool:
    """True if this loop is the running one."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


async def _roll_back(act: asyncio.Future[Any], transaction: Any) -> None:
    await asyncio.wait({act})
    await transaction.rollback()


def _swallow(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
