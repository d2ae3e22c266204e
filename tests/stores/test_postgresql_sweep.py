"""Sweeping PostgreSQL: in bounded bites, past what others hold, and never what is in progress."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import psycopg
import pytest

from tests.polling import until
from twicesafe import Inbox, Key, Policy, Receiver, State, StillInProgressError
from twicesafe._core.protocol import ClaimRequest, Sweep, Verdict
from twicesafe._engines.postgresql import PostgresStore
from twicesafe._values.keys import new_owner
from twicesafe._values.records import SweepReport

OLD = "UPDATE twicesafe_keys SET expires_at = 1 WHERE expires_at > 0"


@pytest.fixture
def receiver(postgres_url: str) -> Iterator[Receiver]:
    with Receiver.open(postgres_url, policy=Policy(wait=60)) as opened:
        yield opened


@pytest.fixture
def connection(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as opened:
        yield opened


def fill(receiver: Receiver, connection: psycopg.Connection, number: int) -> None:
    """So many records that are past their retention, and one claim that is older than all."""
    receiver.store.perform(ClaimRequest(Key("at work"), b"o" * 16, 1))
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


def test_locked_records_are_passed_over(receiver: Receiver, connection: psycopg.Connection):
    fill(receiver, connection, 50)
    with connection.transaction():
        connection.execute(
            "SELECT id FROM twicesafe_keys WHERE expires_at = 1 ORDER BY id LIMIT 7 FOR UPDATE"
        )
        assert receiver.sweep().removed == 43  # at once: it does not wait for the seven
    assert receiver.sweep().removed == 7


def test_only_a_sweep_commits_without_waiting_for_the_disk(
    receiver: Receiver, connection: psycopg.Connection
):
    """Deletions may be lost in a crash of the server, claims and results may not."""
    fill(receiver, connection, 10)
    connection.execute("""
        CREATE TABLE commits (op text, mode text);
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO commits VALUES (TG_OP, current_setting('synchronous_commit'));
            RETURN NULL; END $$;
        CREATE TRIGGER noting AFTER INSERT OR UPDATE OR DELETE ON twicesafe_keys
            FOR EACH ROW EXECUTE FUNCTION note();
    """)
    assert receiver.sweep().removed == 10
    receiver.process("next", str, 1)
    found = connection.execute("SELECT DISTINCT op, mode FROM commits").fetchall()
    assert sorted(found) == [("DELETE", "off"), ("INSERT", "on"), ("UPDATE", "on")]


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
                    receiver.sweep()  # which may find that another transaction still sees the old floor

            store._tap = meanwhile
            claim = ClaimRequest(key, new_owner(), 30_000)
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


# --- what stands still while the world goes on -------------------------------------------------

STALL = 4711
"""An advisory lock: a backend that was asked to stall goes no further while the test holds it."""

TRIGGER = f"""
CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF current_setting('test.stalls', true) = 'yes' THEN
        WHILE NOT pg_try_advisory_lock_shared({STALL}) LOOP PERFORM pg_sleep(0.005); END LOOP;
    END IF;
    RETURN new;
