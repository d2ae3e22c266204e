"""Blocking handlers: interrupts, exits, odd exceptions, time-outs of threads that cannot be stopped."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from typing import Any

import pytest

from tests.polling import until
from tests.receiver.bench import Bench, Counter
from twicesafe import HeldError, Policy, Receiver, State, StillInProgressError
from twicesafe._runtime.flow_run import FlowRun
from twicesafe.stores import ClaimRequest
from twicesafe.stores.memory import MemoryStore

SYNC = pytest.mark.parametrize("bench", ["memory-sync", "sqlite-sync"], indirect=True)


class Strange(BaseException):
    pass


@SYNC
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, Strange])
def test_interrupts_propagate_and_release_at_once(bench: Bench, kind: Any) -> None:
    def handle() -> None:
        raise kind("stop")

    with pytest.raises(kind):
        bench.process("k", handle)
    record = bench.record("k")
    assert (record.state, record.error, record.not_before) == (State.RELEASED, kind.__name__, None)
    assert bench.process("k", Counter().quick).attempt == 2
    held = bench.receiver.options(policy=Policy(takeover="hold"))
    with pytest.raises(kind):
        held.process("h", handle)
    with pytest.raises(HeldError):
        held.process("h", Counter().quick)


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, RuntimeError, TimeoutError])
def test_exceptions_with_a_meaning_of_their_own(bench: Bench, kind: Any) -> None:
    """A StopIteration must neither end our generators nor change into something else."""

    def handle() -> None:
        raise kind("mine")

    async def awaited() -> None:
        raise kind("mine")

    expected = RuntimeError if bench.is_async and kind is StopIteration else kind
    with pytest.raises(expected):  # Python itself turns StopIteration in a coroutine
        bench.process("k", awaited if bench.is_async else handle)
    assert bench.record("k").state is State.RELEASED
    assert bench.process("k", Counter().quick).attempt == 2


@SYNC
def test_an_interrupt_while_the_claim_is_on_the_wire_gives_it_back(bench: Bench) -> None:
    def interrupt(request: Any) -> None:
        if request.op == "claim":
            raise KeyboardInterrupt

    bench.store.after = interrupt
    with pytest.raises(KeyboardInterrupt):
        bench.process("k", Counter().quick)
    bench.store.after = lambda request: None
    assert bench.record("k").state is State.RELEASED
    assert bench.process("k", Counter().quick).attempt == 1


@SYNC
def test_an_interrupt_of_a_batch_propagates_and_gives_the_rest_back(bench: Bench) -> None:
    ran: list[str] = []

    def handle(message: str) -> str:
        ran.append(message)
        if message == "b":
            raise KeyboardInterrupt
        return message

    with pytest.raises(KeyboardInterrupt):
        bench.process_many(["a", "b", "c", "d"], handle, key=str)
    assert ran == ["a", "b"]
    states = [bench.record(key).state for key in "abcd"]
    assert states == [State.COMPLETED, State.RELEASED, State.RELEASED, State.RELEASED]
    assert [bench.record(key).attempt for key in "bcd"] == [1, 0, 0]


@SYNC
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_an_item_that_had_to_wait_ends_the_batch(bench: Bench, kind: Any) -> None:
    """It was a failure of its item, and the next items ran."""
    ran: list[str] = []

    def handle(message: str) -> str:
        ran.append(message)
        raise ValueError if len(ran) == 1 else kind

    with pytest.raises(kind):
        bench.process_many(["k 1", "k 2", "k 3"], handle, key=lambda message: message[0])
    assert ran == ["k 1", "k 2"]
    assert bench.record("k").state is State.RELEASED


@SYNC
def test_sys_exit_in_a_threaded_batch_propagates(bench: Bench) -> None:
    def handle(message: str) -> str:
        if message == "b":
            raise SystemExit(3)
        return message

    with pytest.raises(SystemExit):
        bench.process_many(["a", "b", "c", "d"], handle, key=str, concurrency=2)
    states = {key: bench.record(key).state for key in "abcd"}
    assert states["b"] is State.RELEASED
    assert State.IN_PROGRESS not in states.values()


# --- time-outs of threads --------------------------------------------------------------------------


@SYNC
def test_a_thread_that_cannot_be_stopped_keeps_its_claim(bench: Bench) -> None:
    bench.policy(timeout=0.05, wait=0.05)
    counter = Counter("in the end")
    with pytest.raises(TimeoutError, match=r"timeout=0.05"):
        bench.process("k", counter.slow)
    assert bench.record("k").state is State.IN_PROGRESS
    with pytest.raises(StillInProgressError):
        bench.process("k", counter.slow)
    counter.go_on.set()
    until(lambda: bench.record("k").state is State.COMPLETED)
    outcome = bench.process("k", counter.slow)
    assert (outcome.value, outcome.replayed, counter.runs) == ("in the end", True, 1)


@SYNC
def test_a_timeout_that_is_not_reached_changes_nothing(bench: Bench) -> None:
    bench.policy(timeout=10)
    assert bench.process("k", Counter(5).quick).value == 5
    with pytest.raises(ValueError, match="no luck"):
        bench.process("f", Counter().failing)
    assert bench.record("f").state is State.RELEASED

    def own() -> None:
        raise TimeoutError("the handler's own")

    with pytest.raises(TimeoutError, match="the handler's own"):
        bench.process("t", own)


@SYNC
def test_a_batch_respects_the_timeout(bench: Bench) -> None:
    bench.policy(timeout=0.5)
    counter = Counter("in the end")

    def handle(message: str) -> str:
        return counter.slow() if message == "slow" else message

    answers = bench.process_many(["a", "slow", "b"], handle, key=str)
    assert [answers[0].value, answers[2].value] == ["a", "b"]
    assert isinstance(answers[1].error, TimeoutError)
    assert bench.record("slow").state is State.IN_PROGRESS
    counter.go_on.set()
    until(lambda: bench.record("slow").state is State.COMPLETED)
    assert bench.process("slow", counter.quick).value == "in the end"


# --- where the handler runs ------------------------------------------------------------------------


@SYNC
def test_the_handler_runs_in_the_callers_thread_and_context(bench: Bench) -> None:
    var: contextvars.ContextVar[str] = contextvars.ContextVar("var")
    var.set("mine")
    local = threading.local()
    local.value = "here"

    def handle() -> list[str]:
        var.set("changed by the handler")
        return [local.value, threading.current_thread().name]

    assert bench.process("k", handle).value == ["here", threading.current_thread().name]
    assert var.get() == "changed by the handler"
    (outcome,) = bench.process_many(["m"], lambda m: local.value, key=str)
    assert outcome.value == "here"


@SYNC
def test_contextvars_reach_handlers_in_threads(bench: Bench) -> None:
    var: contextvars.ContextVar[str] = contextvars.ContextVar("var")
    var.set("mine")
    bench.policy(timeout=10)
    assert bench.process("k", var.get).value == "mine"
    outcomes = bench.process_many(["a", "b"], lambda m: var.get(), key=str, concurrency=2)
    assert [outcome.value for outcome in outcomes] == ["mine", "mine"]


def test_many_threads_on_many_keys(bench: Bench) -> None:
    runs: dict[int, int] = {}
    lock = threading.Lock()

    def handle(number: int) -> int:
        with lock:
            runs[number] = runs.get(number, 0) + 1
        return number * 2

    calls = [bench.start(bench.process, str(n % 20), handle, n % 20) for n in range(200)]
    assert [call.result(120).value for call in calls] == [(n % 20) * 2 for n in range(200)]
    assert runs == dict.fromkeys(range(20), 1)


def test_closing_twice(bench: Bench) -> None:
    bench.process("k", Counter().quick)
    bench.close()
    bench.close()


def test_a_lease_that_begins_while_it_is_closed_is_kept() -> None:
    """The claim was sent before `close`, and answered after it."""

    class Closing(MemoryStore):
        def perform(self, request: Any) -> Any:
            answer = super().perform(request)
            if isinstance(request, ClaimRequest):
                receiver.close()
            return answer

    store = Closing()
    receiver = Receiver(store, policy=Policy(lease=0.1))
    looking = Receiver(store)
    counter = Counter()
    thread = threading.Thread(target=receiver.process, args=("k", counter.slow))
    thread.start()
    assert counter.entered.wait(60)
    first = looking.record("k")
    assert first is not None

    def renewed() -> bool:
        now = looking.record("k")
        assert now is not None
        return now.lease_until != first.lease_until

    until(renewed)
    counter.go_on.set()
    thread.join(60)
    done = looking.record("k")
    assert done is not None
    assert done.state is State.COMPLETED
    looking.close()


def test_an_interrupt_that_skips_the_clean_up_blocks_no_later_call(monkeypatch: Any):
    """It can fall between a `finally` and the first line of what that calls."""

    class Remote(MemoryStore):
        recalls = False  # so that a repeat makes a claim, and joins the flight of its key

    receiver = Receiver(Remote(), policy=Policy(in_flight="reject"))
    whole = FlowRun.end

    def interrupted_first(run: FlowRun) -> None:
        monkeypatch.setattr(FlowRun, "end", whole)
        raise KeyboardInterrupt

    monkeypatch.setattr(FlowRun, "end", interrupted_first)
    with contextlib.suppress(KeyboardInterrupt):
        receiver.process("k", lambda: 1)
    assert FlowRun.end is whole
    assert receiver.process("k", lambda: 2).value == 1
