"""Adding: with the caller's data or not at all, in the order of commits, and told what is wrong."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.outbox.stage import Broker, begin, connect
from twicesafe import (
    ConfigurationError,
    Receiver,
    SchemaVersionError,
    UnsupportedByStoreError,
    UsageError,
)
from twicesafe.outbox import Outbox, OutboxRelay
from twicesafe.propagation import extract


def test_a_message_is_there_if_and_only_if_the_transaction_committed(
    outbox: Outbox, caller: Callable[[], Any]
):
    connection = caller()
    outbox.add(connection, topic="orders", body="lost")
    assert outbox.depth().pending == 0
    connection.rollback()
    begin(connection)
    outbox.add(connection, topic="orders", body="kept")
    connection.commit()
    assert outbox.depth().pending == 1


def test_what_a_publisher_gets(outbox: Outbox, caller: Callable[[], Any], broker: Broker):
    connection = caller()
    id_ = outbox.add(
        connection, topic="orders", body={"sum": 1}, key="ünï", headers={"Type": "Paid", "x": "ä"}
    )
    own = outbox.add(connection, topic="raw", body=b"\x00\xff", id="mine-1")
    text = outbox.add(connection, topic="text", body="grüß")
    connection.commit()
    OutboxRelay(outbox.store, broker).drain()
    by_id = {message.id: message for message in broker.got}
    first = by_id[id_]
    assert (first.topic, first.key, first.body) == ("orders", "ünï", b'{"sum":1}')
    assert first.headers["type"] == "Paid"
    assert first.headers["x"] == "ä"
    assert first.headers["content-type"] == "application/json"
    assert extract(first.headers) == id_
    assert UUID(id_).version == 7
    assert own == "mine-1"
    assert by_id[own].body == b"\x00\xff"
    assert by_id[own].key is None
    assert by_id[text].body.decode() == "grüß"


def test_a_run_that_is_repeated_sends_the_same_ids(
    outbox: Outbox, caller: Callable[[], Any], tmp_path: Path
):
    """The first run commits and dies before its record: the second must not look like new work."""
    connection = caller()
    receiver = Receiver.open(f"sqlite:///{tmp_path / 'keys.db'}")
    ids: list[list[str]] = []

    def handler() -> None:
        begin(connection)
        ids.append(
            [
                outbox.add(connection, topic="orders", body="1"),
                outbox.add(connection, topic="orders", body="2"),
                outbox.add(connection, topic="mail", body="3"),
            ]
        )
        connection.commit()
        if len(ids) == 1:
            raise ConnectionError("after the commit")

    with receiver, pytest.raises(ConnectionError):
        receiver.process("tx-1", handler)
    with Receiver.open(f"sqlite:///{tmp_path / 'keys.db'}") as again:
        again.release("tx-1", by="test", why="no back-off")
        again.process("tx-1", handler)
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 3


def test_the_trace_goes_along(outbox: Outbox, caller: Callable[[], Any], broker: Broker):
    from opentelemetry import trace
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

    span = NonRecordingSpan(SpanContext(0xA1, 0xB2, is_remote=False, trace_flags=TraceFlags(1)))
    connection = caller()
    with trace.use_span(span):
        outbox.add(connection, topic="orders", body="1")
    connection.commit()
    OutboxRelay(outbox.store, broker).drain()
    assert broker.got[0].headers["traceparent"] == f"00-{0xA1:032x}-{0xB2:016x}-01"


def test_a_propagator_that_fails_stops_no_transaction(
    outbox: Outbox, caller: Callable[[], Any], broker: Broker, caplog: pytest.LogCaptureFixture
):
    from opentelemetry import propagate

    class Failing:
        def inject(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("no baggage")

    connection = caller()
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(Failing())  # type: ignore[arg-type]
    try:
        outbox.add(connection, topic="orders", body="1")
    finally:
        propagate.set_global_textmap(before)
    connection.commit()
    assert OutboxRelay(outbox.store, broker).drain() == 1
    assert "sent without it" in caplog.text


def test_the_order_of_a_key_is_that_of_its_commits(
    url: str, outbox: Outbox, caller: Callable[[], Any], broker: Broker
):
    """A writer that adds to a key waits for the earlier ones; so a number drawn early is never late."""
    first, second, other = caller(), caller(), caller()
    outbox.add(first, topic="orders", body="a", key="k")
    added = threading.Event()

    def later() -> None:
        outbox.add(second, topic="orders", body="b", key="k")
        added.set()
        second.commit()

    thread = threading.Thread(target=later)
    thread.start()
    if not url.startswith("sqlite"):  # which has one writer in all
        outbox.add(other, topic="orders", body="c", key="k2")
        outbox.add(other, topic="orders", body="d")
        other.commit()
    assert not added.wait(0.1)
    first.commit()
    thread.join()
    OutboxRelay(outbox.store, broker).drain()
    assert [body for body in broker.bodies if body in "ab"] == ["a", "b"]


def test_who_names_the_schema_and_who_does_not_keep_one_order(postgres_url: str):
    (first, second), added = (connect(postgres_url) for _ in range(2)), threading.Event()
    with (
        Outbox.open(postgres_url) as found,
        Outbox.open(f"{postgres_url}?schema=public") as named,
        first,
        second,
    ):
        named.add(first, topic="orders", body="a", key="k")

        def later() -> None:
            found.add(second, topic="orders", body="b", key="k")
            added.set()

        thread = threading.Thread(target=later)
        thread.start()
        assert not added.wait(0.1)
        first.commit()
        assert added.wait(60)
        thread.join()


def test_without_order_no_writer_waits(url: str, caller: Callable[[], Any]):
    if url.startswith("sqlite"):
        pytest.skip("SQLite has one writer at a time")
    with Outbox.open(url, ordered=False) as relaxed:
        first, second = caller(), caller()
        relaxed.add(first, topic="orders", body="a", key="k")
        relaxed.add(second, topic="orders", body="b", key="k")
        second.commit()
        first.commit()
        assert relaxed.depth().pending == 2


def test_many_keys_in_one_transaction(outbox: Outbox, caller: Callable[[], Any], broker: Broker):
    connection = caller()
    messages = [{"topic": "t", "body": f"{n}", "key": f"k{n % 700}"} for n in range(2100)]
    ids = outbox.add_many(connection, messages)
    connection.commit()
    assert OutboxRelay(outbox.store, broker).drain() == 2100
    assert sorted(ids) == sorted(message.id for message in broker.got)
    for k in range(700):
        assert [m.body for m in broker.got if m.key == f"k{k}"] == [
            f"{k + 700 * turn}".encode() for turn in range(3)
        ]


def test_nothing_to_add(outbox: Outbox, caller: Callable[[], Any]):
    assert outbox.add_many(caller(), []) == []


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"topic": ""}, "topic="),
        ({"topic": "a\nb"}, "topic="),
        ({"topic": 7}, "topic="),
        ({"key": "k" * 256}, "key="),
        ({"key": "\ud800"}, "key="),
        ({"body": object()}, "JSON"),
        ({"body": float("nan")}, "NaN"),
        ({"body": {"sums": [1.5, float("inf")], "none": None}}, "NaN"),
        ({"body": b"x" * 1_000_001}, "max_bytes"),
        ({"id": "a b"}, "id="),
        ({"id": ""}, "id="),
        ({"headers": {"a\r\nb": "c"}}, "header name"),
        ({"headers": {"a": "b\r\nset-cookie: c"}}, "header a"),
        ({"headers": [("a", "b")]}, "mapping"),
        ({"headers": {"a": " b"}}, "begin or end with a space"),
        ({"headers": {"Content-Length": "1"}}, "belongs to a connection"),
        ({"headers": {f"a{n}": "b" * 4000 for n in range(9)}}, "at most 32768 bytes"),
        ({"spare": 1}, "spare"),
    ],
)
def test_what_cannot_be_sent_is_reported_at_once(tmp_path: Path, fields: dict[str, Any], says: str):
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with Outbox.open(url) as outbox, sqlite3.connect(tmp_path / "shop.db") as connection:
        with pytest.raises(UsageError, match=says):
            outbox.add_many(connection, [{"topic": "t", "body": b"", **fields}])
        assert not connection.in_transaction
    connection.close()


def test_null_in_a_body_is_not_taken_for_nan(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    sent: list[bytes] = []
    with Outbox.open(url) as outbox:
        with sqlite3.connect(tmp_path / "shop.db") as connection:
            for body in (None, {"a": None}, msgspec.Raw(b'{"b":null}'), {"c": "null", "d": 1.5}):
                outbox.add(connection, topic="t", body=body, key="k")
        connection.close()
        OutboxRelay(outbox.store, lambda message: sent.append(message.body)).drain()
    assert sent == [b"null", b'{"a":null}', b'{"b":null}', b'{"c":"null","d":1.5}']


def test_a_connection_without_a_transaction_is_refused(url: str, outbox: Outbox):
    connection = connect(url)
    if url.startswith("sqlite"):
        connection.isolation_level = None
    elif url.startswith("postgresql"):
        connection.autocommit = True
    else:
        connection.autocommit(True)
    with pytest.raises(UsageError, match="no open transaction"):
        outbox.add(connection, topic="t", body="")
    connection.close()
    assert outbox.depth().pending == 0


def test_a_connection_to_another_kind_of_database_is_refused(tmp_path: Path, postgres_url: str):
    connection = connect(postgres_url)
    with (
        Outbox.open(f"sqlite:///{tmp_path / 'shop.db'}") as outbox,
        pytest.raises(UsageError, match="outbox is on sqlite"),
    ):
        outbox.add(connection, topic="t", body="")
    connection.close()


def test_stores_without_sql_cannot_keep_an_outbox():
    with pytest.raises(UnsupportedByStoreError, match="postgresql"):
        Outbox.open("memory://")
    with pytest.raises(UnsupportedByStoreError, match="postgresql"):
        OutboxRelay.open("memory://", Broker())


def test_tables_are_made_when_wanted(url: str):
    mark = "&" if "?" in url else "?"
    with Outbox.open(f"{url}{mark}table=own"):
        pass
    Receiver.open(f"{url}{mark}table=bare").close()
    with pytest.raises(SchemaVersionError, match="twicesafe migrate"):
        Outbox.open(f"{url}{mark}table=bare&migrate=false")
    with Outbox.open(f"{url}{mark}table=own&migrate=false") as outbox:
        assert outbox.depth().pending == 0


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"max_bytes": 0}, "max_bytes=0 is not valid"),
        ({"max_bytes": "5"}, "max_bytes='5' is not valid"),
        ({"encryption": "key"}, "encryption='str' is not valid: use None or an object with"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, settings: dict[str, Any], says: str):
    with pytest.raises(ConfigurationError, match=says):
        Outbox.open(f"sqlite:///{tmp_path / 'x.db'}", **settings)


@pytest.mark.parametrize(
    "messages", [{"topic": "t", "body": "b"}, ["t"], [("t", "b")]], ids=["one", "text", "tuple"]
)
def test_what_is_no_message_is_refused(tmp_path: Path, messages: Any):
    file = tmp_path / "x.db"
    with (
        contextlib.closing(connect(f"sqlite:///{file}")) as connection,
        Outbox.open(f"sqlite:///{file}") as outbox,
        pytest.raises(UsageError, match=r"a message is a mapping .*, not (str|tuple)"),
    ):
        outbox.add_many(connection, messages)


# --- max_allowed_packet of MariaDB -------------------------------------------------------------


def test_messages_that_fit_one_by_one_fit_in_a_batch(mariadb: Any, mariadb_url: str):
    """Bytes are sent as hex, and headers count too."""
    headers = {f"h{n}": "v" * 4000 for n in range(7)}
    small = [{"topic": "t", "body": b"x" * 4096, "headers": headers} for _ in range(40)]
    messages = [*small, {"topic": "t", "body": b"x" * 400_000}, *small]
    mariadb.execute(f"SET GLOBAL max_allowed_packet = {1 << 20:d}")
    try:
        connection = connect(mariadb_url)
        with contextlib.closing(connection), Outbox.open(mariadb_url) as outbox:
            begin(connection)
            assert len(outbox.add_many(connection, messages)) == 81
            connection.commit()
            assert outbox.depth().pending == 81
    finally:
        mariadb.execute("SET GLOBAL max_allowed_packet = DEFAULT")


def test_a_body_that_is_more_than_a_packet_leaves_the_transaction_open(mariadb_url: str):
    """The server would close the connection, which looks like an outage."""
    connection = connect(mariadb_url)
    with contextlib.closing(connection), Outbox.open(mariadb_url, max_bytes=10**8) as outbox:
        begin(connection)
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            (most,) = cursor.fetchone()
        outbox.add(connection, topic="t", body=b"first")
        with pytest.raises(UsageError, match=f"max_allowed_packet of the server is {most}"):
            outbox.add(connection, topic="t", body=b"x" * (most // 2))
        connection.commit()
        assert outbox.depth().pending == 1