END $$;
CREATE TRIGGER stall BEFORE INSERT ON {{table}} FOR EACH ROW EXECUTE FUNCTION stall();
"""
"""After its snapshot, before it writes: where a SIGSTOP, a full disk or a slow host would catch it."""

STALLS = "options=-c%20test.stalls%3Dyes"

LEASE_MS = 500
"""Of the claim that stood still: the test ends with a takeover, which waits until this is over."""


class Stalled:
    """A claim of the store that stands still between its snapshot and its insert."""

    def __init__(self, url: str, key: Key, connection: psycopg.Connection, level: str = "") -> None:
        self._connection = connection
        connection.execute(f"SELECT pg_advisory_lock({STALL})")
        self.answer: Any = None
        self._work = threading.Thread(target=self._claim, args=(url, key, level))
        self._work.start()
        until(self._stands_still)

    def _claim(self, url: str, key: Key, level: str) -> None:
        if level:  # an inbox, at a level whose snapshot is as old as its transaction
            with Inbox.open(url) as inbox, psycopg.connect(url.partition("?")[0]) as mine:
                mine.execute(f"BEGIN ISOLATION LEVEL {level}")  # type: ignore[arg-type]
                mine.execute("SET LOCAL test.stalls = 'yes'")
                with suppress(StillInProgressError):  # its snapshot is too old to go on with
                    self.answer = inbox.process(mine, key, str, 1)
            return
        with closing(PostgresStore.open(f"{url}{'&' if '?' in url else '?'}{STALLS}")) as store:
            self.answer = store.perform(ClaimRequest(key, new_owner(), LEASE_MS))

    def _stands_still(self) -> bool:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND backend_xmin IS NOT NULL"
        row = self._connection.execute(sql).fetchone()
        return row is not None and row[0] == 1

    def go_on(self) -> Any:
        self._connection.execute(f"SELECT pg_advisory_unlock({STALL})")
        self._work.join()
        return self.answer


@pytest.mark.parametrize("lives", [1, 2])
@pytest.mark.parametrize("generations", ["", "?generations=60s"])
@pytest.mark.parametrize("level", ["", "REPEATABLE READ", "SERIALIZABLE"])
def test_no_fence_is_given_out_twice_while_a_backend_stands_still(
    connection: psycopg.Connection, postgres_url: str, generations: str, level: str, lives: int
):
    """Others claim the key, end, expire and are swept. Then the backend wakes and inserts."""
    if generations and level:
        pytest.skip("tables that keep generations refuse snapshots that outlive a statement")
    url = postgres_url + generations
    with Receiver.open(url) as receiver:
        table = "twicesafe_g1" if generations else "twicesafe_keys"
        connection.execute(TRIGGER.format(table=table))  # type: ignore[arg-type]
        key = receiver.key("k")
        stalled = Stalled(url, key, connection, level)
        fences = []
        try:
            for _ in range(lives):
                fences.append(receiver.process("k", str, 1).fence)
                connection.execute(OLD.replace("twicesafe_keys", table))  # type: ignore[arg-type]
                if generations:
                    connection.execute("UPDATE twicesafe_meta SET opened_at = 1")
                receiver.sweep()
        finally:
            answer = stalled.go_on()
        if not level and answer.verdict is Verdict.WON:
            fences.append(answer.fence)
        assert fences == sorted(set(fences))
        connection.execute(OLD.replace("twicesafe_keys", table))  # type: ignore[arg-type]
        assert receiver.process("k", str, 1).fence > fences[-1]
        connection.execute(OLD.replace("twicesafe_keys", table))  # type: ignore[arg-type]
        if not generations:
            assert receiver.sweep().removed == 1  # nothing stands in the way any more


def test_the_floor_is_as_high_as_the_highest_fence_that_goes(
    receiver: Receiver, connection: psycopg.Connection
):
    """Records of few and of many attempts in one bite: none of their fences comes back."""
    for _ in range(4):
        high = receiver.process("high", str, 1).fence
        connection.execute(OLD)
    receiver.process("low", str, 1)
    connection.execute(OLD)
    assert receiver.sweep().removed == 2
    assert receiver.process("high", str, 1).fence > high


def test_a_sweep_goes_on_although_transactions_overlap_without_end(
    receiver: Receiver, connection: psycopg.Connection, postgres_url: str
):
    """Two are always open, each over two sweeps, and every sweep meets a higher fence.

    Each floor is waited for until the transactions from before it are over, and no longer.
    """
    removed = 0
    with ExitStack() as stack:
        open_ = [stack.enter_context(psycopg.connect(postgres_url)) for _ in range(2)]
        for one in open_:
            begin(one)
        for turn in range(8):
            receiver.process(f"k{turn}", str, 1)
            connection.execute(OLD)
            removed += receiver.sweep().removed
            oldest = open_.pop(0)
            oldest.rollback()
            begin(oldest)
            open_.append(oldest)
        for one in open_:
            one.rollback()
    assert removed >= 3


def begin(connection: psycopg.Connection) -> None:
    """A transaction whose snapshot is as old as itself."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    connection.execute("SELECT 1 FROM twicesafe_meta")
