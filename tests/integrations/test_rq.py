"""RQ, with its own workers on a real Valkey."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis
from rq import Queue, Repeat, Retry, SimpleWorker
from rq.job import Job, JobStatus

from tests.house.repository import ROOT
from tests.integrations import rq_jobs
from twicesafe import Backoff, Key, Policy, Receiver, State
from twicesafe.errors import ConfigurationError
from twicesafe.integrations.rq import idempotent_job

POLICY = Policy(max_attempts=4, backoff=Backoff(first=60))


@pytest.fixture
def redis(valkey: Any) -> Iterator[Redis]:
    """A database of the server that no other test uses."""
    with Redis(port=valkey.port, db=11) as client:
        client.flushdb()
        yield client


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver.open("memory://", policy=POLICY) as opened:
        yield opened


@pytest.fixture
def queue(redis: Redis, receiver: Receiver) -> Queue:
    return Queue("orders", connection=redis, job_class=idempotent_job(receiver))


@pytest.fixture
def ran() -> list[Any]:
    rq_jobs.RAN.clear()
    return rq_jobs.RAN


def work(queue: Queue) -> None:
    worker = SimpleWorker([queue], connection=queue.connection, job_class=queue.job_class)
    worker.log_job_description = False
    worker.work(burst=True, logging_level="ERROR")


def done(queue: Queue, function: Any, *args: Any, **options: Any) -> Job:
    job = queue.enqueue(function, *args, **options)
    work(queue)
    job.refresh()
    return job


def test_a_repeat_gets_the_recorded_result(queue: Queue, ran: list[Any]) -> None:
    for id_, run in (("t-1", 1), ("t-1", 1), ("t-2", 2)):
        job = done(queue, rq_jobs.charge, 5, job_id=id_)
        assert job.return_value() == {"cents": 5, "run": run}
    assert ran == [5, 5]


def test_an_async_function(queue: Queue, ran: list[Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # RQ leaves its event loop open
        for _ in range(2):
            assert done(queue, rq_jobs.charge_async, 7, job_id="a").return_value() == 7
        gc.collect()
    assert ran == [7]


def test_the_function_finds_its_job(queue: Queue) -> None:
    assert done(queue, rq_jobs.current, job_id="me").return_value() == "me"


def test_rqs_own_retries_decide_and_count(queue: Queue, receiver: Receiver, ran: list[Any]) -> None:
    job = done(queue, rq_jobs.broken, job_id="b", retry=Retry(max=2))
    assert job.get_status() is JobStatus.FAILED
    assert "ValueError: no" in str(job.latest_result().exc_string)  # type: ignore[union-attr]
    assert ran == [1, 2, 3]
    record = receiver.record(Key("b", scope=("tests.integrations.rq_jobs.broken",)))
    assert record is not None
    assert (record.state.value, record.attempt) == ("released", 3)


def test_retries_end_with_the_attempts(queue: Queue, ran: list[Any]) -> None:
    job = done(queue, rq_jobs.broken, retry=Retry(max=9))
    assert ran == [1, 2, 3, 4]
    assert "ValueError: no" in str(job.latest_result().exc_string)  # type: ignore[union-attr]
    assert job.get_status() is JobStatus.FAILED


def test_at_most_once_a_job_that_rq_cut_off_is_held(
    redis: Redis, receiver: Receiver, ran: list[Any]
) -> None:
    """RQ raises this error in the function wherever it is, so the effect may have happened."""
    holding = receiver.options(policy=POLICY.replace(takeover="hold"))
    queue = Queue("orders", connection=redis, job_class=idempotent_job(holding))
    job = done(queue, rq_jobs.too_long, job_id="t", retry=Retry(max=2))
    assert ran == [1]
    assert "HeldError" in str(job.latest_result().exc_string)  # type: ignore[union-attr]
    record = receiver.record(Key("t", scope=("tests.integrations.rq_jobs.too_long",)))
    assert record is not None
    assert (record.state, record.error) == (State.HELD, "JobTimeoutException")


def test_a_returned_retry_releases_the_claim(queue: Queue, ran: list[Any]) -> None:
    assert done(queue, rq_jobs.ask).return_value() == "answered"
    assert ran == [1, 2, 3]


def test_work_in_progress_elsewhere_goes_back_to_the_queue(
    queue: Queue, receiver: Receiver, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = receiver.claim(Key("t", scope=("tests.integrations.rq_jobs.charge",)))
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        elsewhere.release()

    monkeypatch.setattr("twicesafe.integrations.rq.time", SimpleNamespace(sleep=pause))
    with elsewhere:
        job = done(queue, rq_jobs.charge, 5, job_id="t", retry=Retry(max=1))
    assert job.return_value() == {"cents": 5, "run": 1}
    assert job.retries_left == 1
    assert len(pauses) == 1


def test_a_job_that_was_put_off_keeps_the_retries_that_it_returns(
    queue: Queue, receiver: Receiver, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RQ counts returned retries per job, and the function allows itself two."""
    elsewhere = receiver.claim(Key("t", scope=("tests.integrations.rq_jobs.ask_twice",)))
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            elsewhere.release()

    monkeypatch.setattr("twicesafe.integrations.rq.time", SimpleNamespace(sleep=pause))
    with elsewhere:
        job = done(queue, rq_jobs.ask_twice, job_id="t")
    assert job.return_value() == "answered"
    assert (len(pauses), job.number_of_retries) == (4, 2)


