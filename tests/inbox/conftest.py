"""An inbox for a door of every kind, and a small business: accounts that are credited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.transactions.conftest import ENGINE_OF, NAMED
from tests.transactions.kinds import Door, open_door
from twicesafe import AsyncInbox, Inbox, Outcome, Receiver


class Shop:
    """One database: doors to it, an inbox for each, and a receiver that looks from outside."""

    def __init__(self, kind: str, url: str, opened: list[Callable[[], object]]) -> None:
        self.kind, self.url, self._opened = kind, url, opened
        self.receiver = Receiver.open(url)
        opened.append(self.receiver.close)
        self.door = self.another()
        with self.door.transaction():
            self.door.sql("CREATE TABLE IF NOT EXISTS credits (n INTEGER, amount INTEGER)")
        self.inbox = self.make()

    def another(self, kind: str = "") -> Door:
        door = open_door(kind or self.kind, self.url)
        self._opened.append(door.close)
        return door

    def make(self, **settings: Any) -> Any:
        if not self.door.is_async:
            inbox = Inbox.open(self.url, **settings)
            self._opened.append(inbox.close)
            return inbox
        awaited = AsyncInbox.open(self.url, **settings)
        self._opened.append(lambda: self.door.end(awaited.close()))
        return awaited

    # -- the inbox in the caller's words, either mode -----------------------------------------

    def accept(self, id_: Any, door: Door | None = None, inbox: Any = None, **more: Any) -> bool:
        door = door or self.door
        accepted: bool = door.end((inbox or self.inbox).accept(door.connection, id_, **more))
        return accepted

    def accept_many(self, ids: list[Any]) -> list[bool]:
        verdicts: list[bool] = self.door.end(self.inbox.accept_many(self.door.connection, ids))
        return verdicts

    def process(
        self,
        key: Any,
        work: Callable[..., Any],
        *args: Any,
        door: Door | None = None,
        inbox: Any = None,
    ) -> Outcome[Any]:
        door = door or self.door
        handler = door.handler(work)
        outcome: Outcome[Any] = door.end(
            (inbox or self.inbox).process(door.connection, key, handler, *args)
        )
        return outcome

    def noted(self, key: str, inbox: Any = None) -> Any:
        """The record, once what was to be noted about its key is written."""
        inbox = inbox or self.inbox
        inbox._runtime.deferred.wait(inbox.key(key).id, 120)
        return self.receiver.record(key)

    def credit(self, amount: int = 1, door: Door | None = None) -> Callable[..., Any]:
        """A handler that writes one row through the door."""
        door = door or self.door
        text = f"INSERT INTO credits (n, amount) VALUES (1, {amount})"
        if not door.is_async:
            return lambda *args: (door.sql(text), f"credited {amount}")[1]

        async def work(*args: Any) -> str:
            await door.asql(text)
            return f"credited {amount}"

        return work

    @property
    def credits(self) -> list[int]:
        """What others see: committed rows only."""
        looking = open_door(
            {"sqlite": "sqlite3", "postgres": "psycopg", "mariadb": "pymysql"}[
                ENGINE_OF[self.kind]
            ],
            self.url,
        )
        try:
            looking.begin()
            rows = [row[0] for row in looking.sql("SELECT amount FROM credits ORDER BY amount")]
            looking.rollback()
            return rows
        finally:
            looking.close()


@pytest.fixture
def closing() -> Iterator[list[Callable[[], object]]]:
    """Asked for after the database: so all doors are closed before it goes."""
    opened: list[Callable[[], object]] = []
    yield opened
    for close in reversed(opened):
        close()


@pytest.fixture
def shop_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Shop]:
    def make(kind: str) -> Shop:
        engine = ENGINE_OF[kind]
        if engine == "sqlite":
            url = f"sqlite:///{tmp_path / 'shop.db'}"
        else:
            url = request.getfixturevalue(f"{engine}_url")
        return Shop(kind, url, request.getfixturevalue("closing"))

    return make


@pytest.fixture(params=NAMED)
def shop(request: pytest.FixtureRequest, shop_of: Callable[[str], Shop]) -> Shop:
    """A shop behind every kind of connection there is."""
    return shop_of(request.param)


LEAN = ["sqlite3", "aiosqlite", "psycopg", "asyncpg", "pymysql", "asyncmy"]


@pytest.fixture(params=LEAN)
def lean_shop(request: pytest.FixtureRequest, shop_of: Callable[[str], Shop]) -> Shop:
    """A shop per engine and mode: for rules that have nothing to do with the framework."""
    return shop_of(request.param)
