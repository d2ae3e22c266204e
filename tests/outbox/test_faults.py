"""The database fails around an outbox: a message is there with its data or not at all, and none is lost."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.outbox.stage import AsyncBroker, Broker, RelayMode, begin, connect
from tests.polling import until
from twicesafe import (
    BrokerUnavailableError,
    ConfigurationError,
    SchemaVersionError,
    StoreUnavailableError,
)
from twicesafe._core.outbox.requests import Fetch, Message
from twicesafe.events import Event, StoreFailed
from twicesafe.outbox import AsyncOutbox, AsyncOutboxRelay, Outbox, OutboxRelay

Put = Callable[..., list[str]]
Caller = Callable[[], Any]


def ask(connection: Any, sql: str) -> list[tuple[Any, ...]]:
    cursor = connection.cursor()
    cursor.execute(sql)
    return list(cursor.fetchall()) if cursor.description else []


def end_sessions(url: str) -> None:
    """Every session but this one, as a server that goes away does it."""
    connection = connect(url)
    if url.startswith("postgresql"):
        others = "pid <> pg_backend_pid() AND datname = current_database()"
        ask(connection, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
    else:
        for (number,) in ask(
            connection,
            "SELECT id FROM information_schema.processlist"
            " WHERE id <> CONNECTION_ID() AND db = DATABASE()",
        ):
            ask(connection, f"KILL {number}")
    connection.close()


# --- operators -------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["retry", "skip"])
def test_an_operators_act_after_the_server_cut_idle_connections(
    act: str, mode: RelayMode, url: str, put: Put
):
    """It must not run twice, so it cannot simply be sent again. The operator does not notice."""
    kind: Any = Outbox if mode.name == "sync" else AsyncOutbox
    broker = Broker()
    broker.refuses.add("bad")
    put("bad", "next", key="k")
    mode.relay(broker, max_attempts=1).drain()
    opened = mode.run(lambda: kind.open(url))
    (lane,) = mode.run(opened.parked)
    if not url.startswith("sqlite"):
        end_sessions(url)
    mode.run(lambda: getattr(opened, act)(lane.lane, by="ana"))
    assert mode.run(opened.parked) == []
    mode.run(opened.close)


def test_a_relay_drains_after_the_server_cut_idle_connections(
    mode: RelayMode, url: str, put: Put, broker: Broker
):
    """A service that drains every few minutes has an idle connection in between, which a firewall cuts."""
    relay = mode.relay(broker)
    relay.drain()
    for body in "12":
        put(body, key="k")
    if not url.startswith("sqlite"):
        end_sessions(url)
    assert relay.drain() == 2
    assert broker.bodies == ["1", "2"]


def test_a_relay_goes_on_when_the_store_refused_it_for_a_while(
    mode: RelayMode, outbox: Outbox, put: Put, broker: Broker
):
    """A grant that was taken away and given back, a password that was refused. It ended the relay, silently."""
    failed: set[str] = set()
    refusing = threading.Event()

    def observe(event: Event) -> None:
        if isinstance(event, StoreFailed) and "lacks a privilege" in event.error:
            failed.add(event.operation)

    relay = mode.relay(broker, lease=0.3, observers=[observe])
    port = relay.own._port
    perform = port.perform

    def refuse_or(request: Any) -> Any:
        if refusing.is_set():
            raise ConfigurationError("the role lacks a privilege")
        return perform(request)

    port.perform = refuse_or
    put("1")
    relay.start()
    broker.wait_for(1, 60)
    refusing.set()
    until(lambda: "outbox_heartbeat" in failed)
    refusing.clear()
    put("2")
    broker.wait_for(2, 60)
    relay.stop()
    assert outbox.depth().relays == 0
    refusing.set()
    with pytest.raises(ConfigurationError, match="lacks a privilege"):
        relay.drain()


def test_a_relay_that_ends_by_an_error_is_logged(
    mode: RelayMode, put: Put, broker: Broker, caplog: pytest.LogCaptureFixture
):
    """Otherwise its owner would notice it only when the relay is stopped."""
    relay = mode.relay(broker)

    perform = relay.own._port.perform

    def fail_or(request: Any) -> Any:
        if isinstance(request, Fetch):
            raise RuntimeError("a bug")
        return perform(request)

    relay.own._port.perform = fail_or
    relay.start()
    until(lambda: "the relay has ended" in caplog.text, 60)
    with pytest.raises(RuntimeError, match="a bug"):
        relay.stop()


# --- adding ----------------------------------------------------------------------------------------


def test_a_session_that_ends_before_its_commit_leaves_no_message(
    url: str, outbox: Outbox, caller: Caller
):
    connection = caller()
    outbox.add(connection, topic="orders", body="lost", key="k")
    if url.startswith("sqlite"):
        connection.close()
    else:
        end_sessions(url)
        with pytest.raises(Exception):  # noqa: B017, PT011 - each driver has its own words
            connection.commit()
    with Outbox.open(url) as fresh:
        assert fresh.depth().pending == 0


READ_ONLY = {
    "sqlite": "PRAGMA query_only = ON",
    "postgresql": "SET TRANSACTION READ ONLY",
    "mysql": "START TRANSACTION READ ONLY",
}


def test_a_read_only_transaction_takes_no_message(url: str, outbox: Outbox, caller: Caller):
    connection = caller()
    ask(connection, READ_ONLY[url.partition(":")[0]])
    if url.startswith("sqlite"):
        ask(connection, "BEGIN")
    with pytest.raises(Exception, match=r"(?i)read.?only"):
        outbox.add(connection, topic="orders", body="1", key="k")
    connection.rollback()
    assert outbox.depth().pending == 0


def test_a_full_disk_takes_data_and_message_or_neither(tmp_path: Path):
    path = tmp_path / "shop.db"
    with Outbox.open(f"sqlite:///{path}") as outbox:
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE orders (n INTEGER)")
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 4:d}")
        done, told = 0, ""
        while not told and done < 1000:
            try:
                with connection:
                    connection.execute("INSERT INTO orders VALUES (?)", (done,))
                    outbox.add(connection, topic="orders", body="x" * 500, key="k")
                done += 1
            except Exception as error:
                told = str(error)
        assert "full" in told
        assert done
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (done,)
        assert outbox.depth().pending == done
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()


def test_an_older_copy_has_data_and_message_or_neither(tmp_path: Path):
    """What a failover or a restored backup loses, it loses with the data that it tells of."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with Outbox.open(url) as outbox:
        connection = connect(url)
        connection.execute("CREATE TABLE orders (n INTEGER)")
        for number in range(4):
            connection.execute("INSERT INTO orders VALUES (?)", (number,))
            outbox.add(connection, topic="orders", body=str(number), key="k")
            if number == 2:  # not yet committed
                copy, source = connect(f"sqlite:///{tmp_path / 'copy.db'}"), connect(url)
                source.backup(copy)
                source.close()
            connection.commit()
        connection.close()
    broker = Broker()
    with OutboxRelay.open(f"sqlite:///{tmp_path / 'copy.db'}", broker):
        broker.wait_for(2)
    assert broker.bodies == ["0", "1"]
    assert copy.execute("SELECT n FROM orders ORDER BY n").fetchall() == [(0,), (1,)]
    copy.close()


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_workers_clock_changes_neither_order_nor_delivery(
    put: Put, outbox: Outbox, mode: RelayMode, hours: int, monkeypatch: pytest.MonkeyPatch
):
    put("1", key="k")
    clock = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: clock() + hours * 3600 * 10**9)
    put("2", key="k")
    monkeypatch.undo()
    put("3", key="k")
    assert outbox.depth().oldest_age >= 0
    broker = Broker()
    assert mode.relay(broker).drain() == 3
    assert broker.bodies == ["1", "2", "3"]


