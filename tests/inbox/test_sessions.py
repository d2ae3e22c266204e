"""The caller's session may have any settings: what our statements mean stays the same."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.inbox.conftest import Shop
from tests.transactions.kinds import ALL, ENGINES, Door, open_door
from twicesafe import AsyncOutbox, Outbox, StoreError

TEXT = "né😀'\"\\%s"

SETTINGS = [
    "timestamp = 1",
    "timestamp = 2000000000",
    "time_zone = '+13:00'",
    "sql_mode = 'EMPTY_STRING_IS_NULL'",
    "sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES'",
    "sql_mode = ''",
    "sql_safe_updates = 1, sql_select_limit = 1",
]


def with_outbox(door: Door, url: str) -> Callable[[str], None]:
    """A function that adds a message with this text in every place."""
    outbox = (AsyncOutbox if door.is_async else Outbox).open(url)

    def add(text: str) -> None:
        door.end(outbox.add(door.connection, topic=text, body="", key=text, headers={"text": text}))
        door.end(outbox.close())

    return add


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", ["pymysql", "asyncmy", "sa-connection:mysql+pymysql"])
def test_settings_of_mariadb(shop_of: Callable[[str], Shop], kind: str, setting: str) -> None:
    shop = shop_of(kind)
    shop.door.sql(f"SET {setting}")
    shop.door.commit()
    add = with_outbox(shop.door, shop.url)
    with shop.door.transaction():
        assert shop.accept("one")
        assert shop.accept_many(["two", "three", "two", TEXT]) == [True, True, False, True]
        assert shop.process("four", lambda: TEXT).value == TEXT
        add(TEXT)
    with shop.door.transaction():
        assert not shop.accept("one")
        assert shop.accept_many(["two", "three", "new"]) == [False, False, True]
        again = shop.process("four", lambda: "another")
        assert (again.value, again.replayed) == (TEXT, True)
    now, hour = datetime.now(UTC), timedelta(hours=1)
    for key in ("one", "three", TEXT, "four"):
        record = shop.receiver.record(shop.inbox.key(key))
        assert record is not None
        assert abs(record.created_at - now) < hour
        assert abs(record.expires_at - timedelta(days=1) - now) < hour
    ((added_at, *texts, headers),) = messages(shop.url)
    assert abs(datetime.fromtimestamp(added_at / 1000, UTC) - now) < hour
    assert texts == [TEXT, TEXT]
    assert json.loads(headers)["text"] == TEXT


@pytest.mark.parametrize("names", ["utf8mb4", "latin1", "gbk", "binary"])
@pytest.mark.parametrize("kind", ENGINES["mariadb"])
def test_character_sets_of_mariadb(shop_of: Callable[[str], Shop], kind: str, names: str) -> None:
    """A message is what was added, whatever its driver and its session think of characters."""
    shop = shop_of(kind)
    shop.door.sql(f"SET NAMES {names}")
    shop.door.commit()
    add = with_outbox(shop.door, shop.url)
    with shop.door.transaction():
        add(TEXT)
    ((_, *texts, headers),) = messages(shop.url)
    assert (*texts, json.loads(headers)["text"]) == (TEXT,) * 3


@pytest.mark.parametrize("kind", ENGINES["mariadb"])
def test_a_session_of_mariadb_that_compares_in_utf16(
    shop_of: Callable[[str], Shop], kind: str
) -> None:
    """Numbers as text get the character set of `collation_connection`: two bytes for each digit."""
    shop = shop_of(kind)
    shop.door.sql("SET collation_connection = 'utf16_general_ci'")
    shop.door.commit()
    add = with_outbox(shop.door, shop.url)
    with shop.door.transaction():
        assert shop.accept("one")
        assert not shop.accept("one")
        assert shop.accept_many(["two", "one"]) == [True, False]
        assert [shop.process("three", lambda: 3).replayed for _ in "12"] == [False, True]
        add(TEXT)
    ((_, *texts, headers),) = messages(shop.url)
    assert (*texts, json.loads(headers)["text"]) == (TEXT,) * 3


@pytest.mark.parametrize("kind", ENGINES["mariadb"])
def test_a_session_of_mariadb_that_reads_texts_as_bytes(
    shop_of: Callable[[str], Shop], kind: str
) -> None:
    """As with the driver's ``use_unicode=False``. A record that is decided under a lock is read with its texts."""
    shop = shop_of(kind)
    shop.door.sql("SET NAMES binary")
    shop.door.commit()

    def fail() -> None:
        raise ValueError

    with contextlib.suppress(ValueError), shop.door.transaction():
        shop.process(TEXT, fail)
    assert shop.noted(TEXT).error == "ValueError"
    with shop.door.transaction():
        assert shop.process(TEXT, lambda: "done").attempt == 2
    record = shop.receiver.record(TEXT)
    assert record is not None
    assert (record.value, record.error) == (TEXT, "ValueError")


