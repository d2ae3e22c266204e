"""Generations of PostgreSQL: two nodes at the turn, in a forced order; and how generations end.

Transactions are held open on purpose. Each test of the gate has its negative control: the same
steps without the gate, which give one key to two workers.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.polling import until
from tests.stores.drivers import KINDS, DriverReceiver
from twicesafe import Key
from twicesafe._core.driving import drive
from twicesafe._core.protocol import (
    Ack,
    Browse,
    ClaimRequest,
    Complete,
    Fail,
    History,
    Read,
    Release,
    Renew,
    Sweep,
    Verdict,
)
from twicesafe._engines.postgresql import PostgresStore
from twicesafe._engines.postgresql.async_store import AsyncpgStore
from twicesafe._engines.postgresql.generations import GenerationPrograms
from twicesafe._engines.postgresql.settings import Settings
from twicesafe._engines.sql.commands import atomically
from twicesafe.errors import ConfigurationError, StoreError

A, B = b"a" * 16, b"b" * 16
HOUR = 3_600_000
KEY = Key("order-77", ("shop",))
ALWAYS = 0.0001


@pytest.fixture(params=["postgres", "postgres16"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    opened = PostgresStore(replace(Settings.of(url), generations=ALWAYS))
    yield opened
    opened.close()


def programs_of(store: Any) -> GenerationPrograms:
    programs = store.programs
    assert isinstance(programs, GenerationPrograms)
    return programs


def turn(store: PostgresStore) -> bool | None:
    programs = programs_of(store)
    return store._run(programs._when_free(programs.turn()))


def generations(store: PostgresStore, key: Key = KEY) -> list[int]:
    """Where this key's records are."""
    with store._pool.connection() as connection:
        rows = connection.execute(
            "SELECT generation FROM twicesafe_generations WHERE uuid_send(id) = %s", (key.id[:16],)
        ).fetchall()
    return [row[0] for row in rows]


def parts(store: PostgresStore) -> list[str]:
    with store._pool.connection() as connection:
        rows = connection.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits"
            " WHERE inhparent = 'twicesafe_generations'::regclass ORDER BY inhrelid"
        ).fetchall()
    return [row[0] for row in rows]


@contextmanager
def a_node(store: PostgresStore) -> Iterator[tuple[Any, Callable[[Any], Any]]]:
    """Another node's connection, and how programs are run on it."""
    connection = store._connect()
    try:
        yield connection, connection.perform
    finally:
        connection.close()


