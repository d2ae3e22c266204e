"""What both runtimes share: single flights, the lease keeper, the replay cache, fork safety."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from .._core.protocol import Claimed
from .._values.clocks import WorkerClock, since_boot
from ..events import Event
from .lease_keeper import LeaseKeeper
from .replay_cache import ReplayCache
from .single_flight import Flight, SingleFlight

__all__ = ["SharedState"]

_everyone: weakref.WeakSet[SharedState] = weakref.WeakSet()


class SharedState:
    """One per opened store; all receivers made by `options` share it."""

    abandoned_kept_ms = 86_400_000
    """How long a released record is kept if its policy is not known here."""

    def __init__(
        self,
        perform_many: Callable[[Sequence[Any]], list[Any]],
        *,
        notify: Callable[[Event], None],
        cache: int = 0,
        clock: WorkerClock = since_boot,
    ) -> None:
        self.clock = clock
        self.flights = SingleFlight()
        self.keeper = LeaseKeeper(perform_many, clock, notify)
        self.cache = ReplayCache(cache, clock) if cache else None
        _everyone.add(self)

    def remember(self, flight: Flight | None, answer: Claimed) -> None:
        """Cache an answer that the store has confirmed, if there is a cache."""
        if self.cache is not None and flight is not None:
            self.cache.put(flight.id, answer)


_process = os.getpid()


def process() -> int:
    return _process


def _after_fork() -> None:
    global _process
    _process = os.getpid()
    for runtime in list(_everyone):
        runtime.flights.forget_all()
        runtime.keeper.forget_all()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
