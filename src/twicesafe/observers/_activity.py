"""What a receiver did lately, for `receiver.health()` and the dashboard: a tally, its `MetricHistory`, and trouble.

Most receivers are never asked for these numbers. So at first the last events are only kept; they
are counted when the numbers are first asked for. From then on every event is counted.

A snapshot is taken when the numbers are asked for, and whenever a full queue was counted, so a busy receiver
has frequent snapshots without a timer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from .. import events as ev
from .._values.clocks import WorkerClock, since_boot, wall_clock
from ..events import Event
from ._history import APART, LATELY, SEEN, SLICE, MetricHistory, Numbers, Slice
from ._metric import together
from ._tally import Tally

__all__ = ["APART", "LATELY", "SLICE", "Activity", "Slice", "Trouble"]

TROUBLES: Final = 500
"""Events of trouble that are kept."""

UNCOUNTED: Final = 4096
"""Events that are kept until the numbers are first asked for."""

_TROUBLE: Final = (
    *(ev.TakenOver, ev.LeaseLost, ev.RenewalRefused, ev.Failed, ev.Held, ev.Parked),
    *(ev.ResultNotKept, ev.Unprotected, ev.StoreFailed),
)


class Trouble(NamedTuple):
    at: int
    """Milliseconds of this process's clock."""
    event: Event


class Activity(MetricHistory):
    """An observer, and what it has seen since some minutes ago."""

    def __init__(
        self, clock: WorkerClock = since_boot, wall: Callable[[], int] = wall_clock
    ) -> None:
        tally = Tally(only=SEEN, counted=self.look)

        def numbers() -> Numbers:
            self.wake()
            return {(row.name, *values): cell for row in SEEN for values, cell in tally.of(row)}

        super().__init__(numbers, clock)
        self.trouble: deque[Trouble] = deque(maxlen=TROUBLES)
        """The last takeovers, refused writes, failures, held and parked keys."""

        def keep(event: Event) -> None:
            self.trouble.append(Trouble(wall(), event))

        def with_trouble(take: Callable[[type[Event]], ev.Observer | None]) -> dict[Any, Any]:
            found: dict[Any, Any] = {kind: take(kind) for kind in tally.subscriptions}
            for kind in _TROUBLE:
                found[kind] = together(tuple(filter(None, (found.get(kind), keep))))
            return found

        last: deque[Event] = deque(maxlen=UNCOUNTED)
        self._uncounted = [last]
        self._tally = tally
        self._counting = with_trouble(tally.subscriptions.get)
        self.subscriptions: dict[type[Event], ev.Observer] = with_trouble(lambda _: last.append)

    renewed: Callable[[], object] | None = None
    """Called when `subscriptions` have changed."""

    def wake(self) -> None:
        """Count from now on, and what was kept until now."""
        try:
            kept = self._uncounted.pop()  # by one thread only
        except IndexError:
            return
        self.subscriptions.update(self._counting)
        if self.renewed is not None:
            self.renewed()
        for event in list(kept):
            self._tally(event)

    def __call__(self, event: Event) -> None:
        take = self.subscriptions.get(type(event))
        if take is not None:
            take(event)
