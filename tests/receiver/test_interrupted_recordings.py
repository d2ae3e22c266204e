"""An interrupt that meets a recording: it waits until the record is written, once.

Ctrl-C and exits of the blocking receiver, cancellations of the async one. What they meet in the
middle of a decision is in `test_interrupts` and `test_cancellation`.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.polling import until
from tests.receiver.bench import Bench, Counter
from tests.receiver.faults import Outage
from tests.receiver.test_cancellation import Pause
from twicesafe import LeaseLostError, State
from twicesafe import events as ev

SYNC = pytest.mark.parametrize("bench", ["memory-sync", "sqlite-sync"], indirect=True)
ASYNC = pytest.mark.parametrize("bench", ["memory-async", "sqlite-async"], indirect=True)
SIDES = pytest.mark.parametrize("side", ["before", "after"])


def interrupting(op: str, times: int = 1) -> Callable[[Any], None]:
    """Ctrl-C while this kind of request is being sent."""
    left = [KeyboardInterrupt] * times

    def interrupt(request: Any) -> None:
        if request.op == op and left:
            raise left.pop()

    return interrupt


# --- blocking ----------------------------------------------------------------------------------


@SYNC
@SIDES
def test_a_result_is_recorded_before_the_interrupt_is_raised(bench: Bench, side: str) -> None:
    setattr(bench.store, side, interrupting("complete"))
    counter = Counter(7)
    with pytest.raises(KeyboardInterrupt):
        bench.process("k", counter.quick)
    assert bench.record("k").state is State.COMPLETED
    outcome = bench.process("k", counter.quick)
    assert (outcome.value, outcome.replayed, counter.runs) == (7, True, 1)


@SYNC
@SIDES
def test_a_failure_is_recorded_before_the_interrupt_is_raised(bench: Bench, side: str) -> None:
    setattr(bench.store, side, interrupting("fail"))
    with pytest.raises(KeyboardInterrupt):
        bench.process("k", Counter().failing)
    record = bench.record("k")
    assert (record.state, record.attempt) == (State.RELEASED, 1)


@SYNC
def test_a_second_interrupt_is_not_put_off(bench: Bench) -> None:
    bench.store.before = interrupting("complete", times=2)
    with pytest.raises(KeyboardInterrupt):
        bench.process("k", Counter().quick)
    assert bench.record("k").state is State.IN_PROGRESS


@SYNC
def test_the_pause_between_two_tries_ends_with_the_interrupt(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr("twicesafe._runtime.blocking.time.sleep", sleep)
    bench.store.before = Outage("complete", times=1)
    with pytest.raises(KeyboardInterrupt):
        bench.process("k", Counter().quick)
    assert len(pauses) == 1
    assert bench.record("k").state is State.COMPLETED


@SYNC
def test_the_interrupt_comes_before_what_else_there_is_to_say(bench: Bench) -> None:
    other = bench.new_receiver()

    def overtaken() -> None:
        bench.clock.advance(3600)
        bench.call(other.process, "k", Counter().quick)
        bench.store.after = interrupting("complete")

    with pytest.raises(KeyboardInterrupt) as raised:
        bench.process("k", overtaken)
    assert isinstance(raised.value.__cause__, LeaseLostError)


@SYNC
def test_a_manual_claim_is_completed_before_the_interrupt_is_raised(bench: Bench) -> None:
    bench.store.after = interrupting("complete")
    with pytest.raises(KeyboardInterrupt):
        bench.manual("k", lambda claim: "mine")
    assert bench.record("k").state is State.COMPLETED
    bench.store.after = interrupting("complete")
    with bench.receiver.claim("again") as claim, pytest.raises(KeyboardInterrupt):
        claim.complete("mine")  # a caller that takes it there does not get it a second time
    assert claim.result == "mine"
    bench.store.after = interrupting("abandon")
    with pytest.raises(KeyboardInterrupt), bench.receiver.claim("left"):
        pass
    assert bench.record("left").state is State.RELEASED


# --- blocking batches ----------------------------------------------------------------------------


class Renewing:
    """A handler that works until its lease was renewed since the test said so."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.entered, self.watch = threading.Event(), threading.Event()
        self.kept = False

    def __call__(self) -> str:
        self.entered.set()
        assert self.watch.wait(60)
        first = self.bench.record("slow").lease_until
        until(lambda: self.bench.record("slow").lease_until != first)
        self.kept = True
        return "slow"


@pytest.fixture
def slow(bench: Bench) -> Iterator[Renewing]:
    """The store's clock follows the lease keeper's own, which is the machine's."""
    handler = Renewing(bench)
    bench.policy(lease=0.3)
    ticking = threading.Event()

    def tick() -> None:
        while not ticking.wait(0.01):
            bench.clock.advance(0.01)

    thread = threading.Thread(target=tick)
    thread.start()
    yield handler
    ticking.set()
    thread.join()


