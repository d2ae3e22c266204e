"""A flow run: one running flow, and what must be released however it ends.

That is its single flight (other callers may wait for it), its claims (the keeper renews their
leases), and the claims that it requested but does not hold yet (released if it never does). The two
runtimes perform commands differently, but keep the same state.

`invoke` runs a handler under its claim, in every runtime. The claim is active (`current_claim`) only while
the handler runs. Whatever the handler raises is the reply, cancellations and interrupts too. The flow must
learn that the attempt is over, so that tasks and threads that the handler left running see `lost`. The
flow's caller raises it afterwards.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from .. import _forking
from .._core.call import Call
from .._core.commands import (
    AwaitFlight,
    EndFlight,
    JoinFlight,
    PerformMany,
    Raised,
    Reply,
    Returned,
)
from .._core.durable.run_requests import FOREVER, FailRun, RecordStep, StartRun, Suspend
from .._core.handler_kind import refuse_coroutine
from .._core.protocol import Abandon, ClaimRequest, Complete, Fail, Renew
from .._core.searching import QUESTIONS
from .._values.context import ActiveClaim, active
from .single_flight import Flight, SingleFlight

if TYPE_CHECKING:
    import asyncio

__all__ = ["CLAIMS", "RECORDING", "FlowRun", "invoke", "invoke_async", "time_limit"]

CLAIMS: Final = frozenset({ClaimRequest, StartRun})
"""Requests whose claim is given back if its caller is interrupted before it runs."""

RECORDING: Final = frozenset({Complete, Fail, Abandon, Renew, RecordStep, Suspend, FailRun})
"""Requests that record: no cancellation and no interrupt stops them."""


class FlowRun:
    """The part that both runtimes share; each adds how it performs commands."""

    __slots__ = (
        "_asked",
        "_claims",
        "_flight",
        "_flights",
        "_jobs",
        "_perform",
        "_runtime",
        "_store",
        "cancelled",
        "refused",
    )

    def __init__(self, runtime: Any) -> None:
        self._flight: Flight | None = None  # first: `__del__` reads it, even if this method fails
        self._claims: list[ActiveClaim] = []
        self._runtime = runtime
        self._store = runtime.store
        self._perform = runtime.store.perform
        self._flights: SingleFlight = runtime.flights
        self._asked: ClaimRequest | list[ClaimRequest] | None = None
        """Claims that were requested and are not held: no answer came, or another worker has the key."""
        self._jobs: Any = None
        self.refused: Exception | None = None
        """Why an async store could not connect: the first request raises it."""
        self.cancelled: BaseException | None = None
        """A delayed interrupt or cancellation: it is raised when the flow has ended."""

    def stay_guarded(self) -> None:
        """For a flow that outlives outages: the circuit breaker counts each of its requests. Other
        flows keep the store that they began with.
        """
        guard = self._runtime.guard
        if guard is not None and self._store is self._runtime.store:
            self._store = self._runtime._in_front
            self._perform = self._store.perform

    def hold(self, claim: ActiveClaim) -> None:
        """Renew the lease of this claim until the run ends."""
        claim.pid = _forking.pid
        if self._flight is not None:
            self._flights.mark_started(self._flight)
        self._claims.append(claim)
        self._runtime.keeper.add(claim)
        self._asked = None  # an interrupt before this line releases all of them

    def hold_all(self, claims: Iterable[ActiveClaim | None]) -> None:
        """`hold`, for a flow that continues claiming: claims that are settled are dropped."""
        kept = []
        for claim in self._claims:
            if claim.settled:
                self._runtime.keeper.remove(claim)  # else it would keep them until its next round
            else:
                kept.append(claim)
        held = [claim for claim in claims if claim is not None]
        for claim in held:
            claim.pid = _forking.pid
        self._claims = kept + held
        if self._flight is not None:
            self._flights.mark_started(self._flight)
        self._runtime.keeper.add_all(held)
        self._asked = None  # an interrupt before this line releases all of them

    def _asks(self, command: PerformMany) -> bool:
        """True for a batch of claims or questions; other batches record."""
        kind = type(command.requests[0]) if command.requests else None
        if kind is not ClaimRequest:
            return kind in QUESTIONS
        first, asked = command.requests[0], self._asked
        if not (isinstance(asked, list) and any(first is one for one in asked)):  # not a retry
            self._asked = command.requests
        return True

    def _give_back(self, asked: ClaimRequest | list[ClaimRequest]) -> Any:
        """Release claims by owner token, queued behind the requests that asked for them."""
        kept = self._runtime.abandoned_kept_ms
        if isinstance(asked, ClaimRequest):
            kept = FOREVER if type(asked) is StartRun else kept
            return self._perform(Abandon(asked.key.id, asked.owner, kept))
        return self._store.perform_many([Abandon(one.key.id, one.owner, kept) for one in asked])

    def deliver(self, instead_of: BaseException | None = None) -> None:
        """The flow has ended: raise the delayed interrupt, if there is one."""
        cancelled, self.cancelled = self.cancelled, None
        if cancelled is not None and cancelled is not instead_of:
            raise cancelled from instead_of

    def end(self) -> None:
        """Clean up: stop renewing its leases, and wake callers that wait for its flight."""
        try:
            if self._jobs is not None:
                self._close_jobs()
            for claim in self._claims:
                self._runtime.keeper.remove(claim)
            self._claims = []
            if self._flight is not None:
                self._flights.end(self._flight, None)
                self._flight = None
        except BaseException:
            self.end()  # interrupted in here: every step can be repeated
            raise

    def __del__(self) -> None:
        """An interrupt can skip `end`, even in a `finally`. Nothing may wait for this run then."""
        if self._flight is not None or self._claims:
            self.end()

    def _close_jobs(self) -> None:
        self._jobs.close()

    def leave_flight(self) -> None:
        """Other callers in this process no longer wait for this flow: they ask the store."""
        if self._flight is not None:
            self._flights.end(self._flight, None)
            self._flight = None

    def join(self, call: Call) -> Flight | None:
        """Lead the flight of this call's key (None), or get the one that another caller leads."""
        mine = Flight(call.key.id, call.fingerprint, self._runtime.cache is not None)
        self._flight = call.flight = mine  # first: an interrupt after the next line must end it
        flight = self._flights.table.setdefault(mine.id, mine)  # atomic: exactly one thread leads
        if flight is mine:
            return None
        self._flight = call.flight = None
        return flight

    def _join_flight(self, command: JoinFlight) -> Flight | None:
        if self.cancelled is not None:
            raise self.cancelled  # a batch that was interrupted while recording starts no more
        self._asked = None  # the next item of a batch: earlier claims are answered,
        self.leave_flight()  # and the last flight ended without an answer
        return self.join(command.call)

    def _wait_for(self, command: AwaitFlight, wake: Callable[[], object]) -> bool:
        """Register to be woken by a flight; False: there is nothing to wait for."""
        if command.asks:
            return self._flights.ask(command.flight, wake)
        return self._flights.wait(command.flight, wake, command.most)

    def _mark_delayed(self) -> None:
        """This flow is about to wait for another process: wake callers that must not wait."""
        self._asked = None
        if self._flight is not None:
            self._flights.mark_delayed(self._flight)

    def _end_flight(self, command: EndFlight) -> None:
        self._runtime.remember(self._flight, command.answer)
        if self._flight is not None:
            self._flights.end(self._flight, command.answer)
            self._flight = None


