"""OpenTelemetryObserver: metrics, and spans that belong together across processes and days."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.baggage import get_baggage
from opentelemetry.context import attach, detach
from opentelemetry.propagate import extract
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from tests.receiver.bench import Bench, Counter
from twicesafe import Key, Outbox, Policy, Receiver, State
from twicesafe import events as ev
from twicesafe.consumers import AsyncConsumer, Consumer, DeadLetter, Message
from twicesafe.observers import OpenTelemetryObserver
from twicesafe.testing import MemoryBroker

TRACE, SPAN = 0xA1B2C3D4E5F60718293A4B5C6D7E8F90, 0xA1B2C3D4E5F60718
TRACEPARENT = f"00-{TRACE:032x}-{SPAN:016x}-01"
"""Of a sampled span in another process."""


class Backend:
    """Where spans and metrics arrive."""

    def __init__(self, **settings: Any) -> None:
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider(**settings)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracer = self.tracers.get_tracer("test")
        self._meters = MeterProvider([self._reader])
        self.observer = OpenTelemetryObserver(
            meter_provider=self._meters, tracer_provider=self.tracers
        )

    def spans(self, name: str = "") -> list[ReadableSpan]:
        return [span for span in self._spans.get_finished_spans() if name in span.name]

    def points(self, name: str) -> dict[str, Any]:
        """The points of a metric by the value of their only label."""
        data = self._reader.get_metrics_data()
        return {
            "".join(str(value) for value in point.attributes.values()): point
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == f"twicesafe.{name}"
            for point in metric.data.data_points
        }

    def close(self) -> None:
        self.tracers.shutdown()
        self._meters.shutdown()


@pytest.fixture
def backend() -> Any:
    backend = Backend()
    yield backend
    backend.close()


def test_metrics_are_those_of_the_table(bench: Bench, backend: Backend):
    receiver = bench.new_receiver(observers=[backend.observer])
    for _ in range(3):
        bench.call(receiver.process, "k", bench.in_mode(Counter().quick))
    backend.observer(ev.StoreSampled({State.HELD: 2}, 0, 0, 0.0, 4096))
    counted = {name: point.value for name, point in backend.points("deliveries").items()}
    assert counted == {"first": 1, "replayed": 2}
    assert backend.points("duplicate_age_seconds")[""].count == 2
    assert backend.points("store_seconds")["complete"].count == 1
    assert backend.points("store_bytes")[""].value == 4096
    assert backend.points("records")["held"].value == 2
    assert backend.points("handler_seconds")[""].explicit_bounds[0] == 0.001


def test_observers_of_one_provider_count_together(backend: Backend):
    """Two counters of one name were exported beside each other: a backend keeps the one that comes last."""
    other = OpenTelemetryObserver(meter_provider=backend._meters, tracer_provider=backend.tracers)
    for observer in (backend.observer, other):
        with Receiver.open("memory://", observers=[observer]) as receiver:
            receiver.process("k", int)
    data = backend._reader.get_metrics_data()
    assert data is not None
    names = [
        metric.name
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]
    assert sorted(names) == sorted(set(names))
    assert backend.points("deliveries")["first"].value == 2
    assert backend.points("handler_seconds")[""].count == 2
    assert len(backend.spans("handler")) == 2


def test_a_replay_is_linked_to_the_first_run_in_another_process(bench: Bench, backend: Backend):
    """The link is in the record: another receiver, another backend, any time later."""
    first = bench.new_receiver(observers=[backend.observer])
    bench.call(first.process, "k", bench.in_mode(Counter().quick))
    (handler,) = backend.spans("handler")
    later = Backend()
    second = bench.new_receiver(observers=[later.observer])
    outcome = bench.call(second.process, "k", bench.in_mode(Counter().quick))
    assert outcome.value == "done"
    (replay,) = later.spans("replay")
    (link,) = replay.links
    assert link.context.trace_id == handler.context.trace_id
    assert link.context.span_id == handler.context.span_id
    assert replay.attributes["twicesafe.key"] == Key("k").short
    later.close()


def test_a_receiver_that_does_not_trace_reads_the_same_result(bench: Bench, backend: Backend):
    traced = bench.new_receiver(observers=[backend.observer])
    bench.call(traced.process, "k", bench.in_mode(Counter({"a": 1}).quick))
    plain = bench.new_receiver(observers=[])
    assert bench.call(plain.process, "k", bench.in_mode(Counter().quick)).value == {"a": 1}


def test_what_a_handler_does_belongs_to_its_span(bench: Bench, backend: Backend):
    receiver = bench.new_receiver(observers=[backend.observer])

    async def work_async() -> None:
        backend.tracer.start_span("inner").end()

    def work() -> None:
        backend.tracer.start_span("inner").end()

    bench.call(receiver.process, "k", work_async if bench.is_async else work)
    (inner,), (handler,) = backend.spans("inner"), backend.spans("handler")
    assert inner.parent.span_id == handler.context.span_id
    assert handler.attributes["twicesafe.attempt"] == 1


def test_a_failure_is_shown_by_its_type_alone(bench: Bench, backend: Backend):
    receiver = bench.new_receiver(observers=[backend.observer])

    def fail() -> None:
        raise ValueError("card 4111 1111")

    with pytest.raises(ValueError, match="4111"):
        bench.call(receiver.process, "k", bench.in_mode(fail))
    (handler,) = backend.spans("handler")
    assert handler.attributes["error.type"] == "ValueError"
    assert not handler.status.is_ok
    assert "4111 1111" not in handler.to_json()


def test_claims_waits_and_replays_belong_to_the_trace_around_them(backend: Backend):
    with Receiver.open("memory://", observers=[backend.observer]) as receiver:
        with backend.tracer.start_as_current_span("request") as around:
            receiver.process("k", int)
            receiver.process("k", int)
            backend.observer(ev.Waited(Key("k"), 0.5))
        receiver.process("other", int)  # outside: a claim alone would be a trace of one span
    inside = {
        span.name for span in backend.spans() if span.context.trace_id == around.context.trace_id
    }
    assert inside == {
        *("request", "twicesafe claim", "twicesafe handler", "twicesafe replay", "twicesafe wait"),
    }
    assert len(backend.spans("claim")) == 1, "the repeat needed none: an embedded store looks"
    assert len(backend.spans("handler")) == 2
    (wait,) = backend.spans("wait")
    assert wait.end_time - wait.start_time == pytest.approx(5e8)


def test_a_replay_is_one_span_and_as_long_as_the_store_took(backend: Backend):
    with backend.tracer.start_as_current_span("request"):
        backend.observer(ev.Replayed(Key("k"), 60.0, store=0.25))
        backend.observer(ev.Replayed(Key("k"), 60.0))
    assert backend.spans("claim") == []
    asked, cached = backend.spans("replay")
    assert (asked.end_time - asked.start_time, asked.kind.name) == (250_000_000, "CLIENT")
    assert (cached.end_time - cached.start_time, cached.kind.name) == (0, "INTERNAL")


def test_a_manual_claim_keeps_the_trace_around_it(backend: Backend):
    with Receiver.open("memory://", observers=[backend.observer]) as receiver:
        with (
            backend.tracer.start_as_current_span("request") as around,
            receiver.claim("k") as claim,
        ):
            claim.complete(1)
        with receiver.claim("k") as again:
            assert again.result == 1
    (replay,) = backend.spans("replay")
    assert replay.links[0].context.trace_id == around.context.trace_id


def test_an_unsampled_trace_stays_unsampled_and_stores_nothing(bench: Bench):
    backend = Backend(sampler=ALWAYS_OFF)
    receiver = bench.new_receiver(observers=[backend.observer])
    for _ in range(2):
        bench.call(receiver.process, "k", bench.in_mode(Counter().quick))
    assert backend.spans() == []
    assert bench.events(ev.Replayed) == []
    assert bench.record("k").result_bytes == len(b'j"done"')
    backend.close()


@contextlib.contextmanager
def continued(traceparent: str) -> Iterator[None]:
    """What a web server or a task queue does with the headers that it got."""
    token = attach(extract({"traceparent": traceparent, "baggage": "tenant=acme"}))
    try:
        yield
    finally:
        detach(token)


def test_a_trace_that_began_in_another_process_goes_on(backend: Backend):
    """Its span does not record here, and was taken for one that is not sampled: there was no span at all."""
    with Receiver.open("memory://", observers=[backend.observer]) as receiver:
        with continued(TRACEPARENT):
            receiver.process("k", int)
            receiver.process("k", int)
        receiver.process("k", int)
    claim, handler, replay, other = backend.spans()
    for span in (claim, handler, replay):
        assert span.context.trace_id == TRACE
        assert span.parent is not None
        assert span.parent.span_id == SPAN
    assert [span.name for span in (claim, handler, replay)] == [
        *("twicesafe claim", "twicesafe handler", "twicesafe replay"),
    ]
    assert other.links[0].context.span_id == handler.context.span_id


def test_a_trace_that_is_not_sampled_in_another_process_is_not_sampled_here(backend: Backend):
    with (
        Receiver.open("memory://", observers=[backend.observer]) as receiver,
        continued(TRACEPARENT[:-1] + "0"),
    ):
        receiver.process("k", int)
        receiver.process("k", int)
        assert receiver.record("k").result_bytes == len(b"j0")
    assert backend.spans() == []


def test_a_consumer_continues_the_trace_of_its_message(bench: Bench, backend: Backend):
    """The handler had a trace of its own, and no code could change that: the span begins before it runs."""
    seen: dict[str, Any] = {}

    def handle(message: Message) -> None:
        backend.tracer.start_span("inner").end()
        seen[message.id] = get_baggage("tenant")
        if message.id == "bad":
            raise DeadLetter("bad")

    receiver = bench.new_receiver(observers=[backend.observer])
    broker, dead = MemoryBroker(), []
    headers = {"traceparent": TRACEPARENT, "baggage": "tenant=acme"}
    broker.send("orders", id="good", headers=headers)
    broker.send("orders", id="bad", headers=headers)
    broker.send("orders", id="plain")

    def bury(message: Message, error: Exception) -> None:
        dead.append(message.id)

    make = AsyncConsumer if bench.is_async else Consumer
    consumer: Any = make(
        broker.source("orders"), receiver=receiver, dead_letter=bench.in_mode(bury)
    )
    bench.call(consumer.drain, bench.in_mode(handle), idle=0.05)
    bench.call(consumer.close)
    assert (seen, dead) == ({"good": "acme", "bad": "acme", "plain": None}, ["bad"])
    inside = [span.name for span in backend.spans() if span.context.trace_id == TRACE]
    handlers = [span for span in backend.spans("handler") if span.context.trace_id == TRACE]
    assert len(handlers) == 3, "two messages, and the publication of a dead letter"
    assert all(span.parent is not None and span.parent.span_id == SPAN for span in handlers)
    assert inside.count("inner") == 2
    assert len(backend.spans("inner")) == 3


def test_an_outbox_message_carries_the_trace_of_the_handler(backend: Backend, tmp_path: Any):
    """The relay's publisher gets it as a header, and a consumer can go on with the trace."""
    import sqlite3

    url = f"sqlite:///{tmp_path}/shop.db"
    outbox = Outbox.open(url)
    connection = sqlite3.connect(tmp_path / "shop.db")
    sent: list[str] = []

    def handle() -> None:
        with connection:
            outbox.add(connection, topic="orders", body={"n": 1})
        rows = connection.execute("SELECT headers FROM twicesafe_outbox").fetchall()
        sent.append(rows[0][0])

    with Receiver.open("memory://", observers=[backend.observer]) as receiver:
        receiver.process("k", handle)
    connection.close()
    outbox.close()
    (handler,) = backend.spans("handler")
    assert f"{handler.context.trace_id:032x}-{handler.context.span_id:016x}" in sent[0]


