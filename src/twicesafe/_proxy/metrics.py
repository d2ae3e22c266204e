"""Counters of a worker, and the Prometheus page that sums them over all workers.

Counts are plain numbers by name and label, so that workers can send them as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from .. import events

__all__ = ["Count", "Metrics", "added", "page"]


class Count(msgspec.Struct, frozen=True):
    """One number of one worker."""

    name: str
    label: str
    value: float


NAMED: Final[dict[str, tuple[str, str, str]]] = {
    "responses": (
        "counter",
        "status",
        "Responses sent to clients, by status; 0: no response was started.",
    ),
    "keys": ("counter", "outcome", "Results of requests with a key."),
    "upstream_failures": (
        "counter",
        "reason",
        "Requests without a complete answer from the upstream.",
    ),
    "in_flight": ("gauge", "", "Requests being served now."),
}

_OUTCOMES: Final = {
    events.Started: "first",
    events.Replayed: "replay",
    events.Completed: "recorded",
    events.ResultNotKept: "not_kept",
    events.LeaseLost: "lease_lost",
    events.StoreFailed: "store_failed",
    events.Unprotected: "unprotected",
}
_REFUSALS: Final = {
    "FingerprintMismatchError": "mismatch",
    "StillInProgressError": "in_flight",
    "TooManyWaitersError": "in_flight",
    "HeldError": "unknown",
    "ParkedError": "unknown",
    "ResultUnavailableError": "not_kept",
}


class Metrics:
    """Counts of this process; also an observer of its receiver."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._in_flight = 0

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.Refused):
            self.count("keys", _REFUSALS.get(event.reason, "refused"))
        elif (outcome := _OUTCOMES.get(type(event))) is not None:
            self.count("keys", outcome)

    def count(self, name: str, label: str) -> None:
        self._counts[name, label] += 1

    def begin(self) -> None:
        self._in_flight += 1

    def end(self, status: int) -> None:
        self._in_flight -= 1
        self._counts["responses", str(status)] += 1

    def counts(self) -> list[Count]:
        found = [Count(name, label, number) for (name, label), number in self._counts.items()]
        return [*found, Count("in_flight", "", self._in_flight)]


def added(counts: Iterable[Count]) -> list[Count]:
    """Counters summed by name and label; a gauge disappears with its worker."""
    total: Counter[tuple[str, str]] = Counter()
    for count in counts:
        if NAMED[count.name][0] == "counter":
            total[count.name, count.label] += int(count.value)
    return [Count(name, label, number) for (name, label), number in total.items()]


def page(counts: Iterable[Count], workers: int) -> str:
    """The text that Prometheus reads."""
    total: Counter[tuple[str, str]] = Counter()
    for count in counts:
        total[count.name, count.label] += int(count.value)
    lines = [
        "# HELP twicesafe_proxy_workers Worker processes that answer.",
        "# TYPE twicesafe_proxy_workers gauge",
        f"twicesafe_proxy_workers {workers}",
    ]
    for name, (kind, label, help_) in NAMED.items():
        full = f"twicesafe_proxy_{name}" + ("_total" if kind == "counter" else "")
        lines += [f"# HELP {full} {help_}", f"# TYPE {full} {kind}"]
        for (found, value), number in sorted(total.items()):
            if found == name:
                lines.append(
                    f'{full}{{{label}="{value}"}} {number}' if label else f"{full} {number}"
                )
    return "\n".join(lines) + "\n"
