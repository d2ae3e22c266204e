"""Durable functions that are cancelled, interrupted or killed at every moment: they go on, and end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.durable import dying_saga
from tests.durable.shop import POLICY, Boom
from twicesafe import AsyncReceiver, Receiver, State, Steps
from twicesafe._core.commands import Invoke, LostBeforeStartError, Raised
from twicesafe._core.driving import drive
from twicesafe._core.durable.run import deliver_run
from twicesafe._core.durable.run_requests import FOREVER, FailRun, RecordStep, StartRun
from twicesafe._core.protocol import Abandon, Ack
from twicesafe._values.steps import StepState
from twicesafe.errors import (
    CompensatedError,
    CorruptRecordError,
    LeaseLostError,
    StoreUnavailableError,
    SuspendedError,
)
from twicesafe.stores._batching import uncancellable
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore

MANY = POLICY.replace(max_attempts=50)


class Turns(AsyncMemoryStore):
    """A store whose every answer takes a turn of the event loop."""

    immediate = False

    async def perform(self, request: Any) -> Any:
        await asyncio.sleep(0)
        answer = self._store.perform(request)
        await asyncio.sleep(0)
        return answer

    def submit(self, request: Any) -> Any:
        return uncancellable(self.perform(request))


@pytest.mark.parametrize("store", [AsyncMemoryStore, Turns])
def test_a_task_that_is_cancelled_at_any_turn_of_its_loop_goes_on_later(store: Any) -> None:
    """Whichever turn it is, no step that was recorded runs again, and the run does not hang."""

    async def cancelled_at(turn: int) -> bool:
        memory = MemoryStore()
        receiver = AsyncReceiver(store(memory), policy=MANY.replace(wait=60, lease=600))
        ran: Counter[str] = Counter()

        async def act(name: str) -> str:
            await asyncio.sleep(0)
            ran[name] += 1
            await asyncio.sleep(0)
            return name

        @receiver.durable(key="order", scope=("x",))
        async def checkout(steps: Any, order: str) -> Any:
            first = await steps.run("first", act, "first")
            both = await asyncio.gather(
                steps.run("left", act, "left"), steps.run("right", act, "right")
            )
            await steps.sleep("nap", 0.001)
            return [first, *both, await steps.wait("go", timeout=0.001)]

        task = asyncio.ensure_future(checkout("o"))
        for _ in range(turn):
            await asyncio.sleep(0)
        ended = task.done()
        task.cancel()
        await asyncio.wait({task})
        run = memory._runs.get(checkout.key("o").id)
        recorded = {} if run is None else dict(memory._steps[checkout.key("o").id])
        before = Counter(ran)
        answer = await asyncio.wait_for(checkout("o"), 120)
        assert answer == ["first", "left", "right", None]
        for name in recorded:
            if recorded[name].state == "done":
                assert ran[name] == before[name], f"{name} ran again, cancelled at turn {turn}"
        return ended

    async def main() -> None:
        turn = 0
        while not await cancelled_at(turn):
            turn += 1
        assert turn > 5

    asyncio.run(main())


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_inside_a_step_ends_the_attempt_and_the_step_runs_again(error: Any) -> None:
    receiver = Receiver(MemoryStore(), policy=MANY)
    ran: list[str] = []

    def act(name: str) -> str:
        ran.append(name)
        if ran == ["a", "b"]:
            raise error
        return name

    @receiver.durable(key="order", scope=("x",))
    def checkout(steps: Steps, order: str) -> list[str]:
        return [steps.run(name, act, name) for name in "abc"]

    with pytest.raises(error):
        checkout("o")
    assert checkout("o") == ["a", "b", "c"]
    assert ran == ["a", "b", "b", "c"]


def test_an_interrupt_inside_an_undo_leaves_the_rest_to_the_next_worker() -> None:
    receiver = Receiver(MemoryStore(), policy=MANY.replace(max_attempts=1))
    undone: list[str] = []

    def undo(name: str) -> None:
        undone.append(name)
        if undone == ["c", "b"]:
            raise KeyboardInterrupt

    @receiver.durable(key="order", scope=("x",))
    def checkout(steps: Steps, order: str) -> None:
        for name in "abc":
            steps.run(name, str, name, undo=undo)
        raise Boom

    with pytest.raises(KeyboardInterrupt):
        checkout("o")
    with pytest.raises(CompensatedError):
        checkout("o")
    assert undone == ["c", "b", "b", "a"]


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGINT interrupts, also if a shell started this process in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_real_interrupt_while_a_run_sleeps_in_place(interrupts: None) -> None:
    receiver = Receiver(MemoryStore(), policy=MANY.replace(wait=60))

    @receiver.durable(key="order", scope=("x",))
    def checkout(steps: Steps, order: str) -> str:
        if steps.attempt == 1:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            steps.sleep("nap", 50)
        return "done"

    with pytest.raises(KeyboardInterrupt):
        checkout("o")
    record = receiver.record(checkout.key("o"))
    assert record is not None
    assert record.state is State.RELEASED
    assert checkout("o") == "done"


@pytest.mark.parametrize("moment", range(1, 14))
def test_a_saga_that_is_killed_at_any_moment_is_undone_in_reverse(
    tmp_path: Path, moment: int
) -> None:
    """Killed before or after an effect, an undo, or a request to the store."""
    url, log = f"sqlite:///{tmp_path}/keys.db", tmp_path / "log"
    log.touch()
    words = [sys.executable, dying_saga.__file__, url, str(log), str(moment)]
    ended = subprocess.run(words, check=False, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    with pytest.raises(CompensatedError):
        dying_saga.main(url, str(log), -1)
    told = log.read_text().split()
    steps = [name for name in told if not name.startswith("undo:")]
    undos = [name.removeprefix("undo:") for name in told if name.startswith("undo:")]
    assert told.index("undo:c") > max(i for i, name in enumerate(told) if name in steps)
    assert list(dict.fromkeys(undos)) == ["c", "b", "a"]
    assert len(steps) <= 4, "one step at most ran twice"
    assert len(undos) <= 4, "one undo at most ran twice"


def test_two_completers_run_every_run_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/keys.db"
    ran: Counter[str] = Counter()
    lock = threading.Lock()

    def act(name: str) -> None:
        with lock:
            ran[name] += 1

    def decorated(receiver: Receiver) -> Any:
        @receiver.durable(key="order", scope=("x",), name="checkout")
        def checkout(steps: Steps, order: str) -> None:
            steps.run("act", act, order)
            steps.sleep("nap", 0.05)
            steps.run("again", act, order)

        return checkout

    policy = POLICY.replace(wait=0)
    with Receiver.open(url, policy=policy) as one, Receiver.open(url, policy=policy) as two:
        checkout = decorated(one)
        decorated(two)
        keys = [checkout.submit(f"order-{number}") for number in range(20)]
        with one.completer(every=0.01, concurrency=4), two.completer(every=0.01, concurrency=4):
            time_limit = time.monotonic() + 60
            while time.monotonic() < time_limit:
                if all(one.record(key).state is State.COMPLETED for key in keys):  # type: ignore[union-attr]
                    break
                time.sleep(0.02)
    assert ran == {f"order-{number}": 2 for number in range(20)}


def test_the_threads_of_a_completer_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """``report.parked += park()`` reads the number before it parks."""
    receiver, both = Receiver(MemoryStore(), policy=POLICY), threading.Barrier(2)

    @receiver.durable(key="order", scope=("x",))
    def checkout(steps: Steps, order: str) -> None: ...

    def unreadable(run: Any) -> Any:
        raise CorruptRecordError("no arguments")

    def parked(*_: Any) -> Any:
        both.wait(60)
        return True
        yield

    monkeypatch.setattr(checkout, "_resumed", unreadable)
    monkeypatch.setattr("twicesafe._core.durable.run_operations.park_unusable", parked)
    monkeypatch.setattr("twicesafe.receiver._completion.OVERDUE", 0)
    for order in "ab":
        checkout.submit(order)
    assert receiver.complete_abandoned(concurrency=2).parked == 2


def test_a_branch_whose_wait_is_recorded_slowly_is_woken_by_its_signal() -> None:
    """The other branch would have suspended the run without it."""

    class Slow(AsyncMemoryStore):
        async def perform(self, request: Any) -> Any:
            if request.op == "record_step" and request.name == "b":
                await asyncio.sleep(0.2)
            return await super().perform(request)

    async def main() -> None:
        receiver = AsyncReceiver(Slow(), policy=POLICY)

        @receiver.durable(key="order", scope=("x",))
        async def checkout(steps: Any, order: str) -> Any:
            return await asyncio.gather(steps.wait("a"), steps.wait("b"))

        with pytest.raises(SuspendedError):
            await checkout("o")
        await receiver.signal(checkout.key("o"), "b", 2)
        assert (await receiver.complete_abandoned()).suspended == 1

    asyncio.run(main())


def test_a_claim_that_was_answered_late_does_not_make_a_sleep_short() -> None:
    """The store's time is of the answer, and the claim was first sent long before it."""
    store = MemoryStore()
    receiver = Receiver(store, policy=POLICY.replace(wait=30))

    @receiver.durable(key="order", scope=("x",), fingerprint=False)
    def checkout(steps: Steps, order: str) -> float:
        steps.sleep("nap", 1.5)
        return time.monotonic()

    key, owner = checkout.key("o"), b"other".ljust(16)
    won = store.perform(StartRun(key, owner, 30_000))
    began = time.monotonic()
    asleep = RecordStep(key.id, owner, won.fence, "nap", "sleep", StepState.WAITING, delay=1500)
    assert store.perform(asleep) is Ack.OK
    store.perform(FailRun(key.id, owner, won.fence, 0, 5, FOREVER, "Boom"))
    perform, tries = store.perform, iter(range(100))

    def late(request: Any) -> Any:
        if request.op == "start_run" and next(tries) < 1:
            time.sleep(0.8)
            raise StoreUnavailableError("late")
        return perform(request)

    receiver._runtime.store.perform = late
    assert checkout("o") - began >= 1.49


