"""A system without a thread left (a limit of processes, no memory): one call fails, and no later one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from twicesafe import AsyncReceiver, Failure, Outcome, Policy, Receiver
from twicesafe._runtime.adapting import for_threads
from twicesafe._runtime.handler_threads import HandlerThreads

Refusal = Callable[..., None]

WAITS = 60
"""Seconds that a test waits for another thread before it fails."""


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refusal:
    """The system refuses the first thread of this name, after it has granted some."""
    start = threading.Thread.start

    def refuse_next(name: str, granted: int = 0) -> None:
        left = [granted + 1]

        def refused_once(thread: threading.Thread) -> None:
            if thread.name.startswith(name):
                left[0] -= 1
                if left[0] == 0:
                    raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refused_once)

    return refuse_next


POLICY = Policy(lease=0.3, max_lease=WAITS)


def test_the_claim_is_given_back_and_the_next_one_is_renewed(refuse: Refusal):
    renewed = threading.Event()
    with Receiver.open("memory://", policy=POLICY) as receiver:
        plain = receiver._runtime.keeper._perform_many

        def renew(asks: Any) -> Any:
            renewed.set()
            return plain(asks)

        receiver._runtime.keeper._perform_many = renew
        refuse("twicesafe-lease-keeper")
        with pytest.raises(RuntimeError, match="can't start new thread"):
            receiver.process("k", pytest.fail, "without a keeper its claim could run out unseen")
        outcome = receiver.process("k", renewed.wait, WAITS)
    assert (outcome.value, outcome.attempt) == (True, 1)


def test_the_claim_is_given_back_on_an_event_loop_too(refuse: Refusal):
    async def work() -> str:
        return "done"

    async def main() -> None:
        async with AsyncReceiver.open("memory://", policy=Policy(wait=0)) as receiver:
            refuse("twicesafe-lease-keeper")
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await receiver.process("k", work)
            assert (await receiver.process("k", work)).value == "done"

    asyncio.run(main())


def test_the_loop_of_an_async_object_is_started_by_the_next_call(refuse: Refusal):
    class Source:
        async def take(self) -> str:
            return "taken"

        async def close(self) -> None: ...

    source = for_threads(Source(), "take")
    refuse("twicesafe-broker-loop")
    with pytest.raises(RuntimeError, match="can't start new thread"):
        source.take()
    assert source.take() == "taken"
    source.close()


@pytest.mark.parametrize("granted", [0, 1])
def test_jobs_are_done_by_the_threads_that_there_are(refuse: Refusal, granted: int):
    refuse("handlers", granted)
    threads, done = HandlerThreads(4, "handlers"), threading.Semaphore(0)
    jobs = [done.release] * 3
    if granted == 0:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threads.run(jobs)
        jobs = []
    threads.run(jobs)
    assert all(done.acquire(timeout=WAITS) for _ in range(3))
    threads.close()


@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_batch_is_done_by_the_threads_that_there_are(refuse: Refusal, granted: int):
    """Handlers that ran in threads had no record when the batch failed, and ran again."""
    runs: list[int] = []

    def handle(number: int) -> int:
        runs.append(number)
        return -number

    with Receiver.open("memory://") as receiver:
        receiver.process("first", handle, 0)  # the lease keeper has its thread
        refuse("twicesafe-batch", granted)
        for _ in range(2):
            done = receiver.process_many([1, 2, 3, 4], handle, key=str, concurrency=3)
            assert [one.value for one in done if isinstance(one, Outcome)] == [-1, -2, -3, -4]
    assert sorted(runs) == [0, 1, 2, 3, 4]


def test_a_handler_with_a_timeout_that_gets_no_thread_gives_its_claim_back(refuse: Refusal):
    with Receiver.open("memory://", policy=Policy(timeout=WAITS, wait=0)) as receiver:
        refuse("twicesafe-handler")
        with pytest.raises(RuntimeError, match="can't start new thread"):
            receiver.process("k", pytest.fail, "without a thread nothing ends it")
        outcome = receiver.process("k", str, 7)
    assert (outcome.value, outcome.attempt) == ("7", 1)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_so_does_one_of_a_batch(refuse: Refusal, concurrency: int):
    """It stayed in progress until its lease ended, and was held then, although nothing had run."""
    policy = Policy(timeout=WAITS, wait=0, takeover="hold")
    with Receiver.open("memory://", policy=policy) as receiver:
        refuse("twicesafe-handler")
        both = receiver.process_many("ab", str.upper, key=str, concurrency=concurrency)
        (failed,) = (one for one in both if isinstance(one, Failure))
        assert isinstance(failed.error, RuntimeError)
        assert failed.key is not None
        outcome = receiver.process(failed.key, str, 7)
    assert (outcome.value, outcome.attempt) == ("7", 1)
