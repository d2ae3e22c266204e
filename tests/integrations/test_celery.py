"""Celery, with its own worker on a real Valkey."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from celery import Celery, signals
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Ignore, SoftTimeLimitExceeded
from celery.exceptions import Retry as CeleryRetry

from tests.house.repository import ROOT
from twicesafe import Backoff, Key, Policy, Receiver, State, current_claim
from twicesafe.consumers import DeadLetter, Retry
from twicesafe.errors import ConfigurationError, HeldError, ParkedError
from twicesafe.integrations.celery import idempotent_task

POLICY = Policy(max_attempts=4, backoff=Backoff(first=60))
WAIT = 60

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # Celery's own call


@signals.setup_logging.connect
def leave_logging_alone(**_: object) -> None:
    """Celery would raise the root logger's level, for every test after these."""


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with Receiver.open("memory://", policy=POLICY) as opened:
        yield opened


@pytest.fixture(scope="module")
def app(valkey: Any, receiver: Receiver) -> Iterator[Celery]:
    """An app with a worker. Its keys in the server have their own prefix."""
    with valkey.fresh() as url:
        prefix = {"global_keyprefix": url.rpartition("=")[2]}
        made = Celery("shop", broker=valkey.url, set_as_current=False)
        made.Task = idempotent_task(receiver)
        made.conf.update(
            result_backend=valkey.url,
            broker_transport_options=prefix,
            result_backend_transport_options=prefix,
            worker_hijack_root_logger=False,
        )
        add_tasks(made, receiver)
        with start_worker(made, pool="solo", perform_ping_check=False):
            yield made
        made.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # Celery leaves its sockets open
            del made
            gc.collect()


RAN: list[Any] = []


@pytest.fixture
def ran() -> list[Any]:
    RAN.clear()
    return RAN


def add_tasks(app: Celery, receiver: Receiver) -> None:
    @app.task(shared=False, name="charge")
    def charge(cents: int) -> dict[str, int]:
        RAN.append(cents)
        return {"cents": cents, "run": len(RAN)}

    @app.task(shared=False, name="ask", bind=True)
    def ask(self: Any) -> str:
        claim = current_claim()
        assert claim is not None
        RAN.append((claim.attempt, self.request.retries))
        if claim.attempt < 3:
            raise self.retry(countdown=0)
        return "answered"

    @app.task(shared=False, name="auto", autoretry_for=(OSError,), default_retry_delay=0)
    def auto() -> int:
        RAN.append(1)
        if len(RAN) < 3:
            raise OSError("not yet")
        return len(RAN)

    @app.task(shared=False, name="slow", bind=True, max_retries=0)
    def slow(self: Any) -> str:
        RAN.append(self.request.retries)
        return "ran"

    @app.task(shared=False, name="broken")
    def broken() -> None:
        raise ValueError("no")

    @app.task(shared=False, name="endless", bind=True, max_retries=None)
    def endless(self: Any) -> None:
        RAN.append(1)
        raise self.retry(countdown=0)

    @app.task(shared=False, name="pages", bind=True)
    def pages(self: Any, left: int) -> str:
        RAN.append(left)
        if left:
            raise self.replace(self.s(left - 1))
        return "read"

    @app.task(shared=False, name="decide")
    def decide(how: str) -> str:
        RAN.append(how)
        if how == "dead":
            raise DeadLetter("no address")
        if RAN.count(how) == 1:
            raise Retry(after=0)
        return "done"

    @app.task(
        shared=False,
        name="ship",
        base=idempotent_task(receiver, key=lambda order: order["id"]),
    )
    def ship(order: dict[str, str]) -> int:
        RAN.append(order["id"])
        return len(RAN)


def test_a_repeat_gets_the_recorded_result(app: Celery, ran: list[Any]) -> None:
    charge = app.tasks["charge"]
    results = [charge.apply_async((5,), task_id=id_) for id_ in ("t-1", "t-1", "t-2")]
    assert results[2].get(WAIT) == {"cents": 5, "run": 2}
    assert results[1].get(WAIT) == {"cents": 5, "run": 1}
    assert ran == [5, 5]


