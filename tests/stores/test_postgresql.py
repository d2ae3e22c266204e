"""What PostgreSQL pays: round trips, WAL, heap-only updates, bytes; and that waiters are woken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.polling import until
from tests.stores.drivers import KINDS, DriverReceiver, url_for
from tests.stores.turns import Turns
from twicesafe import AsyncReceiver, Key, Receiver
from twicesafe._core.protocol import ClaimRequest
from twicesafe._engines.postgresql.programs import PostgresPrograms
from twicesafe._engines.postgresql.session import BY_INDEX
from twicesafe._engines.sql.commands import dollars

MESSAGES = [f"m{number}" for number in range(300)]


def ask(url: str, sql: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(sql).fetchone()  # type: ignore[arg-type]
    assert row is not None
    return row[0] if len(row) == 1 else row


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(kind: str, postgres_url: str) -> Iterator[DriverReceiver]:
    with DriverReceiver(kind, postgres_url) as opened:
        opened.process("warm", str, 1)
        opened.process_many(["warm too", "and this"], str, key=str)
        yield opened


# --- round trips -----------------------------------------------------------------------------


def spent(count: Callable[[], int], client: DriverReceiver) -> list[int]:
    """Round round_trips of: a first call, a duplicate, a batch, the batch again."""
    round_trips: list[int] = []
    for act in (
        lambda: client.process("k", str, 1),
        lambda: client.process("k", str, 1),
        lambda: client.process_many(MESSAGES, str, key=str),
        lambda: client.process_many(MESSAGES, str, key=str),
    ):
        before = count()
        act()
        round_trips.append(count() - before)
    return round_trips


@pytest.mark.usefixtures("ends_go_together")
def test_statements_two_for_a_first_call_one_for_a_duplicate_two_for_a_batch(
    client: DriverReceiver,
):
    statements: list[str] = []
    client.store._tap = lambda when, _: statements.append(when)
    assert spent(lambda: statements.count("before"), client) == [2, 1, 2, 1]


@pytest.mark.usefixtures("ends_go_together")
def test_the_same_counted_on_the_wire(kind: str, postgres: Any, postgres_url: str):
    with Turns(postgres.port) as proxy:
        url = postgres_url.replace(f":{postgres.port}/", f":{proxy.port}/")
        with DriverReceiver(kind, url) as client:
            client.process("warm", str, 1)  # connections stand, statements are prepared
            client.process_many(["warm too", "and this"], str, key=str)
            assert spent(lambda: proxy.count, client) == [2, 1, 2, 1]


@pytest.mark.parametrize("kind", ["psycopg", "asyncpg"])
def test_the_same_on_the_older_server(kind: str, postgres16_url: str):
    with DriverReceiver(kind, postgres16_url) as client:
        statements: list[str] = []
        client.store._tap = lambda when, _: statements.append(when)
        client.process("warm", str, 1)
        assert spent(lambda: statements.count("before"), client)[:2] == [2, 1]


def test_a_take_over_is_one_statement_too(client: DriverReceiver, postgres_url: str):
    """By the version of the row that was seen; if that never held, each would be decided apart."""
    statements: list[str] = []
    over = "UPDATE twicesafe_keys SET lease_until = 1, expires_at = {end} RETURNING 1"
    for end, keys in ((0, ["left"]), (1, ["late"]), (0, ["a", "b"]), (1, ["c", "d"])):
        client.process_many(keys, str, key=str)
        ask(postgres_url, f"UPDATE twicesafe_keys SET state = {1 if end else 0} RETURNING 1")
        ask(postgres_url, over.format(end=end))
        client.store._tap = lambda when, _: statements.append(when)
        claims = [ClaimRequest(Key(key), key.ljust(16).encode(), 30000) for key in keys]
        answers = client._end(client.store.perform_many(claims))
        client.store._tap = None
        assert [answer.fence for answer in answers] == [2] * len(keys)
        assert statements.count("before") == 1
        statements.clear()


@pytest.mark.parametrize("op", ["claim", "complete", "fail", "renew"])
def test_a_plan_made_for_an_empty_table_goes_by_the_index(op: str, postgres_url: str):
    """It is kept while the table grows: to read all of it would be dear before long."""
    with Receiver.open(postgres_url), psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE twicesafe_keys")
        connection.execute(f"SELECT {BY_INDEX}")
        for text in getattr(PostgresPrograms("twicesafe", dollars).statements, op):
            rows = connection.execute(f"EXPLAIN (GENERIC_PLAN) {text}").fetchall()
            plan = "\n".join(row[0] for row in rows)
            assert "Index Scan using twicesafe_keys_pkey" in plan
            assert "Seq Scan on twicesafe_keys" not in plan


# --- what is written -------------------------------------------------------------------------


def test_a_duplicate_writes_no_wal(client: DriverReceiver, postgres_url: str):
    client.process("k", str, 1)
    client.process("k", str, 1)  # the first reader may leave hints on the page
    written = []
    for _ in range(5):  # other databases of the server write too: once quiet is enough
        before = ask(postgres_url, "SELECT pg_current_wal_insert_lsn()::text")
        for _ in range(20):
            assert client.process("k", str, 1).replayed
        written.append(ask(postgres_url, f"SELECT pg_current_wal_insert_lsn() - '{before}'"))
    assert 0 in written


def test_completions_are_heap_only(kind: str, postgres_url: str):
    with DriverReceiver(kind, postgres_url) as client:
        for number in range(200):
            client.process(f"key-{number}", "x".join, "ab" * 50)
    sql = (
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'twicesafe_keys'"
    )
    until = time.monotonic() + 60
    while (found := ask(postgres_url, sql))[0] < 200:
        assert time.monotonic() < until, "the statistics never came"
        time.sleep(0.02)
    changed, hot = found
    assert changed == 200
    assert hot > 0.9 * changed


def test_the_size_of_a_record(postgres_url: str):
    with Receiver.open(postgres_url) as receiver:
        for start in range(0, 20_000, 1000):
            messages = [f"key-{number}" for number in range(start, start + 1000)]
            receiver.process_many(messages, lambda _: "x" * 190, key=str)
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("VACUUM FULL twicesafe_keys")
    size = ask(postgres_url, "SELECT pg_total_relation_size('twicesafe_keys') / 20000")
    assert size <= 420  # rows of 200 bytes and their index, without the air between them


# --- waking up -------------------------------------------------------------------------------


class Rival:
    """Another process, as far as a waiter can see: its own receiver, at work until the test ends it."""

    def __init__(self, url: str, key: str) -> None:
        self._started, self._go = threading.Event(), threading.Event()
        self.ended = 0.0
        self._receiver = Receiver.open(url)
        self._thread = threading.Thread(target=self._work, args=(key,))
        self._thread.start()
        assert self._started.wait(60)

    def _work(self, key: str) -> None:
        self._receiver.process(key, self._handle)
        self.ended = time.monotonic()

    def _handle(self) -> str:
        self._started.set()
        assert self._go.wait(60)
        return "the rival's"

    def end_when_awaited(self, url: str) -> None:
        """Finish as soon as a waiter has marked the record, and is therefore asleep or about to be."""
        until(lambda: ask(url, "SELECT bool_or(awaited) FROM twicesafe_keys"))
        self.end()

    def end(self) -> None:
        self._go.set()
        self._thread.join(60)
        self._receiver.close()


@pytest.fixture
def slow_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter that is not woken sleeps long enough for the test to notice."""
    monkeypatch.setattr("twicesafe._core.delivery.LONGEST_WATCH", 20.0)


