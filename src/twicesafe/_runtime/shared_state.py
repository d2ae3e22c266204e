"""What both runtimes share: single flights, the lease keeper, the replay cache, fork safety."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._core.protocol import Claimed
from .._forking import in_child
from .._values.breaker import Breaker
from .._values.clocks import WorkerClock, since_boot
from .._values.closed import closed
from .._values.settings import expect, is_whole
from ..events import Event
from .guarded_store import StoreGuard
from .lease_keeper import LeaseKeeper
from .replay_cache import ReplayCache
from .single_flight import Flight, SingleFlight

__all__ = ["SharedState"]


class SharedState:
    """One per opened store; all receivers made by `options` share it."""

    store: Any
    abandoned_kept_ms = 86_400_000
    """How long a released record is kept if its policy is not known here."""

    def __init__(
        self,
        store: Any,
        perform_many: Callable[[Sequence[Any]], list[Any]],
        *,
        notify: Callable[[Event], None],
        cache: int = 0,
        clock: WorkerClock = since_boot,
    ) -> None:
        expect(is_whole(cache, 0), "cache", cache, "use how many results to keep, 0 or more")
        self.store = store
        self.recall: Callable[[bytes], Claimed | None] | None = (
            store.recall if store.recalls else None
        )
        self.clock = clock
        self.flights = SingleFlight()
        self.keeper = LeaseKeeper(perform_many, clock, notify)
        self.cache: ReplayCache | None = ReplayCache(cache, clock) if cache else None
        self._opened = store, self.cache, self.recall
        self._blocks = 0
        self._transactions: Any = None
        in_child(self._forget_all)

    guard: StoreGuard | None = None
    """The circuit breaker; None: there is none."""

    def _guard_by(
        self, settings: Breaker, guarded: Callable[..., Any], fallback: Any
    ) -> StoreGuard:
        """Put this breaker in front of the store when it fails."""
        plain = self.store

        def swap(on: bool) -> None:
            before, after = (plain, in_front) if on else (in_front, plain)
            if self.store is before:  # else it was closed
                self.store = after

        self.guard = guard = StoreGuard(settings, self.keeper._notify, self.clock, swap)
        self._in_front = in_front = guarded(plain, fallback, guard)
        return guard

    def enter(self) -> None:
        """A `with` block begins. One that follows another, on a new event loop for example, opens
        the store again."""
        self._blocks += 1
        self.store, self.cache, self.recall = self._opened
        if self.guard is not None and self.guard.is_in_front:
            self.store = self._in_front  # the outage continues: only the guard sees its end

    def leave(self) -> None:
        self._blocks -= 1

    def shut(self) -> Any:
        """Return the store, to be closed, and refuse further flows unless they are in a `with`
        block. Running flows still have the store."""
        store = self._opened[0]
        if self._blocks <= 0:
            self.store, self.cache, self.recall = closed(store, "receiver"), None, None
        self.keeper.close()
        return store

    def transactions(self) -> Any:
        """The programs for steps in transactions of users."""
        if self._transactions is None:
            from .step_transaction import StepTransactions

            self._transactions = StepTransactions(self._opened[0])
        return self._transactions

    def remember(self, flight: Flight | None, answer: Claimed) -> None:
        """Cache an answer that the store has confirmed, if there is a cache."""
        cache = self.cache
        if cache is not None and flight is not None:
            cache.put(flight.id, answer)
            if flight.outdated:  # looked at after the write, as `uncache` marks before it drops
                cache.drop(flight.id)

    def uncache(self, id: bytes) -> None:  # noqa: A002
        """An operator changed this record, or may have: drop the cached answer, and any answer that
        a delivery read from the store before.
        """
        cache = self.cache
        if cache is not None:
            self.flights.outdate(id)
            cache.drop(id)

    def _forget_all(self) -> None:
        """In a forked child: the claims and the waiting callers are the parent's."""
        self.flights.forget_all()
        self.keeper.forget_all()
