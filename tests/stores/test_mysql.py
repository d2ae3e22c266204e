"""MariaDB: round trips, text, clock, connections. The rules themselves are in tests/conformance."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pymysql
import pytest

from twicesafe import AsyncReceiver, Inbox, Key, Policy, Receiver, State
from twicesafe._core.protocol import Ack, Claimed, ClaimRequest, Complete, Read, Verdict
from twicesafe._engines.mysql import MysqlStore
from twicesafe._engines.mysql.one_column import LARGE
from twicesafe._engines.mysql.programs import MysqlPrograms
from twicesafe._engines.sql.commands import Query
from twicesafe.errors import StoreError, StoreUnavailableError

A, B = b"a" * 16, b"b" * 16
HOUR = 3_600_000


@pytest.fixture
def store(mariadb_url: str) -> Iterator[MysqlStore]:
    opened = MysqlStore.open(f"{mariadb_url}?pool=1")
    yield opened
    opened.close()


def connection_of(store: MysqlStore) -> Any:
    """The one connection of a store with ``pool=1``."""
    (place,) = store._pool._idle
    return place.connection.connection


class RoundTrips:
    """Statements that the server counted on the store's connection."""

    def __init__(self, store: MysqlStore) -> None:
        self._store = store
        self.count = 0

    def _questions(self) -> int:
        cursor = connection_of(self._store).cursor()
        cursor.execute("SHOW SESSION STATUS LIKE 'Questions'")
        return int(cursor.fetchone()[1])

    @contextmanager
    def counted(self) -> Iterator[RoundTrips]:
        before = self._questions()
        yield self
        self.count = self._questions() - before - 1  # the one that asks


# --- round trips -----------------------------------------------------------------------------


@pytest.mark.usefixtures("ends_go_together")
@pytest.mark.parametrize("returning, late", [(True, 1), (False, 2)], ids=["MariaDB", "MySQL"])
def test_round_trips(store: MysqlStore, mariadb_url: str, returning: bool, late: int):
    store.programs = MysqlPrograms("twicesafe", returning)
    other = MysqlStore.open(f"{mariadb_url}?pool=1")
    other.programs = MysqlPrograms("twicesafe", returning)
    round_trips, elsewhere = RoundTrips(store), RoundTrips(other)
    with Receiver(store) as receiver, Receiver(other) as duplicates:
        with round_trips.counted():
            receiver.process("k", lambda: "v")
        assert round_trips.count == 2
        with elsewhere.counted():
            assert duplicates.process("k", lambda: "other").replayed
        assert elsewhere.count == late
        with elsewhere.counted():  # known here by now: a plain read, which locks nothing
            assert duplicates.process("k", lambda: "other").replayed
        assert elsewhere.count == 1

        messages = [f"m{number}" for number in range(300)]
        with round_trips.counted():
            receiver.process_many(messages, str.upper, key=str)
        assert round_trips.count == 1 + late
        with elsewhere.counted():
            outcomes = duplicates.process_many(messages, str.upper, key=str)
        assert elsewhere.count == late
        assert all(outcome.replayed for outcome in outcomes)

        with round_trips.counted(), pytest.raises(ZeroDivisionError):
            receiver.process("fails", lambda: 1 / 0)
        assert round_trips.count == 2


async def test_round_trips_of_the_async_store(mariadb_url: str):
    async def handle() -> str:
        return "v"

    async with AsyncReceiver.open(f"{mariadb_url}?pool=1") as receiver:
        await receiver.process("first", handle)
        round_trips = RoundTrips(receiver.store.blocking_store())
        with round_trips.counted():
            await receiver.process("k", handle)
        assert round_trips.count == 2
        with round_trips.counted():
            assert (await receiver.process("k", handle)).replayed
        assert round_trips.count == 1


def test_a_known_duplicate_locks_nothing(store: MysqlStore, mariadb_url: str):
    """A waiter that asks again and again is never in its owner's way."""
    key = Key("k")
    store.perform(ClaimRequest(key, A, HOUR))
    assert store.perform(ClaimRequest(key, B, HOUR)).verdict is Verdict.BUSY
    with other_session(mariadb_url) as cursor:
        cursor.execute("START TRANSACTION")
        cursor.execute("SELECT * FROM twicesafe_keys FOR UPDATE")
        assert store.perform(ClaimRequest(key, B, HOUR)).verdict is Verdict.BUSY


# --- text and bytes --------------------------------------------------------------------------

TRAPS = [
    "abc", "ABC", "abc ", "abc  ", " abc", "abç", "abc\0", "straße", "strasse", "é", "e\N{COMBINING ACUTE ACCENT}",
    "\N{SNOWMAN}", "😀", "😁", "%s", "'; DROP TABLE x; --", "\\", "a\\'b",
]  # fmt: skip


