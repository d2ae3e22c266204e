"""What a receiver did lately, for `receiver.health()` and the dashboard: a tally, its `History`, and trouble.

A snapshot is taken when the numbers are asked for, and whenever a full queue was counted, so a busy receiver
has a fine course without a timer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from .. import events as ev
from .._values.clocks import WorkerClock, since_boot, wall_clock
from ..events import Event
from ._history import APART, LATELY, SEEN, SLICE, History, Numbers, Slice
from ._metric import together
from ._tally import Tally

__all__ = ["APART", "LATELY", "SLICE", "Activity", "Slice", "Trouble"]

TROUBLES: Final = 500
"""Events of trouble that are kept."""

_TROUBLE: Final = (
    *(ev.TakenOver, ev.LeaseLost, ev.RenewalRefused, ev.Failed, ev.Held, ev.Parked),
    *(ev.ResultNotKept, ev.Unprotected, ev.StoreFailed),
)


class Trouble(NamedTuple):
    at: int
    """Milliseconds of this process's clock."""
    event: Event


class Activity(History):
    """An observer, and what it has seen since some minutes ago."""

    def __init__(
        self, clock: WorkerClock = since_boot, wall: Callable[[], int] = wall_clock
    ) -> None:
        tally = Tally(only=SEEN, counted=self.look)

        def numbers() -> Numbers:
            return {(row.name, *values): cell for row in SEEN for values, cell in tally.of(row)}

        super().__init__(numbers, clock)
        self.trouble: deque[Trouble] = deque(maxlen=TROUBLES)
        """The last takeovers, refused writes, failures, held and parked keys."""

        def keep(event: Event) -> None:
            self.trouble.append(Trouble(wall(), event))

        self.subscriptions: dict[type[Event], ev.Observer] = dict(tally.subscriptions)
        for kind in _TROUBLE:
            self.subscriptions[kind] = together(
                tuple(filter(None, (tally.subscriptions.get(kind), keep)))
            )

    def __call__(self, event: Event) -> None:
        take = self.subscriptions.get(type(event))
        if take is not None:
            take(event)