def test_a_custom_codec_is_left_alone(backend: Backend):
    class Raw:
        def encode(self, value: Any, declared: Any = Any) -> bytes:
            return bytes(value)

        def decode(self, payload: bytes, declared: Any = Any) -> Any:
            return payload

    policy = Policy(codec=Raw())
    with Receiver.open("memory://", policy=policy, observers=[backend.observer]) as receiver:
        receiver.process("k", lambda: b"plain")
        assert receiver.process("k", lambda: b"").value == b"plain"
        assert receiver.record("k").result_bytes == 5


def test_either_half_can_be_left_to_another(backend: Backend):
    quiet = OpenTelemetryObserver(metrics=False, spans=False, tracer_provider=backend.tracers)
    with Receiver.open("memory://", observers=[quiet]) as receiver:
        receiver.process("k", int)
    assert backend.spans() == []
    assert quiet.origin() == b""


class Raising(SpanProcessor):
    """A span processor with a bug, as of a vendor."""

    def __init__(self, when: str) -> None:
        self.when = when

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self.when == "start":
            raise RuntimeError("start")

    def on_end(self, span: ReadableSpan) -> None:
        if self.when == "end":
            raise RuntimeError("end")


@pytest.mark.parametrize("when", ["start", "end"])
def test_a_span_processor_that_raises_changes_no_delivery(
    bench: Bench, backend: Backend, when: str
):
    """Otherwise work that was done would be recorded as failed, and done again."""
    backend.tracers.add_span_processor(Raising(when))
    receiver = bench.new_receiver(observers=[backend.observer])
    work = Counter()
    assert bench.call(receiver.process, "k", bench.in_mode(work.quick)).value == "done"
    assert bench.call(receiver.process, "k", bench.in_mode(work.quick)).replayed
    assert work.runs == 1


def test_a_tracer_that_raises_changes_no_delivery():
    class Broken:
        def trace(self, key: Key, run: Any) -> Any:
            raise RuntimeError("trace")

        def origin(self) -> bytes:
            raise RuntimeError("origin")

        def __call__(self, event: ev.Event) -> None: ...

    with Receiver.open("memory://", observers=[Broken()]) as receiver:
        assert receiver.process("tx-1", lambda: 1).value == 1
        with receiver.claim("tx-2") as claim:
            claim.complete(2)
        assert receiver.process("tx-2", str).value == 2
