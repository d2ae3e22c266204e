"""A tally: the numbers of the table, counted in plain lists, which exporters read when they export.

An event is only put into the queue of its kind. The queues are counted when one is long, or when a reader
asks. Many events at once cost less than each of them right after a request to the store.

    counter, gauge   [value]
    histogram        [count in the first bucket, …, count above the last, sum]

Prometheus, OpenTelemetry and `receiver.health()` read it.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from .._forking import RenewedLock
from .._values.keys import Key
from ..events import Event
from ._metric import EventSource, Metric, compiled
from ._metric_table import OF_RECEIVERS

__all__ = ["Cell", "Tally", "label_of"]

Cell: TypeAlias = list[float]
_Update: TypeAlias = Callable[[Any], object]

_log = logging.getLogger("twicesafe")

QUEUE: Final = 256
"""Events of one kind that wait to be counted."""


class Tally:
    """Counts events. ``scope``: adds a label made from the key, see `PrometheusObserver`.

    ``only``: these metrics. ``zeros``: show what is known to be counted before it happens. ``counted``:
    called when a full queue was counted.
    """

    def __init__(
        self,
        scope: Callable[[Key], str] | None = None,
        only: Sequence[Metric] = OF_RECEIVERS,
        *,
        zeros: bool = False,
        counted: Callable[[], object] | None = None,
    ) -> None:
        self.scope = scope
        self._lock = RenewedLock()
        self._cells: dict[str, dict[tuple[str, ...], Cell]] = {row.name: {} for row in only}
        for row in only if zeros else ():
            if row.kind != "gauge" and (scope is None or not row.is_keyed):
                self._cells[row.name] = {values: _empty(row) for values in row.known_values()}
        self._updates = compiled(self._update, only)
        self._queues: dict[type[Event], deque[Event]] = {kind: deque() for kind in self._updates}
        self.subscriptions = {
            kind: self._taker(queue, counted) for kind, queue in self._queues.items()
        }

    def _taker(
        self, queue: deque[Event], counted: Callable[[], object] | None
    ) -> Callable[[Event], None]:
        put, count = queue.append, self._count

        def take(event: Event) -> None:
            put(event)
            if len(queue) > QUEUE:
                count()
                if counted is not None:
                    counted()

        return take

    def __call__(self, event: Event) -> None:
        take = self.subscriptions.get(type(event))
        if take is not None:
            take(event)

    def labels_of(self, row: Metric) -> tuple[str, ...]:
        return (*row.labels, *(("scope",) if self.scope is not None and row.is_keyed else ()))

    def of(self, row: Metric) -> list[tuple[tuple[str, ...], Cell]]:
        """The values of its labels and a copy of the numbers, for each that was seen."""
        self._count()
        with self._lock.now:
            return [(values, list(cell)) for values, cell in self._cells[row.name].items()]

    # -- counting -----------------------------------------------------------------------------

    def _count(self) -> None:
        with self._lock.now:
            for kind, queue in self._queues.items():
                # Only under the lock, so what is there now is still there.
                events = [queue.popleft() for _ in range(len(queue))]
                for update in self._updates[kind] if events else ():
                    update(events)

    def _update(self, row: Metric, source: EventSource) -> _Update:
        cells, columns, bounds = self._cells[row.name], source.columns, row.buckets
        scope = self.scope if row.is_keyed else None
        is_gauge = row.kind == "gauge"

        def update(events: Sequence[Any], *more: str) -> None:
            for labels, numbers in columns(events):
                if not numbers:
                    continue
                cell = cells.get((*labels, *more))
                if cell is None:
                    cell = cells[*labels, *more] = _empty(row)
                if bounds:
                    _add_to_buckets(cell, bounds, sorted(numbers))
                elif is_gauge:
                    cell[0] = numbers[-1]
                else:
                    cell[0] += sum(numbers)

        def update_scoped(events: Sequence[Any]) -> None:
            assert scope is not None
            for event in events:
                try:
                    update((event,), label_of(scope, event.key))
                except Exception:  # of the user's scope function
                    _log.exception("%s was not counted", type(event).__name__)

        return update if scope is None else update_scoped


def _add_to_buckets(cell: Cell, bounds: Sequence[float], numbers: list[float]) -> None:
    """Sorted numbers are counted by bucket, not one by one: a third of the time for a full queue."""
    before = 0
    for index, bound in enumerate(bounds):
        until = bisect_right(numbers, bound, before)
        cell[index] += until - before
        before = until
    cell[-2] += len(numbers) - before
    cell[-1] += sum(numbers)


def label_of(scope: Callable[[Key], str], key: Key) -> str:
    """The label of a key. One that is not text would break every later scrape of the registry."""
    label: object = scope(key)
    if not isinstance(label, str):
        raise TypeError(f"scope= must return text, not {type(label).__name__}")
    return label


def _empty(row: Metric) -> Cell:
    return [0.0] * (len(row.buckets) + 2 if row.buckets else 1)
