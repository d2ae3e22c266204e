"""A block that is refused at its beginning leaves no connection open: Python calls no ``__aexit__`` then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.polling import until
from twicesafe import (
    AsyncInbox,
    AsyncOutbox,
    AsyncReceiver,
    ConfigurationError,
    SchemaVersionError,
)
from twicesafe.outbox import AsyncOutboxRelay

BLOCKS: dict[str, Callable[[str], Any]] = {
    "receiver": AsyncReceiver.open,
    "inbox": AsyncInbox.open,
    "outbox": AsyncOutbox.open,
    "relay": lambda url: AsyncOutboxRelay.open(url, publisher=_publish),
}


def _publish(messages: list[Any]) -> list[None]:
    return [None for _ in messages]


async def entered(block: Any) -> None:
    async with block:
        raise AssertionError("it began")


@pytest.mark.parametrize("driver", ["postgresql", "postgresql+asyncpg"])
@pytest.mark.parametrize("name", BLOCKS)
def test_without_tables_on_postgresql(postgres_url: str, name: str, driver: str):
    block = BLOCKS[name](f"{driver}://{postgres_url.partition('://')[2]}?migrate=no")
    with pytest.raises(SchemaVersionError):
        asyncio.run(entered(block))
    nothing_is_connected(postgres_url)


def nothing_is_connected(url: str) -> None:
    count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    with psycopg.connect(url, autocommit=True) as connection:
        until(lambda: connection.execute(count).fetchone() == (1,))


def test_an_async_receiver_of_a_cluster_that_is_none(own_server: Callable[..., Any]):
    server = own_server("valkey")
    with pytest.raises(ConfigurationError, match="is not a Cluster"):
        asyncio.run(entered(AsyncReceiver.open(f"redis+cluster://127.0.0.1:{server.port}")))
    client = server.client()
    until(lambda: all(each["name"] != "twicesafe" for each in client.client_list()))