@pytest.mark.parametrize("options", [{"stream_results": True}, {"yield_per": 10}])
@pytest.mark.parametrize(
    "kind", [kind for _, kind in ALL if kind.startswith(("sa-con", "sa-async:"))]
)
def test_a_sqlalchemy_connection_that_streams(
    shop_of: Callable[[str], Shop], kind: str, options: dict[str, Any]
) -> None:
    """An application that reads many rows sets this for all statements of the connection."""
    shop = shop_of(kind)
    shop.door.end(shop.door.connection.execution_options(**options))
    with shop.door.transaction():
        assert shop.accept("one")
        assert not shop.accept("one")
        assert shop.accept_many(["two", "one"]) == [True, False]
        assert [shop.process("three", lambda: 3).replayed for _ in "12"] == [False, True]


@pytest.mark.parametrize("kind", [kind for _, kind in ALL if kind.startswith("sa-async:")])
def test_an_invalidated_sqlalchemy_connection_connects_again(
    shop_of: Callable[[str], Shop], kind: str
) -> None:
    """A cancelled statement or a lost server invalidates it; then the next statement connects, ours too."""
    shop = shop_of(kind)
    with shop.door.transaction():
        assert shop.accept("one")
    shop.door.end(shop.door.connection.invalidate())
    with shop.door.transaction():
        assert shop.accept_many(["one", "two"]) == [False, True]
    with shop.door.transaction():
        assert not shop.accept("two")
        shop.door.end(shop.door.connection.invalidate())
        with pytest.raises(StoreError, match="rolled back"):
            shop.accept("three")
        shop.door.rollback()
        assert shop.accept("three")


def messages(url: str) -> list[tuple[Any, ...]]:
    door = open_door("pymysql", url, charset="utf8mb4")
    try:
        return door.sql(
            "SELECT created_at, aggregatetype, aggregateid, headers FROM twicesafe_outbox"
        )
    finally:
        door.close()


def test_ten_thousand_keys_are_few_statements(
    shop_of: Callable[[str], Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of at most 1000 rows: a longer one takes the server more than its share of time."""
    from twicesafe._transactions.mysql import PymysqlTransaction

    shop, sent = shop_of("pymysql"), []
    execute = PymysqlTransaction.execute

    def counted(self: Any, statement: Any) -> Any:
        sent.append(statement.sql)
        return execute(self, statement)

    monkeypatch.setattr(PymysqlTransaction, "execute", counted)
    keys = [f"key-{number}" for number in range(10_000)]
    with shop.door.transaction():
        assert shop.accept_many(keys) == [True] * 10_000
        assert len([sql for sql in sent if "INSERT" in sql]) == 10
        # The fence is read once for each statement, not in a subquery for each row.
        assert max(sql.count("SELECT") for sql in sent) == 1
        assert shop.accept_many([*keys, "new"]) == [False] * 10_000 + [True]
