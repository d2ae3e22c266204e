"""A trip: one flow under way, and what must be put back whatever becomes of it.

Its flight (others of this process may ride on it), its claims (the keeper renews their leases),
the claims that it asked for and does not hold yet (to be given back if it never does). The two runtimes
perform commands in their own way; what they keep is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .._core.commands import AwaitFlight, EndFlight, JoinFlight, Launch, PerformMany
from .._core.protocol import Abandon, ClaimRequest, Complete, Fail, Renew
from .._values.context import ActiveClaim
from . import shared_state as shared
from .single_flight import Flight, SingleFlight

__all__ = ["RECORDING", "FlowRun"]

RECORDING: Final = frozenset({Complete, Fail, Abandon, Renew})
"""What records, or asks whether it can: no cancellation and no interrupt breaks it off."""


class FlowRun:
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
    )

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._perform = runtime.store.perform
        self._flights: SingleFlight = runtime.flights
        self._flight: Flight | None = None
        self._claims: list[ActiveClaim] = []
        self._asked: ClaimRequest | list[ClaimRequest] | None = None
        """Claims that were asked for and are not held: whatever the answer, if there was one."""
        self._jobs: Any = None
        self.cancelled: BaseException | None = None
        """An interrupt or a cancellation that had to wait: it is raised when the flow has ended."""

    def hold(self, *claims: ActiveClaim) -> None:
        """Keep the leases of these claims alive until the trip ends."""
        for claim in claims:
            claim.pid = shared.process()
            if self._flight is not None:
                self._flights.depart(self._flight)
            self._claims.append(claim)
            self._runtime.keeper.add(claim)
        self._asked = None  # last: who is interrupted before this gives all of them back

    def hold_all(self, command: Launch) -> None:
        self.hold(*[job.claim for _, job in command.jobs if job.claim is not None])

    def _asks(self, command: PerformMany) -> bool:
        """Are these claims? Else they record."""
        if not command.requests or type(command.requests[0]) is not ClaimRequest:
            return False
        if self._asked is None:  # else they are some of these, asked again
            self._asked = command.requests
        return True

    def _give_back(self, asked: ClaimRequest | list[ClaimRequest]) -> Any:
        """By their owner tokens, and the way they were asked: in the same line, behind them."""
        kept = self._runtime.abandoned_kept_ms
        if isinstance(asked, ClaimRequest):
            return self._perform(Abandon(asked.key.id, asked.owner, kept))
        return self._store.perform_many([Abandon(one.key.id, one.owner, kept) for one in asked])

    def deliver(self, instead_of: BaseException | None = None) -> None:
        """The flow is over: raise the interrupt that had to wait, whatever else there is to say."""
        cancelled, self.cancelled = self.cancelled, None
        if cancelled is not None and cancelled is not instead_of:
            raise cancelled from instead_of

    def end(self) -> None:
        """Nothing of this flow is left behind: no lease renewed, nobody waiting for it in vain."""
        try:
            self._close_jobs()
            for claim in self._claims:
                self._runtime.keeper.remove(claim)
            self._leave_flight()
        except BaseException:
            self.end()  # interrupted in here: all of it bears repeating
            raise

    def _close_jobs(self) -> None:
        if self._jobs is not None:
            self._jobs.close()

    def _leave_flight(self) -> None:
        if self._flight is not None:
            self._flights.land(self._flight, None)
            self._flight = None

    def _board(self, command: JoinFlight) -> Flight | None:
        if self.cancelled is not None:
            raise self.cancelled  # a batch that was interrupted while it recorded starts no more
        self._asked = None  # a batch goes on: what it asked for is answered,
        self._leave_flight()  # and its last exchange ended without an answer
        mine = self._flight = Flight(command.id, command.fingerprint)
        flight = self._flights.board(mine)
        if flight is mine:
            return None
        self._flight = None
        return flight

    def _wait_for(self, command: AwaitFlight, wake: Callable[[], object]) -> bool:
        """Be woken by a flight; False: there is nothing to wait for."""
        if command.asks:
            return self._flights.ask(command.flight, wake)
        return self._flights.ride(command.flight, wake, command.most)

    def _stand_by(self) -> None:
        """This flow is about to wait for another process: callers that would not wait need not."""
        self._asked = None
        if self._flight is not None:
            self._flights.delay(self._flight)

    def _land(self, command: EndFlight) -> None:
        self._runtime.remember(self._flight, command.answer)
        if self._flight is not None:
            self._flights.land(self._flight, command.answer)
            self._flight = None
