"""`PrometheusObserver`: the table of metrics in a registry of prometheus-client.

Your application serves the registry as it does for its own metrics. Several processes that serve one
page use the multiprocess mode of prometheus-client (``PROMETHEUS_MULTIPROC_DIR``). It adds up counters and
histograms, and shows the most recent value of a gauge, because all processes count the same store.

In one process the numbers are counted in a tally and read at each scrape, which costs a third of the
library's own objects. The multiprocess mode needs those objects, so there they are used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, Final
from weakref import WeakKeyDictionary

from .._forking import RenewedLock
from .._values.drivers import driver
from .._values.keys import Key
from ..errors import ConfigurationError
from ..events import Event
from ._metric import EventSource, Metric, compiled, together
from ._metric_table import OF_RECEIVERS
from ._tally import Cell, Tally, label_of

with driver("prometheus_client"):
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.registry import Collector

__all__ = ["PrometheusObserver"]


class PrometheusObserver:
    """Counts and times into a registry. Observers of one registry share its metrics.

    ``scope``: a function of the key whose text becomes the label ``scope`` of every metric that comes
    from keys. Return one of a few values, such as the operation: each value is a time series.
    """

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        *,
        scope: Callable[[Key], str] | None = None,
    ) -> None:
        found = _counting.get(registry)
        self._registry = registry
        if found is None:
            several = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
            if several is not None and not (os.path.isdir(several) and os.access(several, os.W_OK)):
                raise ConfigurationError(
                    f"PROMETHEUS_MULTIPROC_DIR={several!r} is not a directory that this process can write to: "
                    "create it, empty, before the first process starts, or unset the variable"
                )
            made = _Read if several is None else _Objects
            found = _counting[registry] = made(registry, scope)
        elif found.scope is not scope:
            raise ConfigurationError(
                "this registry already has a PrometheusObserver with another scope=: use the same "
                "function, or another registry"
            )
        self._counts = found
        self.subscriptions = found.subscriptions

    @classmethod
    def _joining(cls, registry: CollectorRegistry = REGISTRY) -> PrometheusObserver:
        """An observer that counts as those of the registry do, if it has some."""
        found = _counting.get(registry)
        return cls(registry, scope=None if found is None else found.scope)

    def __call__(self, event: Event) -> None:
        update = self.subscriptions.get(type(event))
        if update is not None:
            update(event)


class _Read(Tally, Collector):
    """One process: a tally that the registry reads."""

    def __init__(self, registry: CollectorRegistry, scope: Callable[[Key], str] | None) -> None:
        super().__init__(scope, zeros=True)
        registry.register(self)

    def collect(self) -> Iterator[Any]:
        for row in OF_RECEIVERS:
            family = _family(row, self.labels_of(row))
            for values, cell in self.of(row):
                if row.kind == "histogram":
                    family.add_metric(values, _cumulative(row, cell), cell[-1])
                else:
                    family.add_metric(values, cell[0])
            yield family


def _family(row: Metric, labels: tuple[str, ...]) -> Any:
    kinds = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    return kinds[row.kind](row.full_name, _help(row), labels=labels)


def _cumulative(row: Metric, cell: Cell) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in row.buckets), "+Inf"]
    return list(zip(bounds, accumulate(cell[:-1]), strict=True))


def _help(row: Metric) -> str:
    return row.meaning.replace("`", "")


class _Objects:
    """Several processes: the library's own objects, which share their numbers through files."""

    def __init__(self, registry: CollectorRegistry, scope: Callable[[Key], str] | None) -> None:
        self.scope = scope
        self._registry, self._lock = registry, RenewedLock()
        self._made = {row.name: self._new(row) for row in OF_RECEIVERS if row.kind != "gauge"}
        updates = compiled(self._update, OF_RECEIVERS)
        self.subscriptions = {event: together(some) for event, some in updates.items()}

    def _update(self, row: Metric, source: EventSource) -> Callable[[Any], None]:
        numbers = source.numbers
        scope = self.scope if row.is_keyed else None
        acts: dict[tuple[str, ...], Callable[[float], object]] = {}
        if row.labels and scope is None and row.kind != "gauge":
            for values in row.known_values():
                acts[values] = self._act(row, values)

        def update(event: Any) -> None:
            for labels, number in numbers(event):
                values = labels if scope is None else (*labels, label_of(scope, event.key))
                act = acts.get(values)
                if act is None:
                    act = acts[values] = self._act(row, values)
                act(number)

        return update

    def _act(self, row: Metric, values: tuple[str, ...]) -> Callable[[float], object]:
        """What takes a number. A gauge is made with its first number: an object without one would show 0."""
        with self._lock.now:
            made = self._made.get(row.name)
            if made is None:
                made = self._made[row.name] = self._new(row)
        child = made.labels(*values) if values else made
        act: Callable[[float], object] = getattr(child, _ACTS[row.kind])
        return act

    def _new(self, row: Metric) -> Any:
        labels = (*row.labels, *(("scope",) if self.scope is not None and row.is_keyed else ()))
        more: dict[str, Any] = {"registry": self._registry}
        match row.kind:
            case "counter":
                return Counter(row.full_name, _help(row), labels, **more)
            case "histogram":
                return Histogram(row.full_name, _help(row), labels, buckets=row.buckets, **more)
            case _:
                return Gauge(
                    row.full_name, _help(row), labels, multiprocess_mode="mostrecent", **more
                )


_ACTS: Final = {"counter": "inc", "histogram": "observe", "gauge": "set"}

_counting: WeakKeyDictionary[CollectorRegistry, _Read | _Objects] = WeakKeyDictionary()
"""What counts for each registry."""
