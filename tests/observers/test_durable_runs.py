"""What observers see of durable runs: steps, suspensions, compensations; a span per step."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

from tests.observers.test_opentelemetry import Backend, backend
from twicesafe import (
    AsyncReceiver,
    AsyncSteps,
    Backoff,
    CompensatedError,
    Policy,
    Receiver,
    Steps,
    SuspendedError,
)
from twicesafe import events as ev
from twicesafe.stores.memory import MemoryStore

__all__ = ["backend"]

POLICY = Policy(wait=0.1, max_attempts=1, backoff=Backoff(first=0.001, most=0.001))
OF_RUNS = (ev.StepRecorded, ev.StepReplayed, ev.RunSuspended, ev.Compensated)


def watched(seen: list[Any]) -> Receiver:
    return Receiver(MemoryStore(), policy=POLICY, observers=[seen.append])


def test_steps_are_recorded_once_and_replayed_on_a_resume() -> None:
    seen: list[Any] = []
    receiver = watched(seen)
    tries = iter([ConnectionError, None])

    def flaky() -> int:
        error = next(tries)
        if error is not None:
            raise error
        return 7

    @receiver.durable(key="order", scope=("shop",))
    def checkout(steps: Steps, order: str) -> Any:
        steps.options(attempts=2, backoff=POLICY.backoff).run("flaky", flaky)
        steps.now()
        return steps.wait("approval", timeout=3600)

    with pytest.raises(SuspendedError):
        checkout("a")
    key = receiver.key(checkout.key("a"))
    recorded = [event for event in seen if isinstance(event, ev.StepRecorded)]
    assert [(e.key, e.step, e.kind, e.attempt) for e in recorded] == [
        (key, "flaky", "run", 2),
        (key, "now", "capture", 1),
    ]
    assert all(event.seconds >= 0 for event in recorded)
    (suspended,) = [event for event in seen if isinstance(event, ev.RunSuspended)]
    assert suspended.key == key
    assert 3000 < suspended.seconds <= 3600
    seen.clear()
    receiver.signal(checkout.key("a"), "approval", True)
    assert checkout("a") is True
    assert [e.step for e in seen if isinstance(e, ev.StepReplayed)] == ["flaky", "now"]
    (started,) = [event for event in seen if isinstance(event, ev.Started)]
    assert started.cause == "resumed"


def test_a_wait_without_an_end_says_so() -> None:
    seen: list[Any] = []
    receiver = watched(seen)

    @receiver.durable(key="order", scope=("shop",))
    def checkout(steps: Steps, order: str) -> Any:
        return steps.wait("approval")

    with pytest.raises(SuspendedError):
        checkout("a")
    assert [e.seconds for e in seen if isinstance(e, ev.RunSuspended)] == [None]


def test_a_compensated_run_says_how_much_was_undone() -> None:
    seen: list[Any] = []
    receiver = watched(seen)

    @receiver.durable(key="order", scope=("shop",))
    def checkout(steps: Steps, order: str) -> None:
        for name in "ab":
            steps.run(name, str, undo=lambda _: None)
        steps.run("c", str)
        steps.abort("refused")

    with pytest.raises(CompensatedError):
        checkout("x")
    assert [e.steps for e in seen if isinstance(e, ev.Compensated)] == [2]
    undone = [e.step for e in seen if isinstance(e, ev.StepRecorded) and e.kind == "undo"]
    assert undone == ["undo:b", "undo:a"]
    assert Counter(type(e) for e in seen)[ev.Failed] == 1


def test_metrics_and_a_span_per_step(backend: Backend) -> None:
    receiver = Receiver(MemoryStore(), policy=POLICY, observers=[backend.observer])

    def charge() -> str:
        with backend.tracer.start_as_current_span("bank"):
            return "ch_1"

    @receiver.durable(key="order", scope=("shop",))
    def checkout(steps: Steps, order: str) -> Any:
        steps.run("charge", charge, undo=lambda _: None)
        steps.abort("refused")

    with pytest.raises(CompensatedError):
        checkout("a")
    handler, *_ = backend.spans("twicesafe handler")
    first, second = backend.spans("twicesafe step")
    assert [s.attributes["twicesafe.step"] for s in (first, second)] == ["charge", "undo:charge"]  # type: ignore[index]
    assert first.parent.span_id == handler.context.span_id  # type: ignore[union-attr]
    (bank,) = backend.spans("bank")
    assert bank.parent.span_id == first.context.span_id  # type: ignore[union-attr]
    steps = {name: point.value for name, point in backend.points("steps").items()}
    assert (steps["recorded"], steps.get("replayed", 0)) == (2, 0)
    assert backend.points("compensations")[""].value == 1
    assert backend.points("step_seconds")[""].count == 2
    assert backend.points("handler_seconds")[""].sum >= 0


def test_a_run_that_sleeps_has_not_failed(backend: Backend) -> None:
    """Each sleep was a span with an error, so a service that only waited seemed to fail."""
    receiver = Receiver(MemoryStore(), policy=POLICY, observers=[backend.observer])

    @receiver.durable(key="order", scope=("shop",))
    def checkout(steps: Steps, order: str) -> Any:
        return steps.wait("approval")

    @receiver.durable(key="order", scope=("outer",))
    def calls_it(steps: Steps, order: str) -> Any:
        return checkout(order)

    for function in (checkout, calls_it):
        with pytest.raises(SuspendedError):
            function("a")

    @receiver.durable(key="order", scope=("aborting",))
    def gives_up(steps: Steps, order: str) -> Any:
        steps.abort("refused")

    with pytest.raises(CompensatedError):
        gives_up("a")
    *waiting, aborted = backend.spans("twicesafe handler")
    assert len(waiting) == 2
    for span in waiting:
        assert span.status.status_code is StatusCode.UNSET
        assert span.attributes is not None
        assert span.attributes["twicesafe.suspended"] is True
    assert aborted.status.status_code is StatusCode.ERROR


def test_a_span_per_async_step(backend: Backend) -> None:
    async def main() -> None:
        receiver = AsyncReceiver.open("memory://", policy=POLICY, observers=[backend.observer])

        async def charge() -> str:
            with backend.tracer.start_as_current_span("bank"):
                await asyncio.sleep(0)
                return "ch_1"

        @receiver.durable(key="order", scope=("shop",))
        async def checkout(steps: AsyncSteps, order: str) -> Any:
            return await steps.run("charge", charge)

        assert await checkout("a") == "ch_1"

    asyncio.run(main())
    (step,) = backend.spans("twicesafe step")
    (bank,) = backend.spans("bank")
    assert bank.parent.span_id == step.context.span_id  # type: ignore[union-attr]


def test_without_observers_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in OF_RUNS:
        monkeypatch.setattr(ev, kind.__name__, None)
    receiver = Receiver(MemoryStore(), policy=POLICY)

    @receiver.durable(key="order", scope=("shop",))
    def checkout(steps: Steps, order: str) -> Any:
        return steps.run("charge", str), steps.wait("approval", timeout=3600)

    with pytest.raises(SuspendedError):
        checkout("a")
