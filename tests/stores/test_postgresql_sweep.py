"""Sweeping PostgreSQL: in bounded bites, past what others hold, and never what is in progress."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from twicesafe import Key, Policy, Receiver, State
from twicesafe.core.protocol import Claim, Sweep, Verdict
from twicesafe.records import SweepReport
from twicesafe.stores.postgresql import PostgresStore
from twicesafe.tokens import new_owner

OLD = "UPDATE twicesafe_records SET expires_at = 1 WHERE expires_at > 0"


@pytest.fixture
def receiver(postgres_url: str) -> Iterator[Receiver]:
    with Receiver.open(postgres_url, policy=Policy(wait=5)) as opened:
        yield opened


@pytest.fixture
def connection(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as opened:
        yield opened


def fill(receiver: Receiver, connection: psycopg.Connection, number: int) -> None:
    """So many records that are past their retention, and one claim that is older than all."""
    receiver.store.perform(Claim(Key("at work"), b"o" * 16, 1))
    receiver.process_many([f"old-{each}" for each in range(number)], str, key=str)
    connection.execute(OLD)


def bites(receiver: Receiver, limit: int) -> Iterator[SweepReport]:
    after = ""
    while True:
        report, after = receiver.store.perform(Sweep(limit, after))
        yield report
        if not after:
            return


def test_bites_are_bounded_and_leave_what_is_in_progress(
    receiver: Receiver, connection: psycopg.Connection
):
    fill(receiver, connection, 1000)
    receiver.process("kept", str, 1)
    reports = list(bites(receiver, 100))
    assert sum(report.removed for report in reports) == 1000
    assert max(report.examined for report in reports) <= 100
    stats = receiver.stats()
    assert stats.by_state == {State.IN_PROGRESS: 1, State.COMPLETED: 1}


def test_what_somebody_holds_is_passed_over(receiver: Receiver, connection: psycopg.Connection):
    fill(receiver, connection, 50)
    with connection.transaction():
        connection.execute(
            "SELECT id FROM twicesafe_records WHERE expires_at = 1 ORDER BY id LIMIT 7 FOR UPDATE"
        )
        assert receiver.sweep().removed == 43  # at once: it does not wait for the seven
    assert receiver.sweep().removed == 7


def test_two_nodes_sweep_at_once_and_share_the_work(
    receiver: Receiver, connection: psycopg.Connection, postgres_url: str
):
    fill(receiver, connection, 5000)
    removed: list[int] = []
    errors: list[BaseException] = []
    start = threading.Barrier(2)

    def sweep() -> None:
        try:
            with Receiver.open(postgres_url) as node:
                start.wait()
                removed.append(sum(report.removed for report in bites(node, 50)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=sweep) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sum(removed) == 5000  # none twice; what one passed over, the other had
    assert receiver.stats().total == 1


def test_fences_do_not_restart_after_a_sweep(receiver: Receiver, connection: psycopg.Connection):
    for _ in range(3):
        receiver.process("k", str, 1)
        connection.execute(OLD)
    fence = receiver.process("k", str, 1).fence
    connection.execute(OLD)
    assert receiver.sweep().removed == 1
    assert receiver.process("k", str, 1).fence > fence


def test_no_fence_is_given_out_twice_wherever_a_claim_is_held_up(
    receiver: Receiver, connection: psycopg.Connection, postgres_url: str
):
    """Between two statements of one claim, another lives its whole life and is swept."""
    with closing(PostgresStore.open(postgres_url)) as store:
        for gap in itertools.count():
            key, fences, statements = receiver.key(f"gap-{gap}"), [], itertools.count()

            def meanwhile(when: str, command: Any) -> None:
                if when == "before" and command.sql != "COMMIT" and next(statements) == gap:  # noqa: B023
                    fences.append(receiver.process(key, str, 1).fence)  # noqa: B023
                    connection.execute(OLD)
                    assert receiver.sweep().removed == 1

            store._tap = meanwhile
            claim = Claim(key, new_owner(), 30_000)
            answer = store._run(store.programs._decide_alone(claim))
            if not fences:
                break  # it has no such statement: all gaps were tried
            assert answer.verdict is Verdict.WON
            assert answer.fence > fences[0]
    assert gap >= 3


def test_claims_that_race_with_sweeps_win_with_a_record_behind_them(
    receiver: Receiver, connection: psycopg.Connection, postgres_url: str
):
    """Everything is always expired: each claim meets a record that a sweep is about to remove."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def sweep() -> None:
        try:
            with (
                Receiver.open(postgres_url) as node,
                psycopg.connect(postgres_url, autocommit=True) as own,
            ):
                while not stop.is_set():
                    own.execute(OLD)
                    node.sweep()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=sweep)
    thread.start()
    fences: dict[str, int] = {}
    try:
        for number in range(400):
            key = f"key-{number % 5}"
            with receiver.claim(key) as claim:
                if claim.is_new:
                    assert receiver.record(key) is not None
                    assert claim.fence > fences.get(key, 0)
                    fences[key] = claim.fence
                    claim.complete(number)
    finally:
        stop.set()
        thread.join()
    assert errors == []
    assert len(fences) == 5