@contextmanager
def meanwhile(store: PostgresStore, act: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Do it in a thread, and go on when the server says that it waits for a lock."""
    with ThreadPoolExecutor(1) as pool, a_node(store) as (watcher, _):
        future = pool.submit(act)
        until = time.monotonic() + 60
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        while not future.done() and not watcher.execute(waiting).fetchone()[0]:
            assert time.monotonic() < until, "it neither ended nor waited"
        yield future


def gateless(program: Any) -> Iterator[Any]:
    """The same program without its LOCK."""
    reply = None
    try:
        while True:
            command = program.send(reply)
            reply = 0 if command.sql.startswith("LOCK TABLE") else (yield command)
    except StopIteration as end:
        return end.value


# --- two nodes at the turn -------------------------------------------------------------------


def test_a_claim_under_way_holds_the_gate(store: PostgresStore):
    """A has claimed and not committed; B cannot turn, and waits for A in the index they share."""
    with a_node(store) as (connection, execute):
        execute_one = programs_of(store).perform
        connection.execute("BEGIN")
        won = drive(execute_one(ClaimRequest(KEY, A, HOUR)), execute)
        assert won.verdict is Verdict.WON
        assert turn(store) is None, "the gate is open while a claim is under way"
        with meanwhile(store, lambda: store.perform(ClaimRequest(KEY, B, HOUR))) as other:
            assert not other.done()
            connection.execute("COMMIT")
            assert other.result().verdict is Verdict.BUSY
    assert generations(store) == [1]


def test_without_the_gate_both_would_win(store: PostgresStore):
    """The negative control of the test above."""
    with a_node(store) as (connection, execute):
        connection.execute("BEGIN")
        first = drive(programs_of(store).perform(ClaimRequest(KEY, A, HOUR)), execute)
        assert store._run(atomically(gateless(programs_of(store).turn())))
        second = store.perform(ClaimRequest(KEY, B, HOUR))
        connection.execute("COMMIT")
    assert (first.verdict, second.verdict) == (Verdict.WON, Verdict.WON)
    assert sorted(generations(store)) == [1, 2], "two records of one key"


@pytest.mark.parametrize("prepare", ["true", "false"])
def test_a_claim_that_met_the_gate_goes_through_it(url: str, prepare: str):
    """It was sent before the turn and waited: it must see what was committed before the turn."""
    settings = replace(Settings.of(f"{url}?prepare={prepare}"), generations=ALWAYS)
    store = PostgresStore(settings)
    for number in range(8):  # until the server has made up its mind about the plan
        store.perform(ClaimRequest(Key(f"warm-{number}"), B, HOUR))
    with a_node(store) as (connection, execute):
        # Both in one transaction: a claim by A, which belongs to the old generation, and the turn.
        connection.execute("BEGIN")
        assert (
            drive(programs_of(store).perform(ClaimRequest(KEY, A, HOUR)), execute).verdict
            is Verdict.WON
        )
        assert drive(programs_of(store).turn(), execute)
        with meanwhile(store, lambda: store.perform(ClaimRequest(KEY, B, HOUR))) as late:
            with meanwhile(store, lambda: store.perform(ClaimRequest(Key("new"), B, HOUR))) as new:
                assert not late.done()
                assert not new.done()
                connection.execute("COMMIT")
                assert new.result().verdict is Verdict.WON
            assert late.result().verdict is Verdict.BUSY
    assert (generations(store), generations(store, Key("new"))) == ([1], [2])
    store.close()


async def test_asyncpg_goes_through_the_gate_too(url: str, store: PostgresStore):
    other = AsyncpgStore(store.settings)
    for number in range(8):
        await other.perform(ClaimRequest(Key(f"warm-{number}"), B, HOUR))
    with a_node(store) as (connection, execute):
        connection.execute("BEGIN")
        assert (
            drive(programs_of(store).perform(ClaimRequest(KEY, A, HOUR)), execute).verdict
            is Verdict.WON
        )
        assert drive(programs_of(store).turn(), execute)
        claiming = asyncio.ensure_future(other.perform(ClaimRequest(KEY, B, HOUR)))
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        with a_node(store) as (watcher, _):
            until = time.monotonic() + 60
            while not claiming.done() and not watcher.execute(waiting).fetchone()[0]:
                assert time.monotonic() < until, "it neither ended nor waited"
                await asyncio.wait({claiming}, timeout=0.001)
        assert not claiming.done()
        connection.execute("COMMIT")
        assert (await claiming).verdict is Verdict.BUSY
    assert generations(store) == [1]
    await other.close()


def test_a_claim_decided_under_a_lock_holds_the_gate_between_its_statements(store: PostgresStore):
    """It has looked and not yet inserted: no generation may begin in between."""
    turned: list[Any] = []

    def between(when: str, command: Any) -> None:
        if when == "before" and "INSERT INTO" in command.sql:
            store._tap = None
            turned.append(turn(store))

    store._tap = between
    answer = store._run(programs_of(store)._decide_alone(ClaimRequest(KEY, A, HOUR)))
    assert (answer.verdict, turned, generations(store)) == (Verdict.WON, [None], [1])


def test_where_snapshots_outlive_statements_nothing_is_written(url: str, store: PostgresStore):
    with a_node(store) as (connection, execute):
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(StoreError):
            drive(programs_of(store).perform(ClaimRequest(KEY, A, HOUR)), execute)
    assert generations(store) == []
    other = f"{url}?generations=6h&options=-c%20default_transaction_isolation%3Dserializable"
    with closing(PostgresStore.open(other)) as told:  # its own sessions it sets to another level
        assert told.perform(ClaimRequest(KEY, A, HOUR)).verdict is Verdict.WON


# --- what every write does to a record of an older generation --------------------------------


def test_a_waiter_for_a_record_that_is_moved_gets_it(store: PostgresStore):
    """An owner completes while a sweep has the record in hand; the driver would see an error."""
    mine = store.perform(ClaimRequest(KEY, A, HOUR))
    assert turn(store)
    for ask in (
        Renew(KEY.id, A, mine.fence, HOUR),
        Complete(KEY.id, A, mine.fence, HOUR, b"done"),
    ):
        turn(store)
        before = generations(store)
        with a_node(store) as (connection, execute):
            connection.execute("BEGIN")
            drive(programs_of(store)._look(before[0], 10), execute)
            with meanwhile(store, lambda ask=ask: store.perform(ask)) as waiting:
                connection.execute("COMMIT")
                assert waiting.result() is Ack.OK
        assert generations(store) > before
    assert store.perform(Read(KEY.id)).result == b"done"


def test_two_takeovers_of_a_record_of_an_older_generation(store: PostgresStore):
    store.perform(ClaimRequest(KEY, b"gone".ljust(16), 0))
    assert turn(store)
    with a_node(store) as (connection, execute):
        connection.execute("BEGIN")
        first = drive(programs_of(store).perform(ClaimRequest(KEY, A, HOUR)), execute)
        with meanwhile(store, lambda: store.perform(ClaimRequest(KEY, B, HOUR))) as second:
            connection.execute("COMMIT")
            assert second.result().verdict is Verdict.BUSY
    assert (first.verdict, first.attempt, generations(store)) == (Verdict.WON, 2, [2])


def test_a_waiter_hears_of_a_record_of_an_older_generation(store: PostgresStore):
    mine = store.perform(ClaimRequest(KEY, A, HOUR))
    turn(store)
    with ThreadPoolExecutor(1) as pool, a_node(store) as (watcher, _):
        waiting = pool.submit(store.watch, KEY.id, 60.0)
        marked = "SELECT count(*) FROM twicesafe_generations WHERE awaited"
        until(lambda: watcher.execute(marked).fetchone()[0])
        turn(store)
        store.perform(Complete(KEY.id, A, mine.fence, HOUR, b"x"))
        waiting.result(120)


# --- how generations end ---------------------------------------------------------------------


def completed(store: PostgresStore, name: str, retention: int) -> int:
    key = Key(name)
    mine = store.perform(ClaimRequest(key, A, HOUR))
    assert store.perform(Complete(key.id, A, mine.fence, retention, b"x")) is Ack.OK
    return int(mine.fence)


def test_a_sweep_drops_what_is_over_and_keeps_the_rest(store: PostgresStore):
    for number in range(5):
        completed(store, f"over-{number}", 0)
    completed(store, "kept", HOUR)
    running = store.perform(ClaimRequest(KEY, A, HOUR))
    report, after = store.perform(Sweep(500))
    assert (report.removed, report.examined, after) == (5, 7, "")
    assert parts(store) == ["twicesafe_g2"]
    assert store.perform(Read(Key("kept").id)).result == b"x"
    assert store.perform(Complete(KEY.id, A, running.fence, HOUR, b"y")) is Ack.OK
    assert len(store.perform(Browse(10)).rows) == 2


def test_fences_go_on_after_a_drop(store: PostgresStore):
    key = Key("busy")
    for _ in range(5):
        mine = store.perform(ClaimRequest(key, A, HOUR, 99))
        store.perform(Fail(key.id, A, mine.fence, 0, 99, HOUR))
    mine = store.perform(ClaimRequest(key, A, HOUR, 99))
    store.perform(Complete(key.id, A, mine.fence, 0, b"x"))
    assert store.perform(Sweep(500))[0].removed == 1
    assert store.perform(ClaimRequest(Key("another"), A, HOUR)).fence > mine.fence


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_without_generations_gets_an_error_that_names_them_and_not_migrate(
    kind: str, url: str
):
    """It is at work when the others begin to keep generations: its table is gone."""
    with DriverReceiver(kind, url) as client:
        assert client.process("k", str, 1).value == "1"
        PostgresStore.open(f"{url}?generations=6h").close()
        with pytest.raises(ConfigurationError, match="generations="):
            client.process("k", str, 1)


def test_the_floor_of_a_drop_is_as_high_as_its_highest_fence(store: PostgresStore):
    """Records of few and of many attempts in one generation: none of their fences comes back."""
    key = Key("busy")
    for _ in range(5):
        mine = store.perform(ClaimRequest(key, A, HOUR, 99))
        store.perform(Fail(key.id, A, mine.fence, 0, 99, HOUR))
    mine = store.perform(ClaimRequest(key, A, HOUR, 99))
    store.perform(Complete(key.id, A, mine.fence, 0, b"x"))
    completed(store, "quick", 0)
    assert store.perform(Sweep(500))[0].removed == 2
    assert store.perform(ClaimRequest(key, A, HOUR)).fence > mine.fence


def test_what_is_claimed_after_the_look_is_not_dropped(store: PostgresStore):
    """And its audit trail stays with it."""
    completed(store, "again", 0)
    completed(store, "over", 0)
    key = Key("again")
    store.perform(ClaimRequest(key, A, HOUR))
    store.perform(Release(key.id, "ann", "why", 0))
    claimed: list[Any] = []

    def before_the_lock(when: str, command: Any) -> None:
        if when == "before" and "ACCESS EXCLUSIVE" in command.sql and not claimed:
            claimed.append(store.perform(ClaimRequest(key, B, HOUR)))

    store._tap = before_the_lock
    store.perform(Sweep(500))
    store._tap = None
    assert claimed[0].verdict is Verdict.WON
    row = store.perform(Read(key.id))
    assert (row.owner, row.fence) == (B, claimed[0].fence)
    assert len(store.perform(History(key.id))) == 1
    assert "twicesafe_g1" not in parts(store)


def test_a_locked_record_keeps_its_generation(store: PostgresStore):
    store.perform(ClaimRequest(KEY, A, HOUR))
    with a_node(store) as (connection, _):
        connection.execute("BEGIN")
        connection.execute(
            "SELECT FROM twicesafe_generations WHERE uuid_send(id) = %s FOR UPDATE", (KEY.id[:16],)
        )
        assert store.perform(Sweep(500))[1] == "", "it is left for the next sweep"
        assert parts(store)[0] == "twicesafe_g1"
        connection.execute("COMMIT")
    store.perform(Sweep(500))
    assert parts(store)[0] != "twicesafe_g1"
    assert store.perform(Read(KEY.id)).owner == A


def test_a_long_reader_delays_a_drop_and_nothing_else(store: PostgresStore):
    completed(store, "over", 0)
    with a_node(store) as (connection, _):
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM twicesafe_generations")
        assert store.perform(Sweep(500))[0].removed == 0
        assert store.perform(ClaimRequest(KEY, A, HOUR)).verdict is Verdict.WON
        assert generations(store) == [2], "the turn does not wait for readers"
    assert store.perform(Sweep(500))[0].removed == 1


def test_a_table_that_was_rewritten_is_looked_at_again(store: PostgresStore):
    """VACUUM FULL puts rows into pages that were looked at already."""
    completed(store, "over", 0)
    turn(store)
    programs = programs_of(store)
    assert store._run(programs._when_free(programs._look(1, 10), 1)) == (1, 1, True)
    with a_node(store) as (connection, _):
        connection.execute("VACUUM FULL twicesafe_g1")
    assert store._run(programs._drop(1)) == 0
    assert store.perform(Sweep(500))[0].removed == 1


def test_a_generation_with_much_that_lives_is_left_alone(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("twicesafe._engines.postgresql.generation_sweep.FEW", 3)
    for number in range(4):
        completed(store, f"lives-{number}", HOUR)
    completed(store, "over", 0)
    report, _ = store.perform(Sweep(500))
    assert (report.removed, report.examined) == (0, 0)
    assert parts(store) == ["twicesafe_g1", "twicesafe_g2"]


def test_a_sweep_takes_bites(store: PostgresStore, monkeypatch: pytest.MonkeyPatch):
    """Few records are brought forward at a time, few pages looked at; it goes on where it was."""
    monkeypatch.setattr("twicesafe._engines.postgresql.generation_sweep.PAGES", 1)
    for number in range(60):
        completed(store, f"over-{number}", 0)
        store.perform(ClaimRequest(Key(f"lives-{number}"), A, HOUR))
    programs_of(store).period = HOUR
    reports, after = [], ""
    while True:
        report, after = store.perform(Sweep(7, after))
        reports.append(report)
        if not after:
            break
    assert len(reports) > 8
    assert sum(report.removed for report in reports) == 60
    assert sum(report.examined for report in reports) == 120
    assert parts(store) == ["twicesafe_g2"]


# --- opening ---------------------------------------------------------------------------------


def test_records_of_before_are_the_first_generation(url: str):
    plain = PostgresStore.open(url)
    mine = plain.perform(ClaimRequest(KEY, A, HOUR))
    plain.perform(Complete(KEY.id, A, mine.fence, HOUR, b"before"))
    store = PostgresStore.open(f"{url}?generations=6h")
    assert store.perform(ClaimRequest(KEY, B, HOUR)).result == b"before"
    with pytest.raises(ConfigurationError, match="generations"):  # a node that was not told
        plain.perform(ClaimRequest(Key("new"), B, HOUR))
    with pytest.raises(ConfigurationError, match="generations="):
        PostgresStore.open(url)
    plain.close()
    store.close()


def test_a_schema_of_its_own(url: str):
    store = PostgresStore.open(f"{url}?generations=6h&schema=app&table=keys")
    assert store.perform(ClaimRequest(KEY, A, HOUR)).verdict is Verdict.WON
    assert store.perform(Sweep(10))[0].removed == 0
    with a_node(store) as (connection, _):
        names = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'app' ORDER BY 1"
        ).fetchall()
    assert [name for (name,) in names] == [
        "keys_audit",
        "keys_closed",
        "keys_g2",
        "keys_generations",
        "keys_meta",
    ]
    store.close()


@pytest.mark.parametrize("text", ["5", "h", "10s", "-6h", "6 h", "٣h", "99999999d"])
def test_an_unusable_period_is_refused(text: str):
    with pytest.raises(ConfigurationError, match="generations="):
        Settings.of(f"postgresql://h/d?generations={text}")


@pytest.mark.parametrize(
    "text, seconds",
    [("", 0), ("off", 0), ("90s", 90), ("30m", 1800), ("6h", 21600), ("1.5h", 5400)],
)
def test_a_period(text: str, seconds: float):
    assert Settings.of(f"postgresql://h/d?generations={text}").generations == seconds


# --- what if a node dies here? ---------------------------------------------------------------


class DeathError(BaseException):
    """It is not caught: the connection ends, and with it the transaction."""


def _dying_at(statement: int) -> Callable[[str, Any], None]:
    seen: list[Any] = []

    def die(when: str, command: Any) -> None:
        if when == "before":
            seen.append(command)
        if len(seen) > statement:
            raise DeathError

    return die


def test_a_node_that_dies_at_any_statement_of_a_sweep_leaves_nothing_half_done(
    store: PostgresStore,
):
    deaths, time_limit = 0, time.monotonic() + 120
    for sweep in itertools.count():
        name = f"over-{sweep}"
        fence = completed(store, name, 0)
        running = store.perform(ClaimRequest(Key(f"running-{sweep}"), A, HOUR))
        store._tap = _dying_at(deaths)
        try:
            store.perform(Sweep(500))
        except DeathError:
            died = True
        else:
            died = False
        store._tap = None
        # The next sweep finishes what the dead one began, as soon as no other transaction uses the tables.
        until(lambda: store.perform(Sweep(500)) and len(parts(store)) == 1)
        assert store.perform(ClaimRequest(Key(name), A, HOUR)).fence > fence
        again = Complete(Key(f"running-{sweep}").id, A, running.fence, HOUR, b"x")
        assert store.perform(again) is Ack.OK
        if died:
            deaths += 1
        elif deaths > 20:
            break
        # Otherwise it gave way to autovacuum, which had locked a table: the same statement again.
        assert time.monotonic() < time_limit, f"no sweep has more than {deaths} statements"