def test_each_repetition_that_rq_schedules_is_its_own_run(queue: Queue, ran: list[Any]) -> None:
    """`Repeat` enqueues the same job again: this is new work. A second delivery of it is not."""
    job = done(queue, rq_jobs.charge, 5, job_id="hourly", repeat=Repeat(times=2))
    assert ran == [5, 5, 5]
    queue.enqueue_job(job)
    work(queue)
    assert ran == [5, 5, 5]
    assert job.return_value() == {"cents": 5, "run": 3}


def test_a_job_may_decide_as_a_consumer_does(queue: Queue, ran: list[Any]) -> None:
    assert done(queue, rq_jobs.choose, "again").return_value() == "done"
    job = done(queue, rq_jobs.choose, "dead", retry=Retry(max=5))
    assert job.get_status() is JobStatus.FAILED
    assert "no address" in str(job.latest_result().exc_string)  # type: ignore[union-attr]
    assert ran == ["again", "again", "dead"]


def test_a_key_of_the_arguments(redis: Redis, receiver: Receiver, ran: list[Any]) -> None:
    job_class = idempotent_job(receiver, key=lambda order: order["id"])
    queue = Queue("orders", connection=redis, job_class=job_class)
    results = [done(queue, rq_jobs.ship, {"id": "o-1"}).return_value() for _ in range(2)]
    assert results == [1, 1]
    assert ran == ["o-1"]


def test_a_killed_work_horse_is_a_counted_attempt(
    redis: Redis, valkey: Any, valkey_url: str
) -> None:
    """RQ's retry brings the job back; it waits for the lease, then runs again."""
    url = f"redis://127.0.0.1:{valkey.port}/11"
    queue = Queue("orders", connection=redis)
    job = queue.enqueue(rq_jobs.fatal, retry=Retry(max=1))
    words = ["worker", "--burst", "--url", url, "--job-class", "tests.integrations.rq_jobs.Job"]
    subprocess.run(
        [Path(sys.executable).parent / "rq", *words, "--logging_level", "CRITICAL", "orders"],
        cwd=ROOT,
        env={**os.environ, "STORE": valkey_url, "PYTHONPATH": str(ROOT)},
        timeout=200,
        check=True,
    )
    job.refresh()
    assert job.return_value() == [2, "lease_expired"]


def test_running_without_a_store_is_refused(receiver: Receiver) -> None:
    with pytest.raises(ConfigurationError, match="outage='run'"):
        idempotent_job(receiver.options(policy=Policy(outage="run")))


def test_the_example(valkey: Any, redis: Redis, tmp_path: Path) -> None:
    example = ROOT / "examples" / "brokers" / "rq_jobs.py"
    shown = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        env={**os.environ, "BROKER": f"redis://127.0.0.1:{valkey.port}/11"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines() == ["charging o-1", "charged o-1", "charged o-1"]
