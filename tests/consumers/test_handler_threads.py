"""The threads of a blocking consumer's handlers: waiting jobs run at once, quick ones share a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.polling import until
from twicesafe._runtime.handler_threads import HandlerThreads

MOST = 8


@pytest.fixture
def threads() -> Iterator[HandlerThreads]:
    pool = HandlerThreads(MOST, "test-handler")
    yield pool
    pool.close()
    until(lambda: not running())


def running() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("test-handler")]


def test_jobs_that_wait_run_at_the_same_time(threads: HandlerThreads):
    together = threading.Barrier(MOST + 1)
    threads.run([together.wait] * MOST)  # type: ignore[list-item]
    together.wait(60)


def test_no_more_than_the_limit_run_at_once(threads: HandlerThreads):
    go, lock, most, now, done = threading.Event(), threading.Lock(), [0], [0], [0]

    def job() -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        go.wait(60)
        with lock:
            now[0] -= 1
            done[0] += 1

    threads.run([job] * (3 * MOST))
    until(lambda: now[0] == MOST)
    go.set()
    until(lambda: done[0] == 3 * MOST)
    assert most[0] == MOST


def test_jobs_that_come_one_by_one_are_all_run(threads: HandlerThreads):
    done = threading.Semaphore(0)
    for _ in range(2000):
        threads.run([done.release])
    for _ in range(2000):
        assert done.acquire(timeout=60)


def test_jobs_of_several_threads_at_once_are_all_run(threads: HandlerThreads):
    done = threading.Semaphore(0)

    def submit() -> None:
        for _ in range(200):
            threads.run([done.release] * 3)

    submitters = [threading.Thread(target=submit) for _ in range(4)]
    for one in submitters:
        one.start()
    for _ in range(4 * 200 * 3):
        assert done.acquire(timeout=60)
    for one in submitters:
        one.join()


def test_what_has_not_begun_is_dropped_and_the_threads_end(threads: HandlerThreads):
    began, go, late = threading.Semaphore(0), threading.Event(), []

    def job() -> None:
        began.release()
        go.wait(60)

    threads.run([job] * MOST)
    for _ in range(MOST):
        assert began.acquire(timeout=60)
    threads.run([lambda: late.append(1)])
    threads.close()
    go.set()
    until(lambda: not running())
    assert late == []
    threads.run([lambda: late.append(1)])
    assert late == []
