"""What observers cost: a call on Valkey with them, against the same call without.

The floor of these rows is our own call without observers, by processor time: what an observer adds
never waits. *all* is every observer at once, as an application has them: metrics into a Prometheus
registry, log lines below the level that is on, and OpenTelemetry spans inside a request of which one in a
hundred is sampled. *all, every call traced* makes a span for every claim, handler and replay. In the
row *OpenTelemetry metrics* the numbers go to the OpenTelemetry SDK, as they do without Prometheus.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from twicesafe import AsyncReceiver, Receiver

from . import ours
from .case import FLOOR, Case, Target
from .drivers import DRIVERS, Driver
from .networked import NETWORK_LAP
from .workload import Contestant

TARGET = Target(1.10)


def _prometheus() -> Any:
    from prometheus_client import CollectorRegistry

    from twicesafe.observers import PrometheusObserver

    return PrometheusObserver(CollectorRegistry())


def _log() -> Any:
    from twicesafe.observers import LogObserver

    logger = logging.getLogger("benchmarks.observing")
    logger.setLevel(logging.WARNING)
    return LogObserver(logger)


def _opentelemetry(*, metrics: bool = False, spans: bool = True) -> Any:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from twicesafe.observers import OpenTelemetryObserver

    meters = MeterProvider([InMemoryMetricReader()])
    return OpenTelemetryObserver(
        metrics=metrics, spans=spans, meter_provider=meters, tracer_provider=_tracers()
    )


@functools.cache
def _tracers() -> Any:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Nowhere(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(Nowhere()))
    return tracers


class _Requests:
    """Spans around calls, as a framework makes them; one in `every` is sampled."""

    def __init__(self, every: int) -> None:
        from opentelemetry import context, trace

        self._attach, self._detach = context.attach, context.detach
        ids = trace.SpanContext(1, 1, False, trace.TraceFlags(0))
        unsampled = trace.NonRecordingSpan(ids)
        spans = [unsampled] * (every - 1)
        sampled = _tracers().get_tracer("benchmarks").start_span("request")
        self._contexts = itertools.cycle(map(trace.set_span_in_context, [*spans, sampled]))

    def __enter__(self) -> None:
        self._token = self._attach(next(self._contexts))

    def __exit__(self, *_: object) -> None:
        self._detach(self._token)


Observed = tuple[str, Callable[[], list[Any]], int]
SETS: dict[str, Observed] = {
    "prometheus": ("Prometheus", lambda: [_prometheus()], 100),
    "log": ("log", lambda: [_log()], 100),
    "spans": ("OpenTelemetry spans, 1 % sampled", lambda: [_opentelemetry()], 100),
    "all": ("all", lambda: [_prometheus(), _log(), _opentelemetry()], 100),
    "traced": ("all, every call traced", lambda: [_prometheus(), _log(), _opentelemetry()], 1),
    "metrics": (
        "OpenTelemetry metrics",
        lambda: [_opentelemetry(metrics=True, spans=False)],
        100,
    ),
}


def observing() -> Iterator[Case]:
    for driver in DRIVERS:
        if driver.engine != "valkey":
            continue
        for what in ("first", "duplicate"):
            for name, (shown, observers, every) in SETS.items():
                yield Case(
                    f"observers/{driver.id}/{what}/{name}",
                    "Observers: a call on Valkey with them, of the call without",
                    f"{driver.mode}, {what}: {shown}",
                    partial(_bare, driver, every),
                    partial(_observed, driver, every, observers),
                    mode=driver.mode,
                    fresh=what == "first",
                    target=TARGET if name == "all" else None,
                    waits=False,
                    lap=NETWORK_LAP,
                    quick=name == "all",
                    engine=driver.engine,
                )


def _bare(driver: Driver, every: int, folder: Path) -> Contestant:
    return _called(driver, every, FLOOR, [])


def _observed(
    driver: Driver, every: int, observers: Callable[[], list[Any]], folder: Path
) -> Contestant:
    return _called(driver, every, ours.NAME, observers())


def _called(driver: Driver, every: int, name: str, observers: list[Any]) -> Contestant:
    requests, handler = _Requests(every), driver.handler
    if driver.is_async:
        receiver = AsyncReceiver.open(driver.ours(), observers=observers)

        async def call(key: str) -> Any:
            with requests:
                return await receiver.process(key, handler, key)

        return Contestant(name, call, receiver.close)
    blocking = Receiver.open(driver.ours(), observers=observers)

    def call_blocking(key: str) -> Any:
        with requests:
            return blocking.process(key, handler, key)

    return Contestant(name, call_blocking, blocking.close)
