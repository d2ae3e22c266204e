"""What a metric is, and the words that the table of metrics is written with.

A metric has sources: for each event, the values of its labels and the number. They take many events of
one kind at once, which costs less than one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias

import msgspec

from .. import events as ev

__all__ = [
    "AGES",
    "FAST",
    "SHARES",
    "SLOW",
    "Columns",
    "EventSource",
    "Kind",
    "Metric",
    "Numbers",
    "compiled",
    "counted",
    "counted_by",
    "counter",
    "each",
    "gauge",
    "grouped",
    "histogram",
    "number_of",
    "store_seconds",
    "together",
]

Kind: TypeAlias = Literal["counter", "histogram", "gauge"]
Unit: TypeAlias = Literal["", "seconds", "bytes", "ratio"]
Numbers: TypeAlias = Iterable[tuple[tuple[str, ...], float]]
"""What one event adds to a metric: values of its labels, and a number for each."""

Columns: TypeAlias = Iterable[tuple[tuple[str, ...], Sequence[float]]]
"""What many events add to a metric: values of its labels, and numbers for each."""

FAST: Final = (*(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),)
"""Seconds of a store request."""

SLOW: Final = (*(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),)
"""Seconds of handlers, waits and HTTP responses."""

AGES: Final = (
    *(1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 21600.0, 43200.0),
    *(86400.0, 172800.0, 259200.0, 604800.0, 1209600.0, 2592000.0),
)
"""Seconds from the answer to its duplicate: up to thirty days."""

SHARES: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)


class EventSource(msgspec.Struct, frozen=True):
    """How one kind of event changes a metric."""

    event: type[ev.Event]
    columns: Callable[[Sequence[Any]], Columns]
    """Takes many events of this kind at once, which costs less than one by one."""
    keyed: bool = False
    """The event has a key, so an observer may add the label ``scope``."""

    def numbers(self, event: ev.Event) -> Numbers:
        return [(labels, one) for labels, some in self.columns((event,)) for one in some]


class Metric(msgspec.Struct, frozen=True):
    group: str
    name: str
    """Without the prefix ``twicesafe_``; a counter ends with ``_total``."""
    kind: Kind
    meaning: str
    labels: dict[str, tuple[str, ...]]
    """At most one label, and the values that it has; none: they are not known in advance."""
    sources: tuple[EventSource, ...]
    unit: Unit = ""
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        return f"twicesafe_{self.name}"

    @property
    def is_keyed(self) -> bool:
        return bool(self.sources) and all(source.keyed for source in self.sources)

    def known_values(self) -> list[tuple[str, ...]]:
        """The label values that are exported from the start: an increase from nothing to 1 is seen
        only if there was a 0 before."""
        if not self.labels:
            return [()]
        (values,) = self.labels.values()
        return [(value,) for value in values]


# --- rows of the table -----------------------------------------------------------------------------


def counter(name: str, meaning: str, *sources: EventSource, **label: tuple[str, ...]) -> Metric:
    return Metric("", name, "counter", meaning, label, sources)


def gauge(
    name: str, meaning: str, *sources: EventSource, unit: Unit = "", **label: tuple[str, ...]
) -> Metric:
    return Metric("", name, "gauge", meaning, label, sources, unit)


def histogram(
    name: str,
    meaning: str,
    *sources: EventSource,
    buckets: tuple[float, ...],
    unit: Unit = "seconds",
    **label: tuple[str, ...],
) -> Metric:
    return Metric("", name, "histogram", meaning, label, sources, unit, buckets)


def grouped(group: str, *rows: Metric) -> Iterable[Metric]:
    """The rows of one group, in their order."""
    return (msgspec.structs.replace(row, group=group) for row in rows)


# --- sources: how events become numbers ------------------------------------------------------------


def each(
    event: type[ev.Event], numbers: Callable[[Any], Numbers], keyed: bool = False
) -> EventSource:
    """Takes the events one by one: for those that are rare."""
    return EventSource(
        event,
        lambda events: [(labels, (one,)) for seen in events for labels, one in numbers(seen)],
        keyed,
    )


def counted(event: type[ev.Event], *labels: str) -> EventSource:
    """Counts the event; the values of the labels are fixed."""
    return EventSource(event, lambda events: ((labels, (float(len(events)),)),), _has_key(event))


def counted_by(event: type[ev.Event], labels: Callable[[Any], tuple[str, ...]]) -> EventSource:
    """Counts the event by what it says."""
    return each(event, lambda seen: ((labels(seen), 1.0),), _has_key(event))


def number_of(event: type[ev.Event], attribute: str, *labels: str) -> EventSource:
    """Adds, observes or sets a number of the event."""
    number = attrgetter(attribute)
    return EventSource(event, lambda events: ((labels, [*map(number, events)]),), _has_key(event))


def store_seconds(event: type[ev.Event], operation: str) -> EventSource:
    """Observes the store's seconds, if the event has them."""
    labels = (operation,)
    return EventSource(
        event,
        lambda events: ((labels, [seen.store for seen in events if seen.store is not None]),),
        keyed=True,
    )


def _has_key(event: type[ev.Event]) -> bool:
    return event.__annotations__.get("key") == "Key"


# --- for observers ---------------------------------------------------------------------------------


def together(updates: tuple[Callable[[Any], object], ...]) -> Callable[[Any], object]:
    """One call for all of them."""
    if len(updates) == 1:
        return updates[0]

    def update_all(event: Any) -> None:
        for update in updates:
            update(event)

    return update_all


def compiled(
    update: Callable[[Metric, EventSource], Callable[[Any], object]], rows: Iterable[Metric]
) -> dict[type[ev.Event], tuple[Callable[[Any], object], ...]]:
    """For each event, what to call: one update for each of these metrics that comes from it."""
    found: dict[type[ev.Event], list[Callable[[Any], object]]] = {}
    for row in rows:
        for source in row.sources:
            found.setdefault(source.event, []).append(update(row, source))
    return {event: tuple(updates) for event, updates in found.items()}
