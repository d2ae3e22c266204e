"""`OpenTelemetryObserver`: metrics and spans through the OpenTelemetry API.

    twicesafe claim      the store's answer to a new claim    only inside a trace
    twicesafe wait       a wait for another delivery          only inside a trace
    twicesafe handler    the handler; current while it runs, so what it does belongs to it
    twicesafe step       a step of a durable run, within the handler's span
    twicesafe replay     a duplicate got the recorded answer; as long as the store took, and linked to
                         the span that made the answer

The context of the first run is kept with its result (25 bytes), so a replay is linked to it in any
process and after any time, if the default codec made the result. An `Outbox` writes the current
context into every message, and a consumer continues it. If the surrounding span is not sampled, no
span is made.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from types import CoroutineType, MethodType
from typing import Any, Final
from weakref import WeakKeyDictionary

from .. import events as ev
from .._core.durable.run_state import Suspending, parts_of
from .._core.durable.run_suspension import is_unfinished
from .._values.context import active
from .._values.drivers import driver
from .._values.keys import Key
from .._version import __version__
from ._metric import EventSource, Metric, compiled, together
from ._metric_table import OF_RECEIVERS
from ._tally import Tally

with driver("opentelemetry"):
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context, attach, detach, get_current
    from opentelemetry.propagate import extract
    from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, TraceFlags

__all__ = ["OpenTelemetryObserver"]

_log = logging.getLogger("twicesafe")
_current_span = trace.get_current_span
(_SPAN,) = trace.set_span_in_context(trace.INVALID_SPAN, Context())
"""Under which name a context has its span. `get_current_span` looks it up too, and takes twice as long."""
_NOTHING: Final[Mapping[str, str]] = {}
_UNITS: Final = {"": "1", "seconds": "s", "bytes": "By", "ratio": "1"}


class OpenTelemetryObserver:
    """Metrics and spans. Without an SDK, the API does nothing. Observers of one provider share its metrics.

    ``metrics=False`` leaves the metrics to another observer, ``spans=False`` the spans.
    """

    def __init__(
        self,
        *,
        metrics: bool = True,
        spans: bool = True,
        meter_provider: metrics.MeterProvider | None = None,
        tracer_provider: trace.TracerProvider | None = None,
    ) -> None:
        self._spans = trace.get_tracer("twicesafe", __version__, tracer_provider) if spans else None
        self._updates: dict[type[ev.Event], tuple[Callable[[Any], object], ...]] = {}
        if metrics:
            self._updates |= _instruments_of(meter_provider).updates
        if spans:
            for event, act in _SPANS.items():
                made = MethodType(act, self)  # a quicker call than that of a partial function
                self._updates[event] = (*self._updates.get(event, ()), made)
        self.subscriptions = {event: together(some) for event, some in self._updates.items()}

    def __call__(self, event: ev.Event) -> None:
        update = self.subscriptions.get(type(event))
        if update is not None:
            update(event)

    # -- tracing the handler (`events.Tracer`) ------------------------------------------------

    def trace(self, key: Key, run: Callable[[], Any]) -> Callable[[], Any]:
        if self._spans is None or _is_sampled() is False:
            return run
        return partial(self._run_in_span, key, run)

    def trace_message(
        self, headers: Mapping[str, str], run: Callable[..., Any]
    ) -> Callable[..., Any]:
        """The handler of a message belongs to the trace of its producer, and has its baggage."""
        return run if self._spans is None else partial(_run_in_trace, headers, run)

    def trace_step(self, key: Key, name: str, run: Callable[[], Any]) -> Callable[[], Any]:
        """A step of a durable run: it has its own span, which is current while the step runs."""
        if self._spans is None:
            return run
        return partial(self._run_in_span, key, run, "twicesafe step", {"twicesafe.step": name})

    def origin(self) -> bytes:
        return _packed(_current_span()) if self._spans is not None else b""

    def _run_in_span(
        self,
        key: Key,
        run: Callable[[], Any],
        name: str = "twicesafe handler",
        more: Mapping[str, str] = _NOTHING,
    ) -> Any:
        if _is_sampled() is False:  # asked here, because most duplicates run no handler
            return run()
        assert self._spans is not None
        claim = active.get()
        attributes: dict[str, str | int] = {"twicesafe.key": key.short, **more}
        if claim is not None:
            attributes |= {"twicesafe.attempt": claim.attempt, "twicesafe.fence": claim.fence}
            if claim.cause is not None:
                attributes["twicesafe.cause"] = claim.cause.value
        try:
            span = self._spans.start_span(name, attributes=attributes)
        except Exception:  # of a sampler or a span processor: the work must not depend on it
            _log.exception("a span could not be started; the handler runs without it")
            return run()
        if claim is not None:
            claim.origin = _packed(span) or claim.origin
        with trace.use_span(
            span, end_on_exit=False, record_exception=False, set_status_on_exception=False
        ):
            value = _ended_by_error(span, run)
        if type(value) is CoroutineType and _has_loop():
            return _awaited(span, value)
        _end(span)
        return value

    # -- spans of what is over ----------------------------------------------------------------

    def _started(self, event: ev.Started) -> None:
        if event.store is not None and _is_sampled():
            self._past("twicesafe claim", event.key, event.store, SpanKind.CLIENT)

    def _waited(self, event: ev.Waited) -> None:
        if _is_sampled():
            self._past("twicesafe wait", event.key, event.seconds, SpanKind.INTERNAL)

    def _past(self, name: str, key: Key, seconds: float, kind: SpanKind) -> None:
        assert self._spans is not None
        end = time.time_ns()
        begin = end - int(seconds * 1e9)
        attributes = {"twicesafe.key": key.short}
        self._spans.start_span(name, kind=kind, attributes=attributes, start_time=begin).end(end)

    def _replayed(self, event: ev.Replayed) -> None:
        if _is_sampled() is False:
            return
        assert self._spans is not None
        asked = event.store is not None
        attributes: dict[str, str | float | bool] = {
            "twicesafe.key": event.key.short,
            "twicesafe.cached": event.cached,
        }
        if event.age is not None:
            attributes["twicesafe.age"] = event.age
        first = _unpacked(event.origin)
        links = () if first is None else (Link(first),)
        end = time.time_ns()
        span = self._spans.start_span(
            "twicesafe replay",
            kind=SpanKind.CLIENT if asked else SpanKind.INTERNAL,
            attributes=attributes,
            links=links,
            start_time=end - int((event.store or 0.0) * 1e9),
        )
        span.end(end)


_SPANS: Final[dict[type[ev.Event], Callable[[OpenTelemetryObserver, Any], None]]] = {
    ev.Started: OpenTelemetryObserver._started,
    ev.Waited: OpenTelemetryObserver._waited,
    ev.Replayed: OpenTelemetryObserver._replayed,
}


# --- metrics ---------------------------------------------------------------------------------


class _Instruments:
    """Histograms take every number. Counters and gauges are read when they are exported, which costs
    a tenth of a call of the SDK."""

    def __init__(self, provider: metrics.MeterProvider | None) -> None:
        meter = metrics.get_meter("twicesafe", __version__, provider)
        histograms = [row for row in OF_RECEIVERS if row.kind == "histogram"]
        tally = Tally(only=[row for row in OF_RECEIVERS if row.kind != "histogram"])
        self._histograms: dict[str, metrics.Histogram] = {}
        for row in OF_RECEIVERS:
            name = f"twicesafe.{row.name.removesuffix('_total')}"
            about: dict[str, Any] = {
                "unit": _UNITS[row.unit],
                "description": row.meaning.replace("`", ""),
            }
            match row.kind:
                case "histogram":
                    self._histograms[row.name] = meter.create_histogram(
                        name, explicit_bucket_boundaries_advisory=list(row.buckets), **about
                    )
                case "counter":
                    meter.create_observable_counter(name, [_reader(tally, row)], **about)
                case "gauge":
                    meter.create_observable_gauge(name, [_reader(tally, row)], **about)
        self.updates: dict[type[ev.Event], tuple[Callable[[Any], object], ...]] = {
            event: (update,) for event, update in tally.subscriptions.items()
        }
        for event, more in compiled(self._record, histograms).items():
            self.updates[event] = (*self.updates.get(event, ()), *more)

    def _record(self, row: Metric, source: EventSource) -> Callable[[Any], object]:
        numbers, names = source.numbers, tuple(row.labels)
        record = self._histograms[row.name].record
        return lambda event: [
            record(number, dict(zip(names, values, strict=True)))
            for values, number in numbers(event)
        ]


_of_providers: WeakKeyDictionary[metrics.MeterProvider, _Instruments] = WeakKeyDictionary()
_of_all: list[_Instruments] = []
"""Those of the global provider. It may be set later than the first observer is made, but only once."""


def _instruments_of(provider: metrics.MeterProvider | None) -> _Instruments:
    """One for each provider: the SDK would export a second counter of the same name beside the first."""
    if provider is None:
        if not _of_all:
            _of_all.append(_Instruments(None))
        return _of_all[0]
    found = _of_providers.get(provider)
    if found is None:
        found = _of_providers[provider] = _Instruments(provider)
    return found


def _reader(
    tally: Tally, row: Metric
) -> Callable[[metrics.CallbackOptions], Iterable[metrics.Observation]]:
    names = tally.labels_of(row)
    return lambda _: [
        metrics.Observation(cell[0], dict(zip(names, values, strict=True)))
        for values, cell in tally.of(row)
    ]


# --- contexts --------------------------------------------------------------------------------


def _is_sampled() -> bool | None:
    """Whether the surrounding span is sampled, as ours will be; None: there is none.

    The span of another process never records here: only the flags (3) of its context tell, if it is valid (5).
    """
    current = get_current().get(_SPAN)
    if current is None:
        return None
    if type(current) is NonRecordingSpan:
        context = current.get_span_context()  # a tuple: its properties take several times as long
        if context[3] & 1:
            return True
        return False if context[5] else None
    return current.is_recording() if isinstance(current, Span) else None


def _packed(span: Span) -> bytes:
    """A sampled context in 25 bytes: trace, span, flags."""
    context = span.get_span_context()
    if not context.is_valid or not context.trace_flags.sampled:
        return b""
    numbers = context.trace_id.to_bytes(16, "big") + context.span_id.to_bytes(8, "big")
    return numbers + bytes((int(context.trace_flags) & 0xFF,))


def _unpacked(origin: bytes) -> SpanContext | None:
    if len(origin) != 25:
        return None
    trace_id, span_id = int.from_bytes(origin[:16], "big"), int.from_bytes(origin[16:24], "big")
    context = SpanContext(trace_id, span_id, True, TraceFlags(origin[24]))
    return context if context.is_valid else None


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _ended_by_error(span: Span, run: Callable[[], Any]) -> Any:
    try:
        return run()
    except BaseException as error:
        _fail(span, error)
        raise


def _run_in_trace(headers: Mapping[str, str], run: Callable[..., Any], *args: Any) -> Any:
    try:
        context = extract(headers, get_current())
    except Exception:  # of a propagator
        _log.exception("the trace of a message could not be read; its handler has its own")
        return run(*args)
    token = attach(context)
    try:
        value = run(*args)
    finally:
        detach(token)
    if type(value) is CoroutineType and _has_loop():
        return _awaited_in_trace(context, value)
    return value


async def _awaited_in_trace(context: Context, work: Coroutine[Any, Any, Any]) -> Any:
    token = attach(context)
    try:
        return await work
    finally:
        detach(token)


async def _awaited(span: Span, work: Coroutine[Any, Any, Any]) -> Any:
    with trace.use_span(
        span, end_on_exit=False, record_exception=False, set_status_on_exception=False
    ):
        try:
            value = await work
        except BaseException as error:
            _fail(span, error)
            raise
    _end(span)
    return value


def _fail(span: Span, error: BaseException) -> None:
    """The type of the error, not its text: a message may contain what the sender sent.

    A durable run that sleeps or waits ends its function by an exception, and has not failed.
    """
    if all(isinstance(part, Suspending) or is_unfinished(part) for part in parts_of(error)):
        span.set_attribute("twicesafe.suspended", True)
        return _end(span)
    name = type(error).__qualname__
    span.set_attribute("error.type", name)
    span.set_status(trace.Status(trace.StatusCode.ERROR, name))
    return _end(span)


def _end(span: Span) -> None:
    """The work is done: a span processor that raises must not make it look failed, and run again."""
    try:
        span.end()
    except Exception:
        _log.exception("a span could not be ended")