def test_keys_that_a_collation_would_merge_stay_apart(store: MysqlStore):
    with Receiver(store) as receiver:
        for number, text in enumerate(TRAPS):
            assert receiver.process(text, lambda n=number: n).value == number, ascii(text)
            scoped = Key("k", scope=(text, "op"))
            assert receiver.process(scoped, lambda n=number: -n).value == -number, ascii(text)
        for text in TRAPS:
            assert receiver.record(text).value == text
            assert receiver.record(Key("k", scope=(text, "op"))).scope == (text, "op")
        page = list(receiver.records(scope=("abc",)))
        assert {record.scope for record in page} == {("abc", "op")}


def test_any_bytes_come_back(store: MysqlStore):
    for number, payload in enumerate((b"", bytes(range(256)), b"\\'\"%s\0" * 99, None)):
        key = Key(f"k{number}")
        won = store.perform(ClaimRequest(key, A, HOUR))
        assert store.perform(Complete(key.id, A, won.fence, HOUR, payload)) is Ack.OK
        assert store.perform(ClaimRequest(key, B, HOUR)).result == payload


SIZES = (0, 1, 255, 256, 16 * 1024, 16 * 1024 + 1, 65_535, 65_536, 100_000, 256 * 1024)


def test_results_of_any_size_come_back_from_a_batch(store: MysqlStore):
    """In a table of values MariaDB cuts what is longer than 64 KiB, without an error."""
    results = [os.urandom(size) for size in SIZES * 8]  # and three times what a packet may hold
    keys = [Key(f"k{number}") for number in range(len(results))]
    won: list[Claimed] = store.perform_many([ClaimRequest(key, A, HOUR) for key in keys])
    acks = store.perform_many(
        [
            Complete(key.id, A, claimed.fence, HOUR, result)
            for key, claimed, result in zip(keys, won, results, strict=True)
        ]
    )
    assert acks == [Ack.OK] * len(keys)
    replays = store.perform_many([ClaimRequest(key, B, HOUR) for key in keys])
    assert [replay.result == result for replay, result in zip(replays, results, strict=True)] == (
        [True] * len(keys)
    )


def test_a_large_result_comes_back_after_the_server_has_lowered_its_limit(
    mariadb_url: str, mariadb: Any
):
    """The server joins no values to one that is longer than max_allowed_packet."""
    large = os.urandom(LARGE + 1)
    first, second = Key("first"), Key("second")
    with closing(MysqlStore.open(mariadb_url)) as store:
        for key in (first, second):
            won = store.perform(ClaimRequest(key, A, HOUR))
            assert store.perform(Complete(key.id, A, won.fence, HOUR, large)) is Ack.OK
    with limited(mariadb, LARGE), closing(MysqlStore.open(mariadb_url)) as store:
        assert store.perform(ClaimRequest(first, B, HOUR)).result == large
        assert store.perform(ClaimRequest(first, B, HOUR)).result == large  # now it is known
        replays = store.perform_many([ClaimRequest(key, B, HOUR) for key in (first, second)])
        assert [replay.result for replay in replays] == [large, large]


@contextmanager
def limited(mariadb: Any, most: int) -> Iterator[None]:
    """New connections have this limit."""
    mariadb.execute(f"SET GLOBAL max_allowed_packet = {most:d}")
    try:
        yield
    finally:
        mariadb.execute("SET GLOBAL max_allowed_packet = DEFAULT")


def test_an_expired_record_with_a_large_result_is_replaced_in_the_callers_transaction(
    mariadb_url: str,
):
    first, second = "x" * (LARGE + 1), "y" * (LARGE + 1)
    policy = Policy(max_result_bytes=2 * LARGE)
    with Inbox.open(mariadb_url, policy=policy) as inbox, other_session(mariadb_url) as cursor:
        connection = cursor.connection
        connection.autocommit(False)
        answers = [inbox.process(connection, "k", lambda: first) for _ in range(2)]
        cursor.execute("UPDATE twicesafe_keys SET expires_at = 1")
        connection.commit()
        answers += [inbox.process(connection, "k", lambda: second) for _ in range(2)]
    assert [answer.value for answer in answers] == [first, first, second, second]
    assert [answer.replayed for answer in answers] == [False, True, False, True]


def test_what_does_not_fit_is_an_error_and_never_cut(store: MysqlStore):
    won = store.perform(ClaimRequest(Key("k"), A, HOUR))
    asks = [
        ClaimRequest(Key("long"), A, HOUR, fingerprint=b"f" * 70_000),
        Complete(Key("k").id, A, won.fence, HOUR, b"r", State.FAILED, "e" * 70_000),
    ]
    for ask in asks:
        with pytest.raises(StoreError, match="refuses a value") as caught:
            store.perform(ask)
        assert not caught.value.retryable
    assert all(type(answer) is StoreError for answer in store.perform_many(asks))
    assert store.perform(Read(Key("long").id)) is None
    assert store.perform(Read(Key("k").id)).state is State.IN_PROGRESS
    with pytest.raises(StoreError, match="max_allowed_packet"):
        store.perform(Complete(Key("k").id, A, won.fence, HOUR, bytes(9_000_000)))
    assert store.perform(Complete(Key("k").id, A, won.fence, HOUR, bytes(8_000_000))) is Ack.OK


