"""`add` through the frameworks that people hold their transactions in, on a real engine of each kind."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.outbox.stage import Broker
from twicesafe import AsyncOutbox, Outbox, OutboxRelay

MESSAGES = [{"topic": "t", "body": f"{n}", "key": "k" if n % 2 else None} for n in range(6)]


def check(outbox: Outbox) -> None:
    broker = Broker()
    assert OutboxRelay(outbox.store, broker).drain() == 6
    assert [b for b in broker.bodies if int(b) % 2] == ["1", "3", "5"]


def sqlalchemy_url(url: str) -> str:
    for ours, theirs in (
        ("postgresql://", "postgresql+psycopg://"),
        ("mysql://", "mysql+pymysql://"),
    ):
        url = url.replace(ours, theirs)
    return url


def test_sqlalchemy(url: str, outbox: Outbox):
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    engine = create_engine(sqlalchemy_url(url))
    with engine.begin() as connection:
        outbox.add_many(connection, MESSAGES[:3])
    with Session(engine) as session, session.begin():
        outbox.add_many(session, MESSAGES[3:])
    with Session(engine) as session:
        outbox.add(session, topic="t", body="7")
        session.rollback()
    engine.dispose()
    check(outbox)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_sqlalchemy_async(postgres_url: str, driver: str):
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(postgres_url.replace("postgresql:", f"postgresql+{driver}:"))
    async with AsyncOutbox.open(postgres_url) as outbox:
        async with engine.begin() as connection:
            await outbox.add_many(connection, MESSAGES[:3])
        async with AsyncSession(engine) as session, session.begin():
            await outbox.add_many(session, MESSAGES[3:])
    await engine.dispose()
    with Outbox.open(postgres_url) as opened:
        check(opened)


async def test_psycopg_async(postgres_url: str):
    import psycopg

    async with (
        AsyncOutbox.open(postgres_url) as outbox,
        await psycopg.AsyncConnection.connect(postgres_url) as connection,
    ):
        await outbox.add_many(connection, MESSAGES)
    with Outbox.open(postgres_url) as opened:
        check(opened)


async def test_aiosqlite(tmp_path: Path):
    import aiosqlite

    url = f"sqlite:///{tmp_path / 'shop.db'}"
    async with (
        AsyncOutbox.open(url) as outbox,
        aiosqlite.connect(tmp_path / "shop.db") as connection,
    ):
        await outbox.add_many(connection, MESSAGES)
        await connection.commit()
    with Outbox.open(url) as opened:
        check(opened)


async def test_asyncmy(mariadb_url: str):
    from urllib.parse import urlsplit

    import asyncmy

    parts = urlsplit(mariadb_url)
    connection = await asyncmy.connect(
        host=parts.hostname, port=parts.port, user="root", db=parts.path.lstrip("/")
    )
    async with AsyncOutbox.open(mariadb_url) as outbox:
        await connection.begin()
        await outbox.add_many(connection, MESSAGES)
        await connection.commit()
    await connection.ensure_closed()
    with Outbox.open(mariadb_url) as opened:
        check(opened)


DJANGO = """
import sys
import django
from django.conf import settings

engine, name, host, port = sys.argv[1:5]
settings.configure(DATABASES={"default": {
    "ENGINE": f"django.db.backends.{engine}", "NAME": name, "HOST": host, "PORT": port,
    "USER": "postgres" if engine == "postgresql" else "",
}})
django.setup()
from django.db import connection, transaction
from twicesafe import Outbox

with Outbox.open(sys.argv[5]) as outbox:
    with transaction.atomic():
        for n in range(3):
            outbox.add(connection, topic="t", body=f"{n}", key="k" if n % 2 else None)
    with transaction.atomic():
        outbox.add_many("default", [
            {"topic": "t", "body": f"{n}", "key": "k" if n % 2 else None} for n in range(3, 6)
        ])
connection.close()
"""


@pytest.mark.parametrize("engine", ["sqlite3", "postgresql"])
def test_django(engine: str, tmp_path: Path, request: pytest.FixtureRequest):
    if engine == "sqlite3":
        url = f"sqlite:///{tmp_path / 'shop.db'}"
        place = [str(tmp_path / "shop.db"), "", ""]
    else:
        from urllib.parse import urlsplit

        url = request.getfixturevalue("postgres_url")
        parts = urlsplit(url)
        place = [parts.path.lstrip("/"), parts.hostname or "", str(parts.port)]
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DJANGO), engine, *place, url], check=True, timeout=60
    )
    with Outbox.open(url) as outbox:
        check(outbox)
