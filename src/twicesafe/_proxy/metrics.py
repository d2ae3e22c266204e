"""Counters of a worker, and the Prometheus page that adds them up over all workers.

The metrics are those of the table (`observers._metric_table`). Counts are plain numbers by name and label, so
that workers can send them as JSON.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from contextvars import ContextVar
from itertools import accumulate
from typing import Any, Final

import msgspec

from .. import events
from .._values.keys import Key
from ..observers._log import LogObserver
from ..observers._metric import Metric
from ..observers._metric_table import METRICS, REFUSALS, metric
from ..observers._tally import Cell, Tally

__all__ = ["Metrics", "WorkerCount", "added", "page"]

ACCESS: Final = logging.getLogger("twicesafe.access")


class WorkerCount(msgspec.Struct, frozen=True):
    """One metric of one worker, for one value of its label."""

    name: str
    values: tuple[str, ...]
    cell: Cell


class RequestInProgress:
    """A request in progress: its key, and its outcome so far."""

    __slots__ = ("began", "key", "method", "outcome", "route")

    def __init__(self, method: str, route: str) -> None:
        self.method, self.route = method, route
        self.key: Key | None = None
        self.outcome = ""
        self.began = time.monotonic()


_serving: ContextVar[RequestInProgress | None] = ContextVar("twicesafe_proxy_request", default=None)

_OUTCOMES: Final = {
    events.Started: "first",
    events.Replayed: "replayed",
    events.Unprotected: "unprotected",
}


class Metrics:
    """Counts of this process; also an observer of its receiver. ``access``: log every request."""

    def __init__(self, *, access: bool = False) -> None:
        self._tally = Tally(only=METRICS, zeros=True)
        self._log = LogObserver(ACCESS) if access else None
        self._in_flight = 0

    def __call__(self, event: events.Event) -> None:
        self._tally(event)
        serving = _serving.get()
        if serving is not None and serving.key is None:
            if isinstance(event, events.Refused):
                serving.key, serving.outcome = event.key, REFUSALS.get(event.reason, "refused")
            elif (outcome := _OUTCOMES.get(type(event))) is not None:
                serving.key, serving.outcome = event.key, outcome  # type: ignore[attr-defined]

    def upstream_failed(self, reason: str) -> None:
        self._tally(events.UpstreamFailed(reason))

    def begin(self, method: str, route: str) -> RequestInProgress:
        self._in_flight += 1
        serving = RequestInProgress(method, route)
        _serving.set(serving)
        return serving

    def end(self, serving: RequestInProgress, status: int) -> None:
        self._in_flight -= 1
        took = time.monotonic() - serving.began
        event = events.Responded(
            serving.key, serving.method, serving.route, status, took, serving.outcome
        )
        self._tally(event)
        if self._log is not None:
            self._log(event)

    def counts(self) -> list[WorkerCount]:
        found = [
            WorkerCount(row.name, values, cell)
            for row in METRICS
            for values, cell in self._tally.of(row)
        ]
        return [*found, WorkerCount("proxy_in_flight", (), [float(self._in_flight)])]


def added(counts: Iterable[WorkerCount]) -> list[WorkerCount]:
    """Counters and histograms added up; a gauge disappears with its worker."""
    total: dict[tuple[str, tuple[str, ...]], Cell] = {}
    for count in counts:
        if metric(count.name).kind != "gauge":
            _add(total, count)
    return [WorkerCount(name, values, cell) for (name, values), cell in total.items()]


def _add(total: dict[tuple[str, tuple[str, ...]], Cell], count: WorkerCount) -> None:
    place = count.name, count.values
    before = total.get(place)
    gauge = metric(count.name).kind == "gauge" and count.name != "proxy_in_flight"
    if before is None or gauge:  # all workers have counted the same store: one of them is enough
        total[place] = list(count.cell)
    else:
        total[place] = [a + b for a, b in zip(before, count.cell, strict=True)]


def page(counts: Iterable[WorkerCount], workers: int) -> str:
    """The text that Prometheus reads."""
    total: dict[tuple[str, tuple[str, ...]], Cell] = {("proxy_workers", ()): [float(workers)]}
    for count in counts:
        _add(total, count)
    lines: list[str] = []
    for row in METRICS:
        meaning = row.meaning.replace("`", "")
        lines += [f"# HELP {row.full_name} {meaning}", f"# TYPE {row.full_name} {row.kind}"]
        for (name, values), cell in sorted(total.items()):
            if name == row.name:
                lines += _samples(row, dict(zip(row.labels, values, strict=True)), cell)
    return "\n".join(lines) + "\n"


def _samples(row: Metric, labels: dict[str, str], cell: Cell) -> list[str]:
    if row.kind != "histogram":
        return [f"{row.full_name}{_braced(labels)} {_number(cell[0])}"]
    bounds = [*(str(bound) for bound in row.buckets), "+Inf"]
    counts = list(accumulate(cell[:-1]))
    return [
        *(
            f"{row.full_name}_bucket{_braced({**labels, 'le': bound})} {_number(count)}"
            for bound, count in zip(bounds, counts, strict=True)
        ),
        f"{row.full_name}_sum{_braced(labels)} {cell[-1]}",
        f"{row.full_name}_count{_braced(labels)} {_number(counts[-1])}",
    ]


def _braced(labels: dict[str, Any]) -> str:
    return (
        "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
        if labels
        else ""
    )


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)
