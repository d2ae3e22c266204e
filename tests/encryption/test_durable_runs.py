"""Durable runs with encryption: results of steps, signals, arguments and reasons are not readable in the store."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from twicesafe import (
    Backoff,
    CompensatedError,
    CorruptRecordError,
    Policy,
    Receiver,
    ResultUnavailableError,
    State,
    Steps,
    SuspendedError,
)
from twicesafe.encryption import KeyRing
from twicesafe.errors import CompensationFailedError

CANARIES = (
    "canary-argument-1",
    "canary-result-2",
    "canary-signal-3",
    "canary-reason-4",
    "canary-skip-5",
)
ARGUMENT, RESULT, SIGNAL, REASON, SKIPPED = CANARIES
RING = KeyRing({"a": os.urandom(32)})
PLAIN = Policy(wait=0.1, backoff=Backoff(first=0.001, most=0.001), max_attempts=1)


def checkout(receiver: Receiver) -> Any:
    @receiver.durable(key="order", scope=("shop",), name="checkout")
    def run(steps: Steps, order: str, card: str) -> Any:
        charged = steps.run("charge", lambda: RESULT)
        return [card, charged, steps.wait("approval", timeout=3600)]

    return run


def saga(receiver: Receiver) -> Any:
    def undo(value: str) -> None:
        if value == SKIPPED:
            raise ConnectionError

    @receiver.durable(key="order", scope=("saga",), name="saga")
    def run(steps: Steps, order: str) -> None:
        steps.run("first", lambda: SKIPPED, undo=undo)
        steps.abort(REASON)

    return run


def use(url: str, policy: Policy) -> None:
    with Receiver.open(url, policy=policy) as receiver:
        run, undone = checkout(receiver), saga(receiver)
        run.submit("a", ARGUMENT)
        receiver.complete_abandoned()
        receiver.signal(run.key("a", ARGUMENT), "approval", SIGNAL)
        assert receiver.complete_abandoned().completed == 1
        assert run("a", ARGUMENT) == [ARGUMENT, RESULT, SIGNAL]
        with pytest.raises(CompensationFailedError):
            undone("a")
        receiver.skip(undone.key("a"), "first", by="ann")
        for _ in range(2):
            with pytest.raises(CompensatedError) as raised:
                undone("a")
            assert raised.value.reason == REASON


def found(folder: Path) -> list[str]:
    heap = b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    return [canary for canary in CANARIES if canary.encode() in heap]


@pytest.mark.attack("D17")
def test_nothing_readable_in_the_files_of_sqlite(tmp_path: Path) -> None:
    for name, policy, readable in (
        ("plain", PLAIN, list(CANARIES)),
        ("encrypted", PLAIN.replace(encryption=RING), []),
    ):
        (tmp_path / name).mkdir()
        use(f"sqlite:///{tmp_path / name}/keys.db", policy)
        assert found(tmp_path / name) == readable


@pytest.fixture
def waiting(tmp_path: Path) -> str:
    """Two runs that wait, encrypted."""
    url = f"sqlite:///{tmp_path}/keys.db"
    with Receiver.open(url, policy=PLAIN.replace(encryption=RING)) as receiver:
        for order in "ab":
            with pytest.raises(SuspendedError):
                checkout(receiver)(order, ARGUMENT)
            receiver.signal(checkout(receiver).key(order, ARGUMENT), "approval", SIGNAL)
    return url


@pytest.mark.attack("D17")
def test_a_result_that_is_copied_to_another_run_is_not_read(waiting: str, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "keys.db") as connection:
        connection.execute(
            "UPDATE twicesafe_runs_steps SET result = (SELECT result FROM twicesafe_runs_steps o"
            " WHERE o.name = twicesafe_runs_steps.name AND o.id <> twicesafe_runs_steps.id)"
        )
    connection.close()
    with Receiver.open(waiting, policy=PLAIN.replace(encryption=RING)) as receiver:
        run = checkout(receiver)
        with pytest.raises(CorruptRecordError):
            run("a", ARGUMENT)
        record = receiver.record(run.key("a", ARGUMENT))
        assert record is not None
        assert record.state is State.HELD, "its attempts are not used up, and nothing is undone"


@pytest.mark.parametrize("ring", [None, KeyRing({"b": os.urandom(32)})])
def test_a_node_without_the_key_runs_and_parks_nothing(waiting: str, ring: KeyRing | None) -> None:
    with Receiver.open(waiting, policy=PLAIN.replace(encryption=ring)) as receiver:
        run = checkout(receiver)
        report = receiver.complete_abandoned()
        assert (report.failed, report.parked) == (2, 0)
        record = receiver.record(run.key("a", ARGUMENT))
        assert record is not None
        assert record.state is State.SUSPENDED
        with pytest.raises(ResultUnavailableError, match="key ring"):
            run("a", ARGUMENT)
        receiver.release(run.key("a", ARGUMENT), by="ann", why="the key is here now")
    with Receiver.open(waiting, policy=PLAIN.replace(encryption=RING)) as receiver:
        assert checkout(receiver)("a", ARGUMENT) == [ARGUMENT, RESULT, SIGNAL]


# -- rotation ------------------------------------------------------------------------------------

OLD, NEW = os.urandom(32), os.urandom(32)
BEFORE, BOTH, AFTER = KeyRing({"a": OLD}), KeyRing({"b": NEW, "a": OLD}), KeyRing({"b": NEW})


def rotated(ring: KeyRing) -> Policy:
    return PLAIN.replace(encryption=ring)


@pytest.mark.attack("D10")
def test_a_suspended_run_is_reencrypted_and_resumes_without_the_old_key(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    with Receiver.open(url, policy=rotated(BEFORE)) as receiver:
        with pytest.raises(SuspendedError):
            checkout(receiver)("o-1", ARGUMENT)
        receiver.signal(checkout(receiver).key("o-2", ARGUMENT), "approval", SIGNAL)
    with Receiver.open(url, policy=rotated(BOTH)) as receiver:
        report = receiver.reencrypt()
        # Two values: the arguments and a step.
        assert (report.rewritten, report.changed, report.unreadable) == (2, 0, ())
        again = receiver.reencrypt()
        assert (again.rewritten, again.unreadable) == (0, ())
    with Receiver.open(url, policy=rotated(AFTER)) as receiver:
        run = checkout(receiver)
        receiver.signal(run.key("o-1", ARGUMENT), "approval", SIGNAL)
        assert run("o-1", ARGUMENT) == [ARGUMENT, RESULT, SIGNAL]
        assert receiver.complete_abandoned() is not None


@pytest.mark.attack("D10")
def test_a_run_whose_key_is_missing_is_reported_and_left_alone(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    with Receiver.open(url, policy=rotated(BEFORE)) as receiver, pytest.raises(SuspendedError):
        checkout(receiver)("o-1", ARGUMENT)
    with Receiver.open(url, policy=rotated(AFTER)) as receiver:
        report = receiver.reencrypt()
        assert (report.rewritten, len(report.unreadable)) == (0, 2)
    with Receiver.open(url, policy=rotated(BOTH)) as receiver:
        receiver.signal(checkout(receiver).key("o-1", ARGUMENT), "approval", SIGNAL)
        assert checkout(receiver)("o-1", ARGUMENT) == [ARGUMENT, RESULT, SIGNAL]


def test_a_run_in_progress_is_left_alone(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    with Receiver.open(url, policy=rotated(BEFORE)) as receiver:

        @receiver.durable(key="order", scope=("shop",))
        def run(steps: Steps, order: str) -> str:
            charged = steps.run("charge", lambda: RESULT)
            with Receiver.open(url, policy=rotated(BOTH)) as other:
                report = other.reencrypt()
                assert (report.rewritten, report.changed) == (0, 2)
            return str(charged)

        assert run("o-1") == RESULT
        later = receiver.options(policy=rotated(BOTH)).reencrypt()
        assert (later.rewritten, later.changed) == (3, 0)  # the answer too


def test_a_swapped_step_is_not_reencrypted(tmp_path: Path):
    """What was copied from another run does not decrypt, so a rotation must not make it valid."""
    path = tmp_path / "keys.db"
    url = f"sqlite:///{path}"
    with Receiver.open(url, policy=rotated(BEFORE)) as receiver:
        for order in ("o-1", "o-2"):
            with pytest.raises(SuspendedError):
                checkout(receiver)(order, ARGUMENT)
    with sqlite3.connect(path) as database:
        (table,) = database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE '%runs_steps'"
        ).fetchone()
        rows = database.execute(
            f"SELECT rowid, result FROM {table} WHERE result IS NOT NULL"
        ).fetchall()
        assert len(rows) == 2
        for (rowid, _), (_, other) in zip(rows, reversed(rows), strict=True):
            database.execute(f"UPDATE {table} SET result = ? WHERE rowid = ?", (other, rowid))
    database.close()
    with Receiver.open(url, policy=rotated(BOTH)) as receiver:
        report = receiver.reencrypt()
    assert (report.rewritten, len(report.unreadable)) == (2, 2)  # only the arguments
