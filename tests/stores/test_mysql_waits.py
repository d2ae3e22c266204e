"""MariaDB: a row that another session holds stops none but its own key.

The server reads a small table through if it is let, and waits at every row on the way. So the tests
make it believe, for good, that the tables are nearly empty: that is when it would rather do so.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest

from tests.polling import until
from twicesafe import AsyncReceiver, Inbox, Key, Outbox, Policy, Receiver, current_claim
from twicesafe._core.outbox.requests import Fetch, Heartbeat, Prepare, Setback, Settle, Unpark
from twicesafe._core.protocol import (
    Abandon,
    Ack,
    ClaimRequest,
    Complete,
    Fail,
    Forget,
    Release,
    Renew,
    Sweep,
    Verdict,
)
from twicesafe._engines.mysql import MysqlStore
from twicesafe._engines.mysql.connection import Session
from twicesafe._transactions.mysql import PymysqlTransaction

RECORDS = "twicesafe_keys"
A, B = b"a" * 16, b"b" * 16
HOUR = 3_600_000
LEASE = 6
"""Seconds: a renewal is due long before, and no machine here stops for so long."""


def connect(url: str, **options: Any) -> Any:
    parts = urlsplit(url)
    place = {"host": parts.hostname, "port": parts.port, "user": parts.username}
    return pymysql.connect(**place, database=parts.path.strip("/"), **options)  # type: ignore[arg-type]


@pytest.fixture
def small(mariadb_url: str) -> str:
    """Tables that the server takes for empty, whatever is in them."""
    store = MysqlStore.open(mariadb_url)
    store.outbox.perform(Prepare(migrate=True))
    store.close()
    with connect(mariadb_url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW TABLES")
        for (table,) in cursor.fetchall():
            cursor.execute(f"ALTER TABLE {table} STATS_PERSISTENT = 1, STATS_AUTO_RECALC = 0")
    return mariadb_url


@contextmanager
def open_inbox(url: str) -> Iterator[Any]:
    """A delivery is under way: its record is written, and its transaction is open."""
    with Inbox.open(url) as inbox, connect(url) as connection:
        assert inbox.accept(connection, "held")
        yield connection
        connection.rollback()


def test_a_claim_of_a_key_that_a_transaction_holds_costs_no_connection(
    small: str, monkeypatch: pytest.MonkeyPatch
):
    """A waiter asks twice a second, and each connection takes a login."""
    store = MysqlStore.open(small)
    opened: list[None] = []
    monkeypatch.setattr(store._pool, "_connect", lambda: (opened.append(None), store._connect())[1])
    with open_inbox(small):
        held = ClaimRequest(Key("held"), A, HOUR)
        release = Release(Key("held").id, "ann", "stuck", HOUR)
        for _ in range(2):
            assert store.perform(held).locked
            assert [answer.locked for answer in store.perform_many([held] * 2)] == [True, True]
            assert store.perform(release) is Ack.LOCKED
    assert store.perform(held).verdict is Verdict.WON
    assert opened == []
    store.close()


# --- leases ----------------------------------------------------------------------------------

JOBS = [f"job-{number}" for number in range(3)]


class Renewals:
    """Handlers of three keys run until all their leases were renewed in the store, or one was lost."""

    def __init__(self, url: str) -> None:
        self._watcher = connect(url, autocommit=True)
        self.lost = False

    def over(self) -> bool:
        return self.lost or self.renewed()

    def renewed(self) -> bool:
        """A claim sets both times, a renewal one of them."""
        longer = f"state = 0 AND lease_until > changed_at + {LEASE * 1000}"
        with self._watcher.cursor() as cursor:
            cursor.execute(f"SELECT COUNT(*) FROM {RECORDS} WHERE {longer}")
            return bool(cursor.fetchone() == (len(JOBS),))

    def close(self) -> None:
        self._watcher.close()


@pytest.fixture
def renewals(small: str) -> Iterator[Renewals]:
    watched = Renewals(small)
    yield watched
    watched.close()


def test_an_open_inbox_transaction_stops_no_renewal(small: str, renewals: Renewals):
    """A renewal that waited for its row would come after the lease: 30 s against 6."""
    end = threading.Event()

    def work(_: str) -> None:
        claim = current_claim()
        until(lambda: end.is_set() or claim.lost, 120)
        renewals.lost |= claim.lost

    with (
        open_inbox(small) as held,
        Receiver.open(f"{small}?timeout=60", policy=Policy(lease=LEASE)) as receiver,
        ThreadPoolExecutor(len(JOBS)) as pool,
    ):
        running = [pool.submit(receiver.process, key, work, key) for key in JOBS]
        until(renewals.over, 120)
        if renewals.lost:
            held.rollback()  # so that the test fails soon
        end.set()
        assert [one.result(120).attempt for one in running] == [1] * len(JOBS)
    assert not renewals.lost


def test_an_open_inbox_transaction_stops_no_async_renewal(small: str, renewals: Renewals):
    end = threading.Event()

    async def work(_: str) -> None:
        claim = current_claim()
        await asyncio.to_thread(until, lambda: end.is_set() or claim.lost, 120)
        renewals.lost |= claim.lost

    async def main(held: Any) -> list[int]:
        policy = Policy(lease=LEASE)
        async with AsyncReceiver.open(f"{small}?timeout=60", policy=policy) as receiver:
            running = [asyncio.create_task(receiver.process(key, work, key)) for key in JOBS]
            await asyncio.to_thread(until, renewals.over, 120)
            if renewals.lost:
                held.rollback()
            end.set()
            return [outcome.attempt for outcome in await asyncio.gather(*running)]

    with open_inbox(small) as held:
        assert asyncio.run(main(held)) == [1] * len(JOBS)
    assert not renewals.lost


# --- gaps ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["accept", "process"])
def test_a_delivery_that_is_done_and_not_committed_locks_no_gap(mariadb_url: str, how: str):
    """At REPEATABLE READ, the default of callers, a look-up by the identity locks what lies below."""
    store = MysqlStore.open(mariadb_url)
    with Inbox.open(mariadb_url) as inbox, connect(mariadb_url) as connection:
        if how == "accept":
            assert inbox.accept(connection, "held")
        else:
            assert inbox.process(connection, "held", str).attempt == 1
        for name in (f"other-{number}" for number in range(8)):
            assert store.perform(ClaimRequest(Key(name), A, HOUR)).verdict is Verdict.WON
        connection.commit()
    store.close()


# --- plans -----------------------------------------------------------------------------------

WAITS_FOR_NO_ONE = re.compile(
    r"FOR UPDATE SKIP LOCKED$"
    # READ COMMITTED: an UPDATE of one table looks at what is committed before it waits for a row.
    r"|^UPDATE \w+_slots SET"
)
"""These may read a table through."""

LOCKS = re.compile(r"^(UPDATE|DELETE|INSERT)|(FOR UPDATE|LOCK IN SHARE MODE)( NOWAIT)?$")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Every statement that any session of ours sends, and every one in a caller's transaction."""
    seen: list[tuple[str, Any]] = []
    executor, execute = Session.executor, PymysqlTransaction.execute

    def ours(self: Session, tap: Any) -> Callable[[Any], Any]:
        run = executor(self, tap)

        def note(command: Any) -> Any:
            seen.append((command.sql, command.args))
            return run(command)

        return note

    def theirs(self: PymysqlTransaction, statement: Any) -> Any:
        seen.append((statement.sql, statement.args))
        return execute(self, statement)

    monkeypatch.setattr(Session, "executor", ours)
    monkeypatch.setattr(PymysqlTransaction, "execute", theirs)
    return seen