def test_a_run_whose_claim_is_lost_is_not_suspended() -> None:
    """Another branch may have had more to do, so the run must not sleep for this one."""
    receiver = Receiver(MemoryStore(), policy=MANY.replace(max_attempts=1))
    lost, started = threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        assert lost.wait(60)
        time.sleep(0.1)

    @receiver.durable(key="order", scope=("x",))
    def checkout(steps: Steps, order: str) -> Any:
        with ThreadPoolExecutor(2) as pool:
            branches = [pool.submit(steps.run, "slow", slow), pool.submit(steps.wait, "go")]
            assert started.wait(60)
            steps._state.claim.expires = 0.0
            lost.set()
            return [each.result() for each in branches]

    with pytest.raises(LeaseLostError):
        checkout("o")
    record = receiver.record(checkout.key("o"))
    assert record is not None
    assert record.state is not State.SUSPENDED


def test_a_run_whose_claim_was_lost_before_its_function_started_is_never_swept() -> None:
    """Its lease expired while it waited for a thread: its record and steps stay, like those of any unfinished run."""
    receiver = Receiver(MemoryStore(), policy=POLICY)

    @receiver.durable(key="order", scope=("x",))
    def checkout(steps: Steps, order: str) -> None: ...

    asked = []

    def perform(command: Any) -> Any:
        asked.append(command)
        if isinstance(command, Invoke):
            return Raised(LostBeforeStartError("the claim expired", key=checkout.key("o")))
        return receiver.store.perform(command)

    flow = drive(deliver_run(checkout._call(("o",), {})), perform)
    assert isinstance(flow, Raised)
    assert isinstance(asked[-1], Abandon)
    assert asked[-1].retention == FOREVER