def test_a_retry_of_the_task_releases_the_claim_and_counts(app: Celery, ran: list[Any]) -> None:
    assert app.tasks["ask"].delay().get(WAIT) == "answered"
    assert ran == [(1, 0), (2, 1), (3, 2)]


def test_a_task_that_replaces_itself_does_not_use_up_its_attempts(
    app: Celery, ran: list[Any]
) -> None:
    assert app.tasks["pages"].delay(7).get(WAIT) == "read"
    assert ran == [7, 6, 5, 4, 3, 2, 1, 0]


def test_an_automatic_retry_too(app: Celery, ran: list[Any]) -> None:
    assert app.tasks["auto"].delay().get(WAIT) == 3


def test_work_in_progress_elsewhere_is_put_off_and_uses_no_retry(
    app: Celery, receiver: Receiver, ran: list[Any]
) -> None:
    elsewhere = receiver.claim(Key("t", scope=("slow",)))

    def release(reason: CeleryRetry, **_: Any) -> None:
        elsewhere.release()

    signals.task_retry.connect(release, weak=False)
    try:
        with elsewhere:
            assert app.tasks["slow"].apply_async(task_id="t").get(WAIT) == "ran"
    finally:
        signals.task_retry.disconnect(release)
    assert ran == [0]


def test_a_failed_task_has_failed_with_its_own_error(app: Celery, receiver: Receiver) -> None:
    with pytest.raises(ValueError, match="no"):
        app.tasks["broken"].apply_async(task_id="b").get(WAIT)
    record = receiver.record(Key("b", scope=("broken",)))
    assert record is not None
    assert (record.state.value, record.attempt) == ("released", 1)


def test_retries_end_with_the_attempts(app: Celery, ran: list[Any]) -> None:
    with pytest.raises(ParkedError):
        app.tasks["endless"].delay().get(WAIT)
    assert len(ran) == POLICY.max_attempts


def test_a_task_may_decide_as_a_consumer_does(app: Celery, ran: list[Any]) -> None:
    assert app.tasks["decide"].delay("again").get(WAIT) == "done"
    with pytest.raises(DeadLetter, match="no address"):
        app.tasks["decide"].delay("dead").get(WAIT)
    assert ran == ["again", "again", "dead"]


def test_a_key_of_the_arguments(app: Celery, ran: list[Any]) -> None:
    first, again = [app.tasks["ship"].delay({"id": "o-1"}) for _ in range(2)]
    assert (first.get(WAIT), again.get(WAIT)) == (1, 1)
    assert ran == ["o-1"]