def records(store: MysqlStore) -> None:
    """Every request that writes a record, alone and in company."""
    keys = [Key(f"k{number}") for number in range(12)]
    won = store.perform_many([ClaimRequest(key, A, HOUR) for key in keys])
    ends: list[Callable[[Key, int], Any]] = [
        lambda key, fence: Renew(key.id, A, fence, HOUR),
        lambda key, fence: Fail(key.id, A, fence, 0, 5, 1, "no"),
        lambda key, fence: Complete(key.id, A, fence, 1, b"v"),
        lambda key, fence: Abandon(key.id, A, 1),
    ]
    fences = {key: one.fence for key, one in zip(keys, won, strict=True)}
    for number, end in enumerate(ends):
        mine = keys[3 * number : 3 * number + 3]
        store.perform_many([end(key, fences[key]) for key in mine[:2]])
        store.perform_many([Renew(key.id, B, 1, HOUR) for key in mine[:2]])  # not the owner
        store.perform(end(mine[2], fences[mine[2]]))
    store.perform(Release(keys[0].id, "ann", "", 1))
    store.perform(Forget(keys[6].id, "ann", "", 1))
    won = store.perform_many([ClaimRequest(key, B, HOUR) for key in keys])
    store.perform_many(
        [Complete(key.id, B, one.fence, 1, b"v") for key, one in zip(keys, won, strict=True)]
    )
    until(lambda: store.perform(Sweep(100))[0].removed)


