"""Transaction mode: a handler that closes its connection fails, with every driver. It is not an outage, after which
the message would be delivered for ever."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.transactions.kinds import mysql_settings
from twicesafe import AsyncInbox, Backoff, Inbox, Policy
from twicesafe.consumers import AsyncConsumer, Consumer, Message
from twicesafe.testing import MemoryBroker

MOST = 2
POLICY = Policy(max_attempts=MOST, backoff=Backoff(first=0.001, most=0.01))
ENOUGH = MOST + 3
"""Starts after which it would never end."""


def _psycopg(url: str) -> Any:
    import psycopg

    return psycopg.connect(url)


def _pymysql(url: str) -> Any:
    import pymysql

    return pymysql.connect(**mysql_settings(url))


def _aiosqlite(url: str) -> Any:
    import aiosqlite

    return aiosqlite.connect(url.removeprefix("sqlite:///"))


async def _async_psycopg(url: str) -> Any:
    import psycopg

    return await psycopg.AsyncConnection.connect(url)


async def _asyncpg(url: str) -> Any:
    import asyncpg

    return await asyncpg.connect(url)


async def _asyncmy(url: str) -> Any:
    import asyncmy

    return await asyncmy.connect(**mysql_settings(url))


async def _aiomysql(url: str) -> Any:
    import aiomysql

    settings = mysql_settings(url)
    return await aiomysql.connect(db=settings.pop("database"), **settings)


def _sqlite(url: str) -> sqlite3.Connection:
    return sqlite3.connect(url.removeprefix("sqlite:///"))


@pytest.fixture
def url(request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> str:
    if engine == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    found: str = request.getfixturevalue(f"{engine}_url")
    return found


class Orders:
    """One message, and what became of it."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.broker.send("orders", b"{}", id="a")
        self.starts = 0
        self.dead: list[str] = []

    def settings(self, connect: Callable[[str], Any], url: str) -> dict[str, Any]:
        def bury(message: Message, error: Exception) -> None:
            self.dead.append(str(error))

        return {"connect": lambda: connect(url), "policy": POLICY, "dead_letter": bury}

    def begin(self, consumer: Any) -> None:
        self.starts += 1
        if self.starts >= ENOUGH:
            consumer.stop()

    def check(self) -> None:
        assert (self.starts, len(self.dead)) == (MOST, 1)
        assert "leave it open" in self.dead[0]


@pytest.mark.parametrize(
    "engine, connect", [("sqlite", _sqlite), ("postgres", _psycopg), ("mariadb", _pymysql)]
)
def test_a_handler_that_closes_its_connection_fails(url: str, connect: Any) -> None:
    orders = Orders()

    def handle(connection: Any, message: Message) -> None:
        orders.begin(consumer)
        connection.close()

    with Inbox.open(url) as inbox:
        source = orders.broker.source("orders")
        with Consumer(source, inbox=inbox, **orders.settings(connect, url)) as consumer:
            consumer.drain(handle, idle=0.05)
    orders.check()


@pytest.mark.parametrize(
    "engine, connect",
    [
        ("sqlite", _aiosqlite),
        ("postgres", _async_psycopg),
        ("postgres", _asyncpg),
        ("mariadb", _asyncmy),
        ("mariadb", _aiomysql),
    ],
)
async def test_an_async_handler_that_closes_its_connection_fails(url: str, connect: Any) -> None:
    orders = Orders()

    async def handle(connection: Any, message: Message) -> None:
        orders.begin(consumer)
        closed = connection.close()
        if asyncio.iscoroutine(closed):
            await closed

    async with AsyncInbox.open(url) as inbox:
        source = orders.broker.source("orders")
        async with AsyncConsumer(source, inbox=inbox, **orders.settings(connect, url)) as consumer:
            await consumer.drain(handle, idle=0.05)
    orders.check()