def test_a_newer_schema_is_refused(url: str, outbox: Outbox, caller: Caller):
    column = "`schema`" if url.startswith("mysql") else "schema"
    connection = caller()
    ask(connection, f"UPDATE twicesafe_outbox_meta SET {column} = {column} + 1")
    connection.commit()
    with pytest.raises(SchemaVersionError, match="upgrade twicesafe"):
        Outbox.open(url)
    relay = OutboxRelay.open(url, Broker())
    with pytest.raises(SchemaVersionError, match="upgrade twicesafe"):
        relay.drain()
    relay.close()


# --- relaying --------------------------------------------------------------------------------------


def test_a_relay_goes_on_when_its_store_was_gone(url: str, mode: RelayMode, put: Put):
    """Gone after publishing, before the mark: the same ids come again, and nothing is lost."""
    failed = threading.Event()

    def observe(event: Event) -> None:
        if isinstance(event, StoreFailed):
            failed.set()

    class Cutting(Broker):
        cuts = 3

        def publish(self, messages: Sequence[Message]) -> list[Exception | None]:
            answers = super().publish(messages)
            if self.cuts:
                failed.clear()
                lock_out(url, failed) if url.startswith("sqlite") else end_sessions(url)
                self.cuts -= 1
            return answers

    broker = Cutting()
    ids = [*put(*"123", key="a"), *put(*"456", key="b")]
    hasty = f"{url}?timeout=0.05" if url.startswith("sqlite") else url
    relay = mode.relay(broker, hasty, lease=3, batch=2, observers=[observe]).start()
    broker.wait_for(6)
    until = time.monotonic() + 60
    while broker.cuts:  # the last one cuts us off, too
        assert time.monotonic() < until, broker.bodies
        time.sleep(0.01)
    with Outbox.open(url) as outbox:
        while pending(outbox):
            assert time.monotonic() < until, broker.bodies
    relay.stop()
    if url.startswith("sqlite"):  # a server's sessions may be replaced unseen
        assert failed.is_set()
    first = {message.id: message.body.decode() for message in reversed(broker.got)}
    assert first == dict(zip(ids, "123456", strict=True))
    for lane in ("123", "456"):
        order = dict.fromkeys(body for body in broker.bodies if body in lane)
        assert "".join(order) == lane