def deliveries(url: str) -> None:
    with Inbox.open(url) as inbox, connect(url) as connection:
        for _ in range(2):
            inbox.accept_many(connection, ["m-1", "m-2", "m-3"])
            inbox.process(connection, "m-4", str)
            connection.commit()


def messages(store: MysqlStore, url: str) -> None:
    """A lane that is refused, set aside and let go on."""
    with Outbox.open(url) as outbox, connect(url) as connection:
        for number in range(4):
            outbox.add(connection, topic="t", key="lane", body=b"%d" % number)
        outbox.add(connection, topic="t", body=b"alone")
        connection.commit()
    port = store.outbox
    port.perform(Heartbeat(A, HOUR))
    port.perform(Heartbeat(B, HOUR))
    port.perform(Heartbeat(A, HOUR, give=frozenset(range(64)) - {0}))
    slots = {owner: port.perform(Heartbeat(owner, HOUR)).slots for owner in (B, A)}
    first, *_ = port.perform(Fetch(list(range(64)), 10, [])).rows
    owner = A if first.slot in slots[A] else B
    fence = slots[owner][first.slot]
    refused = Setback(first.slot, fence, first.lane, first.n, 1, 0, "no", True)
    port.perform(Settle(owner, [], {}, [refused], {}))
    aside = port.perform(Fetch(list(range(64)), 10, [])).aside
    port.perform(Settle(owner, [], {}, [], aside))
    assert aside, "the lane was not in trouble"
    assert port.perform(Unpark(first.lane, True, "ann", ""))
    again = port.perform(Fetch(list(range(64)), 10, [])).rows
    port.perform(Settle(owner, [row.n for row in again], {first.lane: again[0].n}, [], {}))
    port.perform(Heartbeat(A, HOUR, leave=True))


def parts(sql: str) -> Iterator[str]:
    """The statements that can be explained."""
    sql = re.sub(r"^SET STATEMENT \S+ = \d+ FOR ", "", sql)
    if sql.startswith("BEGIN NOT ATOMIC"):
        yield from sql.removeprefix("BEGIN NOT ATOMIC ").removesuffix("; END").split("; ")
    else:
        yield sql


def test_no_statement_that_locks_reads_a_table_through(small: str, asked: list[tuple[str, Any]]):
    store = MysqlStore.open(small)
    records(store)
    messages(store, small)
    deliveries(small)
    store.close()
    explained, scans = 0, []
    with connect(small, autocommit=True) as connection, connection.cursor() as cursor:
        for sql, args in asked:
            for part in parts(sql):
                if not LOCKS.search(part) or WAITS_FOR_NO_ONE.search(part):
                    continue
                cursor.execute(f"EXPLAIN {part}", args or None)
                for _, kind, table, how, *_ in cursor.fetchall():
                    explained += 1
                    # "<": a table of the statement's own values.
                    looked_up = kind == "INSERT" or str(table).startswith("<")
                    if how in ("ALL", "index") and not looked_up:
                        scans.append((table, how, part))
    assert explained > 40, "too little was asked to prove anything"
    assert not scans, "\n".join(map(str, scans))
