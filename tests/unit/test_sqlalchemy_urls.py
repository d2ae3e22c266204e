"""URLs as SQLAlchemy spells them: the same store, and the driver is still ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.line import line  # noqa: F401 - a fixture
from twicesafe import AsyncInbox, AsyncReceiver, ConfigurationError, Inbox, Receiver
from twicesafe._engines.mysql import AsyncMysqlStore
from twicesafe._engines.postgresql import AsyncpgStore, AsyncPostgresStore
from twicesafe._engines.redis import AsyncRedisStore
from twicesafe._proxy.settings import load
from twicesafe.stores._urls import SCHEMES, mask, plain_url, script_of

SPELT = [
    ("postgresql+psycopg", AsyncPostgresStore),
    ("postgresql+psycopg2", AsyncPostgresStore),
    ("postgresql+psycopg_async", AsyncPostgresStore),
    ("postgresql+asyncpg", AsyncpgStore),
    ("mysql+pymysql", AsyncMysqlStore),
    ("mysql+asyncmy", AsyncMysqlStore),
    ("mysql+aiomysql", AsyncMysqlStore),
    ("mariadb+pymysql", AsyncMysqlStore),
    ("rediss", AsyncRedisStore),
    ("valkey", AsyncRedisStore),
]


@pytest.mark.parametrize("scheme, store", SPELT)
def test_the_store_behind_a_spelling(scheme: str, store: type[Any]):
    url = f"{scheme}://me:hunter2@db.example/{'0' if store is AsyncRedisStore else 'shop'}"
    opened = AsyncReceiver.open(url)
    assert type(opened.store) is store
    assert "hunter2" not in repr(opened)
    assert mask(url).startswith(f"{scheme}://me:***@db.example/")


@pytest.mark.parametrize("scheme", ["sqlite+pysqlite", "sqlite+aiosqlite"])
@pytest.mark.parametrize("cls", [Receiver, AsyncReceiver, Inbox, AsyncInbox])
async def test_a_file_with_every_class(scheme: str, cls: Any, tmp_path: Path):
    url = f"{scheme}:///{tmp_path}/keys.db"
    assert repr(cls.open(url)) == f"<{cls.__name__} sqlite:///{tmp_path}/keys.db>"


def test_the_command_line_and_the_proxy(tmp_path: Path, line: Any):  # noqa: F811
    url = f"sqlite+pysqlite:///{tmp_path}/keys.db"
    with Receiver.open(url) as receiver:
        receiver.process("k", str)
    assert line("stats", "--store", url, "--json", store=False).data["total"] == 1
    settings = load(given={"upstream": "http://127.0.0.1:9000", "store": url}, environ={})
    with Receiver.open(settings.store) as receiver:
        assert receiver.stats().total == 1


def test_the_schema_of_a_spelling():
    assert script_of("postgresql+psycopg2://h/d") == script_of("postgresql://h/d")


@pytest.mark.parametrize(
    "url, said",
    [
        ("postgresql+psycop://h/d", "no driver 'psycop'; write postgresql://…: twicesafe chooses"),
        ("postgresql+psycop://h/d", "did you mean 'psycopg'?"),
        ("sqlite+pysqlcipher:///x.db", "no driver 'pysqlcipher'; write sqlite://"),
        ("mysql+odd://me:hunter2@h/d", "known: pymysql, asyncmy"),
    ],
)
@pytest.mark.parametrize("cls", [Receiver, AsyncReceiver])
def test_an_unknown_driver(url: str, said: str, cls: Any):
    with pytest.raises(ConfigurationError) as told:
        cls.open(url)
    assert said in str(told.value)
    assert "hunter2" not in str(told.value)


def test_our_own_schemes_are_left_alone():
    for scheme in SCHEMES:
        assert plain_url(f"{scheme}://h/d") == f"{scheme}://h/d"


@pytest.mark.parametrize(
    "fixture, scheme", [("postgres_url", "postgresql+psycopg2"), ("mariadb_url", "mysql+aiomysql")]
)
def test_a_real_server(fixture: str, scheme: str, request: pytest.FixtureRequest):
    place = request.getfixturevalue(fixture).partition("://")[2]
    with Receiver.open(f"{scheme}://{place}") as receiver:
        assert receiver.process("spelt", str, 5).value == "5"