# --- the server's clock and settings ---------------------------------------------------------


def test_whatever_the_server_defaults_to(own_server: Any):
    """A zone with an offset, no strict mode, another isolation: sessions are set to what we need."""
    server = own_server(
        "mariadb",
        default_time_zone="+05:45",
        sql_mode="NO_BACKSLASH_ESCAPES,ANSI_QUOTES",
        transaction_isolation="SERIALIZABLE",
        autocommit="0",
    )
    server.execute("CREATE DATABASE shop")
    with Receiver.open(server.url_of("shop")) as receiver:
        assert receiver.process('it\'s \\ a "key"', lambda: "it's \\ a value").value
        assert receiver.process('it\'s \\ a "key"', lambda: "").value == "it's \\ a value"
        record = receiver.record('it\'s \\ a "key"')
        assert abs(record.created_at.timestamp() - time.time()) < 600
        assert {finding.level for finding in receiver.doctor()} == {"ok"}


def test_leases_end_by_the_servers_clock(mariadb_url: str):
    policy = Policy(lease=0.2, wait=60)
    with Receiver.open(mariadb_url, policy=policy) as receiver:
        receiver.store.perform(ClaimRequest(Key("k"), A, 200))
        outcome = receiver.process("k", lambda: "taken over")
    assert (outcome.value, outcome.attempt) == ("taken over", 2)


# --- connections -----------------------------------------------------------------------------


def test_a_killed_connection_is_replaced_unseen(store: MysqlStore, mariadb: Any):
    with Receiver(store) as receiver:
        for number in range(5):
            mariadb.execute(f"KILL {connection_of(store).thread_id()}")
            assert receiver.process(f"k{number}", lambda n=number: n).value == number
        mariadb.execute(f"KILL {connection_of(store).thread_id()}")
        assert receiver.process("k1", lambda: None).replayed


def test_an_operators_act_is_not_repeated_by_itself(store: MysqlStore):
    """The answer to COMMIT is lost: the act was done, and is noted once."""
    store.perform(ClaimRequest(Key("k"), A, HOUR))

    def cut(moment: str, command: Any) -> None:
        if (moment, command.sql) == ("after", "COMMIT"):
            raise pymysql.OperationalError(2013, "Lost connection to MySQL server during query")

    with Receiver(store) as receiver:
        store._tap = cut
        with pytest.raises(StoreUnavailableError):
            receiver.release("k", by="ann", why="ticket 7")
        store._tap = None
        assert len(receiver.audit("k")) == 1


def test_a_workers_word_is_repeated_when_its_answer_was_lost(store: MysqlStore):
    lost: list[str] = []

    def cut(moment: str, command: Any) -> None:
        kind = next((word for word in ("INSERT", "UPDATE") if word in command.sql), "")
        if moment == "after" and kind and kind not in lost:
            lost.append(kind)
            raise pymysql.OperationalError(2013, "Lost connection to MySQL server during query")

    with Receiver(store) as receiver:
        store._tap = cut
        outcome = receiver.process("k", lambda: "v")
    assert lost == ["INSERT", "UPDATE"]
    assert (outcome.value, outcome.attempt, outcome.fence) == ("v", 1, 1)


def test_a_forked_child_uses_its_own_connections(store: MysqlStore):
    with Receiver(store) as receiver:
        receiver.process("before", lambda: "parent")
        mine = connection_of(store).thread_id()
        pid = os.fork()
        if pid == 0:
            try:
                replayed = receiver.process("before", lambda: "child").replayed
                fresh = connection_of(store).thread_id() != mine
                os._exit(0 if replayed and fresh else 1)
            except BaseException:
                os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        assert receiver.process("before", lambda: None).value == "parent"
        assert connection_of(store).thread_id() == mine


def test_a_server_that_comes_back_is_found_again(own_server: Any):
    server = own_server("mariadb")
    server.execute("CREATE DATABASE shop")
    with Receiver.open(server.url_of("shop")) as receiver:
        assert receiver.process("k", lambda: 1).value == 1
        server.restart()
        assert receiver.process("k", lambda: 2).value == 1
        server.kill()
        server.start()
        assert receiver.process("k", lambda: 2).value == 1
        assert receiver.process("new", lambda: 3).value == 3


@contextmanager
def other_session(url: str) -> Iterator[Any]:
    """Another connection; what it left open is rolled back."""
    session = MysqlStore.open(url)._connect()
    try:
        yield session.connection.cursor()
    finally:
        session.close()


def test_every_value_reaches_the_server_as_it_is(store: MysqlStore):
    """We write numbers and bytes into the statement ourselves, the driver writes the rest."""
    values = (
        0,
        -1,
        2**62,
        None,
        b"",
        b"\x00'\\%s\xff",
        "",
        "it's \\ %s",
        "Größe \N{GRINNING FACE}",
        1.5,
    )

    def echo() -> Any:
        return (
            yield Query(f"SELECT {', '.join(['%s'] * len(values))}, %s, '100%%'", (*values, True))
        )

    assert store._run(echo) == ((*values, 1, "100%"),)