@pytest.mark.usefixtures("slow_looks")
def test_a_waiter_elsewhere_is_woken(kind: str, postgres_url: str):
    rival = Rival(postgres_url, "k")
    helper = threading.Thread(target=rival.end_when_awaited, args=(postgres_url,))
    helper.start()
    with DriverReceiver(kind, postgres_url) as client:
        outcome = client.process("k", str, "mine")
        woken = time.monotonic()
    helper.join()
    assert outcome.value == "the rival's"
    late = woken - rival.ended
    print(f"{kind}: answered {late * 1000:.1f} ms after the end")
    assert late < 1.0  # a poll would come 20 s later


@pytest.mark.usefixtures("slow_looks")
def test_a_lost_listener_wakes_everyone_and_is_replaced(kind: str, postgres_url: str):
    rival = Rival(postgres_url, "k")

    def cut_then_end() -> None:
        sql = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
        until = time.monotonic() + 60
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            first = None
            while first is None:
                assert time.monotonic() < until, "no connection listens"
                first = connection.execute(sql).fetchone()
            connection.execute("SELECT pg_terminate_backend(%s)", first)
            while connection.execute(sql).fetchone() in (None, first):
                assert time.monotonic() < until, "no connection listens again"
        rival.end_when_awaited(postgres_url)

    helper = threading.Thread(target=cut_then_end)
    helper.start()
    with DriverReceiver(kind, postgres_url) as client:
        assert client.process("k", str, "mine").value == "the rival's"
        woken = time.monotonic()
    helper.join()  # the woken caller may be faster than the rival's own end
    assert woken - rival.ended < 5.0


def test_without_wake_waiters_poll_and_no_connection_listens(kind: str, postgres_url: str):
    rival = Rival(postgres_url, "k")
    helper = threading.Timer(0.2, rival.end)
    helper.start()
    with DriverReceiver(kind, f"{postgres_url}?wake=false") as client:
        assert client.process("k", str, "mine").value == "the rival's"
        listening = ask(
            postgres_url,
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE query LIKE 'LISTEN%' AND datname = current_database()",
        )
    helper.join()
    assert listening == 0
    assert not ask(postgres_url, "SELECT bool_or(awaited) FROM twicesafe_keys")


def test_a_dead_workers_claim_is_taken_over_by_a_waiting_caller(kind: str, postgres_url: str):
    with DriverReceiver(kind, postgres_url) as client, Receiver.open(postgres_url) as dead:
        dead.store.perform(ClaimRequest(Key("k"), b"the dead worker.", 300))
        outcome = client.process("k", str, "mine")
    assert (outcome.value, outcome.attempt) == ("mine", 2)


# --- URLs ------------------------------------------------------------------------------------


def test_both_modes_and_both_drivers_share_one_table(postgres_url: str):
    for kind in KINDS:
        with DriverReceiver(kind, f"{postgres_url}?table=mine&schema=app") as client:
            client.process(kind, str, kind)
    with Receiver.open(f"{postgres_url}?table=mine&schema=app") as receiver:
        assert [receiver.process(kind, str, "again").value for kind in KINDS] == list(KINDS)
    assert ask(postgres_url, "SELECT count(*) FROM app.mine_keys") == 3
    assert isinstance(AsyncReceiver.open(url_for("asyncpg", postgres_url)), AsyncReceiver)