def test_a_killed_child_process_is_a_counted_attempt(
    valkey: Any, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`reject_on_worker_lost` brings the task back; it waits for the lease, then runs again."""
    place = {"BROKER": valkey.url, "STORE": valkey_url, "PREFIX": valkey_url.rpartition("=")[2]}
    command = [
        "worker",
        "--pool=prefork",
        "--concurrency=1",
        "--loglevel=CRITICAL",
        "--without-mingle",
    ]
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "tests.integrations.celery_app", *command],
        cwd=ROOT,
        env={**os.environ, "C_FORCE_ROOT": "1", "PYTHONPATH": str(ROOT)},
    )
    try:
        from tests.integrations.celery_app import app, fatal, receiver

        assert fatal.delay().get(200) == [2, "lease_expired"]
    finally:
        worker.terminate()
        worker.wait(60)
    receiver.close()
    app.close()


# -- without a worker -------------------------------------------------------------------------


def settings_of(caplog: pytest.LogCaptureFixture, receiver: Receiver, **settings: Any) -> str:
    app = Celery("shop", broker="redis://", set_as_current=False)
    app.conf.broker_transport_options = settings.pop("transport", {})

    @app.task(shared=False, name="t", base=idempotent_task(receiver), **settings)
    def task() -> None: ...

    with caplog.at_level(logging.WARNING, "twicesafe"):
        app.finalize()
        assert app.tasks["t"].app is app
    return caplog.text


@pytest.mark.parametrize(
    "settings, told",
    [
        ({"acks_late": False}, "acks_late is off"),
        ({"reject_on_worker_lost": False}, "reject_on_worker_lost is off"),
        ({"max_retries": 4}, "max_retries=4"),
        ({"max_retries": None}, "max_retries=None"),
        ({"transport": {"visibility_timeout": 20}}, "shorter than lease=30"),
        ({"transport": {"visibility_timeout": 90000}}, "raise retention"),
    ],
)
def test_settings_that_do_not_fit_are_named(
    caplog: pytest.LogCaptureFixture, receiver: Receiver, settings: dict[str, Any], told: str
) -> None:
    assert told in settings_of(caplog, receiver, **settings)


def test_settings_that_fit_are_quiet(caplog: pytest.LogCaptureFixture, receiver: Receiver) -> None:
    assert settings_of(caplog, receiver) == ""


def test_a_call_as_a_function_is_only_that(receiver: Receiver, ran: list[Any]) -> None:
    app = Celery("shop", set_as_current=False, task_cls=idempotent_task(receiver))

    @app.task(shared=False)
    def plain() -> None:
        ran.append(1)

    plain()
    plain()
    assert ran == [1, 1]


def test_eager_tasks_are_answered(receiver: Receiver, ran: list[Any]) -> None:
    app = Celery("shop", set_as_current=False, task_cls=idempotent_task(receiver))

    @app.task(shared=False)
    def eager() -> int:
        ran.append(1)
        return len(ran)

    assert [eager.apply(task_id="t").get() for _ in range(2)] == [1, 1]


def test_at_most_once_a_task_that_celery_cut_off_is_held(
    receiver: Receiver, ran: list[Any]
) -> None:
    """Celery raises this error in the task wherever it is, so the effect may have happened."""
    holding = receiver.options(policy=POLICY.replace(takeover="hold"))
    app = Celery("shop", set_as_current=False, task_cls=idempotent_task(holding))

    @app.task(shared=False)
    def too_long() -> None:
        ran.append(1)
        raise SoftTimeLimitExceeded

    for expected in (SoftTimeLimitExceeded, HeldError):
        with pytest.raises(expected):
            too_long.apply(task_id="cut").get()
    assert ran == [1]


@pytest.mark.parametrize("returns", [int, date, list[date]])
def test_a_task_that_raises_ignore_is_done(
    receiver: Receiver, ran: list[Any], returns: Any
) -> None:
    app = Celery("shop", set_as_current=False, task_cls=idempotent_task(receiver))

    def shipped() -> Any:
        ran.append(1)
        raise Ignore

    shipped.__annotations__["return"] = returns
    task = app.task(shared=False)(shipped)
    id_ = f"ignored-{returns}"
    assert [task.apply(task_id=id_).state for _ in range(2)] == ["IGNORED"] * 2
    assert ran == [1]
    record = receiver.record(Key(id_, scope=(task.name,)))
    assert record is not None
    assert record.state is State.COMPLETED


def test_tasks_of_celery_itself_are_left_alone(receiver: Receiver) -> None:
    """`celery.chord_unlock` polls: it retries as often as it must."""
    app = Celery("shop", set_as_current=False, task_cls=idempotent_task(receiver))
    own = app.tasks["celery.accumulate"]
    assert [own.apply((1, 2), task_id="t").get() for _ in range(2)] == [(1, 2)] * 2
    assert receiver.record(Key("t", scope=("celery.accumulate",))) is None


def test_running_without_a_store_is_refused(receiver: Receiver) -> None:
    with pytest.raises(ConfigurationError, match="outage='run'"):
        idempotent_task(receiver.options(policy=Policy(outage="run")))


def test_a_task_may_call_itself_as_a_function(receiver: Receiver, ran: list[Any]) -> None:
    app = Celery("shop", set_as_current=False, task_cls=idempotent_task(receiver))

    @app.task(shared=False)
    def factorial(number: int) -> int:
        ran.append(number)
        return 1 if number < 2 else number * int(factorial(number - 1))

    assert [factorial.apply((4,), task_id="t").get() for _ in range(2)] == [24, 24]
    assert ran == [4, 3, 2, 1]