time_limit: ContextVar[Callable[[], asyncio.Timeout | None]] = ContextVar(
    "time_limit", default=lambda: None
)
"""The time-out of the async handler that runs now: it knows whether it was the one that cancelled.

A weak reference, because a time-out keeps its task, and tasks that the handler starts keep this."""


def invoke(claim: ActiveClaim | None, run: Callable[[], Any]) -> Reply:
    """Run a blocking handler in the caller's own thread."""
    token = None
    if claim is not None:
        claim.outer = outer = active.get()
        if outer is not None:
            outer._unlink_ended()
        token = active.set(claim)
    try:
        value = run()
    except BaseException as error:
        return Raised(error)
    finally:
        if token is not None:
            active.reset(token)
    if type(value) is CoroutineType:
        return Raised(refuse_coroutine(value))
    return Returned(value)


async def invoke_async(
    claim: ActiveClaim | None, run: Callable[[], Any], seconds: float | None = None
) -> Reply:
    """Run an async handler in the caller's own task. It is cancelled after `seconds`."""
    token = limit = None
    if claim is not None:
        claim.outer = outer = active.get()
        if outer is not None:
            outer._unlink_ended()
        token = active.set(claim)
    try:
        value = run()
        if type(value) is CoroutineType or hasattr(value, "__await__"):
            if seconds is None:
                value = await value
            else:
                import asyncio

                async with asyncio.timeout(seconds) as limit:
                    before = time_limit.set(weakref.ref(limit))
                    try:
                        value = await value
                    finally:
                        time_limit.reset(before)
    except BaseException as error:
        is_over = limit is not None and limit.expired()
        if is_over and type(error) is TimeoutError and not error.args:  # asyncio's own has no text
            error.args = (f"it did not end within timeout={seconds:g} s, and was cancelled",)
        return Raised(error)
    finally:
        if token is not None:
            active.reset(token)
    if type(value) is CoroutineType:
        return Raised(refuse_coroutine(value))
    return Returned(value)
