"""The blocking runtime: performs commands in the caller's own thread.

The handler runs in the caller's thread, so thread-locals, database connections and transactions
work as usual. Only a handler with a `timeout` gets its own thread, because a thread cannot be
stopped and its claim must be kept until it ends.

An interrupt (Ctrl-C, an exit) during a claim takes effect at once: the claim is released by its
owner token. During a recording, the same request is sent again and the interrupt is raised right
after; a second interrupt is not delayed. Handlers of a batch that still run in their threads keep
their claims.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar, overload

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
    StillRunningError,
    Watch,
    Within,
)
from .._core.delivery import deliver_fast
from .._core.driving import drive
from .._core.durable.run import deliver_run
from .._core.durable.run_state import RunState, StepCall
from .._core.durable.steps import take_fast
from .._core.protocol import Abandon, ClaimRequest
from .._values.breaker import Breaker
from .._values.context import ActiveClaim, active
from .._values.outcomes import Outcome
from .._values.wakeup import Wakeup
from ..errors import LeaseLostError, TwicesafeError
from .batch_jobs import ThreadJobs
from .checked_store import CheckedStore
from .flow_run import CLAIMS, RECORDING, FlowRun, invoke
from .guarded_store import GuardedStore, StoreGuard
from .shared_state import SharedState

__all__ = ["BlockingFlowRun", "BlockingRuntime"]

T = TypeVar("T")


class BlockingRuntime(SharedState):
    """Runs flows on one store, for all threads."""

    def __init__(self, store: Any, **shared: Any) -> None:
        if store.hidden_keys is not None:
            store = CheckedStore(store)
        super().__init__(store, store.perform_many, **shared)

    def break_circuit(self, settings: Breaker, fallback: Any) -> StoreGuard:
        """Stop asking a store that fails. A renewal goes to the store that granted its claim."""
        guard = self._guard_by(settings, GuardedStore, fallback)
        self.keeper._perform_many = GuardedStore(self.store, fallback, guard).perform_many
        return guard

    @overload
    def run(self, work: Call) -> Outcome[Any] | Raised: ...
    @overload
    def run(self, work: Flow[T]) -> T: ...
    def run(self, work: Call | Flow[Any]) -> Any:
        """Run a flow, or deliver a call."""
        run = BlockingFlowRun(self)
        try:
            if type(work) is not Call:
                result = drive(work, run.perform)  # type: ignore[arg-type]
            elif work.durable is None:
                result = deliver_fast(work, run.join(work), run)
            else:
                result = drive(deliver_run(work, run.join(work)), run.perform)
        except BaseException as error:
            run.interrupted(error)
            run.deliver(instead_of=error)
            raise
        finally:
            run.end()
        if run.cancelled is not None:
            run.deliver()
        return result

    def take(self, state: RunState, call: StepCall) -> Reply:
        """`run(take(state, call))`, in less time: a step holds no claim and leads no flight."""
        run = BlockingFlowRun(self)
        try:
            reply = take_fast(state, call, run)
        except BaseException as error:
            run.deliver(instead_of=error)
            raise
        if run.cancelled is not None:
            run.deliver()
        return reply


class BlockingFlowRun(FlowRun):
    """One flow in the caller's own thread."""

    __slots__ = ()

    _jobs: ThreadJobs | None

    def perform(self, command: Any) -> Any:
        act = _ACTS.get(type(command))
        return self._perform(command) if act is None else act(self, command)

    def claim(self, ask: ClaimRequest) -> Any:
        self._asked = ask  # until it is held or refused
        return self._perform(ask)

    def record(self, what: Any, perform: Callable[[Any], Any] | None = None) -> Any:
        """Record despite an interrupt: send the request again, and delay the interrupt."""
        perform = perform or self._perform
        try:
            return perform(what)
        except BaseException as error:
            self._put_off(error)
            return perform(what)

    def _put_off(self, error: BaseException) -> None:
        """Delay an interrupt during a recording until the flow has ended, but not a second one."""
        if isinstance(error, Exception) or self.cancelled is not None:
            raise error
        self.cancelled = error

    def interrupted(self, error: BaseException) -> None:
        """Release claims that were requested and never held."""
        inner = active.get()
        if inner is not None and inner in self._claims:  # just before or after its handler
            active.set(inner.outer)
        asked, self._asked = self._asked, None
        if asked is not None and not isinstance(error, TwicesafeError):
            try:
                self._give_back(asked)
            except Exception:
                return  # the lease expires by itself

    def _close_jobs(self) -> None:
        """Handlers that still run in their threads keep their claims until they end."""
        if self._jobs is not None:
            left = {claim: thread for claim, thread in self._jobs.close() if claim in self._claims}
            for claim, thread in left.items():
                thread.add_done_callback(partial(self._let_go, claim))
            self._claims = [claim for claim in self._claims if claim not in left]

    def _let_go(self, claim: ActiveClaim, _: Future[None]) -> None:
        self._runtime.keeper.remove(claim)

    # -- one method per command ---------------------------------------------------------------

    def _await_flight(self, command: AwaitFlight) -> Any:
        wakeup = Wakeup()
        flight = command.flight
        if self._wait_for(command, wakeup.set) and not wakeup.wait(command.seconds):
            self._flights.leave(flight, wakeup.set)
            return None
        return flight.answer or True

    def _invoke(self, command: Invoke) -> Reply:
        if command.claim is None:
            return invoke(None, command.run)
        return self.invoke(command.claim, command.run)

    def invoke(self, claim: ActiveClaim, run: Callable[[], Any]) -> Reply:
        if not claim.pid:
            self.hold(claim)
        elif claim.lost:
            return Raised(
                LostBeforeStartError("the claim expired before its handler started", key=claim.key)
            )
        reply = invoke(claim, run)
        if claim.pid != _forking.pid:
            raise LeaseLostError(
                "this process was forked in the handler; only the parent may end the claim",
                key=claim.key,
            )
        return reply

    def _detach(self, command: Detach) -> Any:
        """Run the rest of the flow in a new thread, which takes over the flight and the claims."""
        rest = BlockingFlowRun(self._runtime)
        rest._store, rest._perform = self._store, self._perform  # a claim ends where it was made
        asked, self._asked = self._asked, None
        rest._flight, self._flight = self._flight, None
        if command.claim in self._claims:  # an item of a batch: now the thread keeps its claim
            self._claims.remove(command.claim)
            rest._claims.append(command.claim)
        ended: Future[Any] = Future()

        def finish() -> None:
            try:
                ended.set_result(drive(command.flow, rest.perform))
            except BaseException as error:
                ended.set_exception(error)
            finally:
                rest.end()

        context = contextvars.copy_context()
        thread = threading.Thread(
            target=context.run, args=(finish,), name="twicesafe-handler", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no thread left: nothing has run, so the claim is given back
            self._asked = asked
            rest.end()
            if asked is None and command.claim is not None:  # an item of a batch, which goes on
                claim, kept = command.claim, self._runtime.abandoned_kept_ms
                self._perform(Abandon(claim.key.id, claim.owner, kept))
            raise
        try:
            return ended.result(command.timeout)
        except TimeoutError:
            if ended.done():
                raise
            raise StillRunningError(
                f"the handler did not end within timeout={command.timeout:g} s; it continues in "
                "its thread and keeps its claim until it ends"
            ) from None

    def _launch(self, command: Launch) -> list[tuple[int, Any]]:
        if command.jobs:
            if self.cancelled is not None:
                return [(index, NotStarted()) for index, _ in command.jobs]
            self._close_jobs()  # of the last part of this batch: all have ended
            self.hold_all(job.claim for _, job in command.jobs)
            self._jobs = ThreadJobs(command, self._run_job, self._put_off)
        assert self._jobs is not None
        return self._jobs.finished(command.linger, command.stop or self.cancelled is not None)

    def _run_job(self, job: Invoke | Detach) -> Reply:
        try:
            if isinstance(job, Detach):
                return Returned(self._detach(job))
            claim = job.claim
            return invoke(None, job.run) if claim is None else self.invoke(claim, job.run)
        except BaseException as error:
            if job.claim is not None and job.claim.pid != _forking.pid:
                raise  # in a child that was forked in the handler: the batch is the parent's
            return Raised(error)

    def _watch(self, command: Watch) -> None:
        self._mark_delayed()
        if self._store.capabilities.wake:
            self._store.watch(command.id, command.seconds)
        else:
            time.sleep(command.poll)

    def _sleep(self, command: Sleep) -> None:
        try:
            time.sleep(command.seconds)
        except BaseException as error:
            if not command.firm:
                raise
            self._put_off(error)

    def _within(self, command: Within) -> Any:
        return self._perform(command.request)

    def _on_transaction(self, command: OnTransaction) -> Any:
        try:
            return getattr(command.transaction, command.act)(*command.args)
        except Exception:
            raise
        except BaseException:
            command.transaction.rollback()
            raise

    def _perform_many(self, command: PerformMany) -> list[Any]:
        perform_many = self._store.perform_many
        if self._asks(command):
            return perform_many(command.requests)  # type: ignore[no-any-return]
        return self.record(command.requests, perform_many)  # type: ignore[no-any-return]


_ACTS: dict[type, Callable[[BlockingFlowRun, Any], Any]] = {
    **dict.fromkeys(CLAIMS, BlockingFlowRun.claim),
    JoinFlight: BlockingFlowRun._join_flight,
    AwaitFlight: BlockingFlowRun._await_flight,
    EndFlight: BlockingFlowRun._end_flight,
    Invoke: BlockingFlowRun._invoke,
    Detach: BlockingFlowRun._detach,
    Launch: BlockingFlowRun._launch,
    Watch: BlockingFlowRun._watch,
    Sleep: BlockingFlowRun._sleep,
    Within: BlockingFlowRun._within,
    PerformMany: BlockingFlowRun._perform_many,
    OnTransaction: BlockingFlowRun._on_transaction,
    **dict.fromkeys(RECORDING, BlockingFlowRun.record),
}
