"""The inbox's own manners: settings that say nothing are refused, the decorator, the cost."""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.inbox.conftest import Shop
from twicesafe import (
    AsyncInbox,
    ConfigurationError,
    FingerprintMismatchError,
    Inbox,
    Policy,
    UnsupportedByStoreError,
    UsageError,
    current_claim,
)
from twicesafe._transactions import async_of, of


@pytest.mark.parametrize(
    "setting", [{"lease": 5}, {"takeover": "hold"}, {"outage": "run"}, {"timeout": 3}]
)
def test_a_setting_that_says_nothing_here_is_refused(tmp_path: Path, setting: dict[str, Any]):
    with pytest.raises(ConfigurationError, match="has no effect in an inbox"):
        Inbox.open(f"sqlite:///{tmp_path / 'a.db'}", policy=Policy(**setting))


def test_a_store_without_transactions_is_refused():
    with pytest.raises(UnsupportedByStoreError, match="sqlite:///"):
        Inbox.open("memory://")
    with pytest.raises(UnsupportedByStoreError, match="sqlite:///"):
        asyncio.run(AsyncInbox.open("memory://").accept(object(), "m"))


def test_results_is_one_of_two_words(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="required or optional"):
        Inbox.open(f"sqlite:///{tmp_path / 'a.db'}", results="maybe")  # type: ignore[arg-type]


def test_a_decorated_function_runs_once_in_its_own_scope(tmp_path: Path):
    path = tmp_path / "shop.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE credits (amount)")
    with Inbox.open(f"sqlite:///{path}", fingerprint=True) as inbox:

        @inbox.idempotent(key=lambda connection, order: order["id"])
        def book(connection: sqlite3.Connection, order: dict[str, Any]) -> int:
            claim = current_claim()
            assert claim is not None
            assert not claim.lost
            connection.execute("INSERT INTO credits VALUES (?)", (order["amount"],))
            return int(order["amount"])

        for _ in range(2):
            with connection:
                assert book(connection, {"id": "o-1", "amount": 5}) == 5
        with pytest.raises(FingerprintMismatchError, match="order"), connection:
            book(connection, {"id": "o-1", "amount": 6})
        assert connection.execute("SELECT amount FROM credits").fetchall() == [(5,)]
        with pytest.raises(ConfigurationError, match="key="):
            inbox.idempotent(lambda connection: None)
    connection.close()


def test_a_context_that_a_handler_left_behind_may_deliver_its_message_again(tmp_path: Path):
    """It is that of a task or thread which the handler started. It was refused, as if it waited for itself."""
    contexts: list[contextvars.Context] = []
    with (
        Inbox.open(f"sqlite:///{tmp_path / 'a.db'}") as inbox,
        closing(sqlite3.connect(tmp_path / "a.db")) as connection,
    ):

        def handle() -> int:
            contexts.append(contextvars.copy_context())
            return 5

        with connection:
            inbox.process(connection, "m", handle)
        with connection:
            again = contexts[0].run(inbox.process, connection, "m", handle)
    assert (again.value, again.replayed) == (5, True)


def test_blocking_and_async_are_kept_apart(tmp_path: Path):
    async def handle() -> None: ...

    with Inbox.open(f"sqlite:///{tmp_path / 'a.db'}") as inbox:
        connection = sqlite3.connect(tmp_path / "a.db")
        with pytest.raises(UsageError, match="async function"):
            inbox.process(connection, "m", handle)
        with pytest.raises(UsageError, match="coroutine"):
            inbox.process(connection, "m", lambda: handle())  # noqa: PLW0108
        connection.rollback()
        connection.close()


COSTS = {  # statements for accept, its duplicate, process, its duplicate
    "psycopg": (1, 1, 2, 1),
    "asyncpg": (1, 1, 2, 1),
    "pymysql": (1, 1, 2, 1),
    "asyncmy": (1, 1, 2, 1),
    # Two of the four are a savepoint and its release: no round trips, no I/O.
    "sqlite3": (1, 2, 4, 2),
}


@pytest.mark.parametrize(
    "kind",
    ["psycopg", "asyncpg", "pymysql", "asyncmy", "sqlite3"],
)  # fmt: skip
def test_what_it_costs(shop_of: Callable[[str], Shop], kind: str, monkeypatch: pytest.MonkeyPatch):
    shop = shop_of(kind)
    sent: list[str] = []
    cls = type((async_of if shop.door.is_async else of)(shop.door.connection))
    execute = cls.execute

    def counted(self: Any, statement: Any) -> Any:
        sent.append(statement.sql)
        return execute(self, statement)

    monkeypatch.setattr(cls, "execute", counted)
    with shop.door.transaction():  # MySQL is asked for its state once per connection
        shop.accept("m-0")
    assert sent[:-1] == (["DO 0"] if kind in ("pymysql", "asyncmy") else [])
    costs = []
    for ask in (
        lambda: shop.accept("m-1"), lambda: shop.accept("m-1"),
        lambda: shop.process("m-2", lambda: 1), lambda: shop.process("m-2", lambda: 1),
    ):  # fmt: skip
        sent.clear()
        with shop.door.transaction():
            ask()
        costs.append(len(sent))
    assert tuple(costs) == COSTS[kind]
    sent.clear()
    with shop.door.transaction():
        shop.accept_many([f"many-{n}" for n in range(100)])
    assert len(sent) == (100 if kind == "sqlite3" else 1)