def test_who_stops_gives_its_store_time_to_come_back(
    mode: RelayMode, put: Put, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
):
    """What was published is settled before the end, so no relay publishes it again."""
    failed, back = threading.Event(), threading.Event()
    broker = Broker()
    relay = mode.relay(broker)
    perform = relay.own._port.perform

    def away(request: Any) -> Any:
        if request.op == "outbox_settle" and not back.is_set():
            failed.set()
            raise StoreUnavailableError("away")
        return perform(request)

    monkeypatch.setattr(relay.own._port, "perform", away)
    put("1", key="k")
    relay.start()
    assert failed.wait(60)
    threading.Timer(0.3, back.set).start()
    relay.stop()
    assert broker.bodies == ["1"]
    assert outbox.depth().pending == 0


@pytest.mark.timeout(240)
def test_a_server_that_is_killed_and_restarted_loses_no_message(own_server: Callable[..., Any]):
    server = own_server("postgres")
    broker = Broker()
    with Outbox.open(server.url) as outbox:

        def add(*bodies: str) -> list[str]:
            connection = connect(server.url)
            messages = [{"topic": "t", "body": body, "key": "k"} for body in bodies]
            ids = outbox.add_many(connection, messages)
            connection.commit()
            connection.close()
            return ids

        with OutboxRelay.open(server.url, broker, lease=3):
            ids = add("1", "2")
            broker.wait_for(2)
            broker.away = BrokerUnavailableError("so that it waits over the restart")
            ids += add("3", "4")
            server.kill()
            server.start()
            ids += add("5")
            broker.away = None
            until = time.monotonic() + 60
            while pending(outbox):
                assert time.monotonic() < until, broker.bodies
    assert list(dict.fromkeys(message.id for message in broker.got)) == ids


def pending(outbox: Outbox) -> int:
    """What waits; our own sessions may have ended, too."""
    try:
        return outbox.depth().pending
    except StoreUnavailableError:
        return 1


def lock_out(url: str, failed: threading.Event) -> None:
    """SQLite has no sessions to end: another process has the file, until the relay has met it."""
    holder = connect(url)
    holder.execute("BEGIN EXCLUSIVE")

    def let_go() -> None:
        failed.wait(60)
        holder.rollback()
        holder.close()

    threading.Thread(target=let_go).start()


def test_a_clock_that_is_set_hands_slots_over_early_and_loses_nothing(
    url: str, mode: RelayMode, put: Put, outbox: Outbox, caller: Caller
):
    """The store's clock goes on by an hour in mid-work: another relay has the slots at once."""
    connection = caller()
    connection.rollback()
    other = Broker()

    class Late(Broker):
        def publish(self, messages: Sequence[Message]) -> list[Exception | None]:
            begin(connection)
            ask(connection, "UPDATE twicesafe_outbox_slots SET lease_until = lease_until - 3600000")
            ask(connection, "UPDATE twicesafe_outbox_relays SET seen_until = seen_until - 3600000")
            connection.commit()
            with OutboxRelay.open(url, other, lease=3):
                other.wait_for(1)
            return super().publish(messages)

    late = Late()
    (id_,) = put("1", key="k")
    relay = mode.relay(late, lease=60).start()
    late.wait_for(1)
    relay.stop()
    assert {message.id for message in (*late.got, *other.got)} == {id_}
    assert outbox.depth().pending == 0


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_one_outbox_on_one_loop_after_another(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
):
    url = (
        f"sqlite:///{tmp_path / 'shop.db'}"
        if engine == "sqlite"
        else str(request.getfixturevalue("postgres_url"))
    )
    outbox = AsyncOutbox.open(url)

    async def waiting() -> int:
        async with outbox:
            return (await outbox.depth()).pending

    for number in range(2):
        assert asyncio.run(waiting()) == number
        with Outbox.open(url) as blocking:
            connection = connect(url)
            begin(connection)
            blocking.add(connection, topic="t", body=str(number))
            connection.commit()
            connection.close()

    async def publish() -> list[str]:
        broker = AsyncBroker()
        async with outbox:
            assert await AsyncOutboxRelay(outbox.store, broker).drain() == 2
        return sorted(broker.bodies)

    assert asyncio.run(publish()) == ["0", "1"]