@SYNC
def test_a_batch_that_is_interrupted_while_it_records_keeps_its_running_handlers(
    bench: Bench, slow: Renewing
) -> None:
    interrupt = interrupting("complete")

    def meet(request: Any) -> None:
        try:
            interrupt(request)
        except KeyboardInterrupt:
            slow.watch.set()
            raise

    bench.store.after = meet

    def handle(message: str) -> str:
        assert message == "slow" or slow.entered.wait(60)
        return slow() if message == "slow" else message

    with pytest.raises(KeyboardInterrupt):
        bench.process_many(["slow", "quick", "slow"], handle, key=str, concurrency=2)
    assert slow.kept
    assert [bench.record(key).state for key in ("slow", "quick")] == [State.COMPLETED] * 2


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Ctrl-C into the main thread, also where the parent process ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread().ident
    assert main is not None
    yield lambda: signal.pthread_kill(main, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@SYNC
def test_what_has_ended_is_not_lost_when_an_interrupt_meets_the_wait_for_more(
    bench: Bench, ctrl_c: Callable[[], None]
) -> None:
    quick_ended = threading.Event()

    def handle(message: str) -> str:
        if message == "quick":
            quick_ended.set()
            return message
        assert quick_ended.wait(60)
        ctrl_c()
        return message

    with pytest.raises(KeyboardInterrupt):
        bench.process_many(["quick", "slow"], handle, key=str, concurrency=2)
    assert [bench.record(key).state for key in ("slow", "quick")] == [State.COMPLETED] * 2


@SYNC
def test_handlers_in_their_threads_keep_their_claims_whatever_ends_the_batch(
    bench: Bench, slow: Renewing
) -> None:
    def observe(event: Any) -> None:
        if isinstance(event, ev.Completed):
            raise KeyboardInterrupt  # between two commands: the flow itself is broken off

    bench.receiver = bench.new_receiver(
        bench.store, policy=bench.receiver.policy, observers=[observe]
    )
    keeper = bench.receiver._runtime.keeper

    def handle(message: str) -> str:
        assert message == "slow" or slow.entered.wait(60)
        return slow() if message == "slow" else message

    with pytest.raises(KeyboardInterrupt):
        bench.process_many(["slow", "quick"], handle, key=str, concurrency=2)
    assert [claim.key.value for claim in keeper._live] == ["slow"]
    slow.watch.set()
    until(lambda: not keeper._live)
    assert slow.kept


@SYNC
def test_a_batch_that_is_interrupted_while_it_records_starts_no_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each is recorded before the next starts.
    monkeypatch.setattr("twicesafe._core.batch.LINGER", 0)
    bench.store.after = interrupting("complete")
    ran: list[str] = []

    def handle(message: str) -> str:
        ran.append(message)
        return message

    with pytest.raises(KeyboardInterrupt):
        bench.process_many(["a", "b", "c"], handle, key=str)
    assert ran == ["a"]
    states = [bench.record(key).state for key in "abc"]
    assert states == [State.COMPLETED, State.RELEASED, State.RELEASED]


# --- async ---------------------------------------------------------------------------------------


@ASYNC
def test_the_cancellation_comes_before_what_else_there_is_to_say(bench: Bench) -> None:
    async def run() -> None:
        pause = Pause("complete")
        other = bench.new_receiver()

        async def overtaken() -> None:
            bench.clock.advance(3600)
            await other.process("k", bench.in_mode(Counter().quick))
            bench.store.after = pause

        task = asyncio.ensure_future(bench.receiver.process("k", overtaken))
        await pause.cancel(task)

    bench._wait(run())


@ASYNC
def test_a_batch_that_is_cancelled_while_it_records_starts_no_more(bench: Bench) -> None:
    async def run() -> None:
        bench.store.before = pause = Pause("complete")
        ran: list[str] = []

        async def handle(message: str) -> str:
            ran.append(message)
            if message == "b":
                await asyncio.Event().wait()
            return message

        task = asyncio.ensure_future(
            bench.receiver.process_many(["a", "b", "c", "d"], handle, key=str, concurrency=2)
        )
        await pause.reached.wait()
        started = list(ran)
        await pause.cancel(task)
        assert ran == started
        states = {key: (await bench.receiver.record(key)).state for key in "abcd"}
        assert states["a"] is State.COMPLETED
        assert states["b"] is State.RELEASED
        assert State.IN_PROGRESS not in states.values()

    bench._wait(run())
