"""Handlers that use Django's ORM: a connection that the database has closed costs one attempt, and no dead letter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

PROGRAM: Final = """
import asyncio
import sys

import django
import psycopg
from django.conf import settings

url, kind = sys.argv[1:]
named = psycopg.conninfo.conninfo_to_dict(url)
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": named["dbname"],
            "USER": named["user"],
            "HOST": named["host"],
            "PORT": named["port"],
            "CONN_MAX_AGE": None,
        }
    }
)
django.setup()

from django.db import connection

from twicesafe import AsyncReceiver, Backoff, Policy, Receiver
from twicesafe.consumers import AsyncConsumer, Consumer
from twicesafe.testing import MemoryBroker

broker, policy = MemoryBroker(), Policy(backoff=Backoff(first=0.01, most=0.01))
for number in range(3):
    broker.send("orders", {}, id=f"o-{number}")


def handle(message):
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (mine,) = cursor.fetchone()
    if message.id == "o-0":  # the database closes the connection that Django keeps for this thread
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", (mine,))


async def handle_async(message):
    from asgiref.sync import sync_to_async

    await sync_to_async(handle)(message)


async def consume_async():
    async with AsyncReceiver.open("memory://", policy=policy) as receiver:
        source = broker.source("orders")
        async with AsyncConsumer(source, receiver=receiver, concurrency=1) as consumer:
            return await consumer.drain(handle_async, idle=0.2)


def consume():
    with Receiver.open("memory://", policy=policy) as receiver:
        with Consumer(broker.source("orders"), receiver=receiver, concurrency=1) as consumer:
            return consumer.drain(handle, idle=0.2)


report = asyncio.run(consume_async()) if kind == "async" else consume()
print(report.ran, report.retried, report.dead)
"""


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_connection_that_the_database_closed_costs_one_attempt(
    postgres_url: str, kind: str
) -> None:
    pytest.importorskip("django")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, postgres_url, kind],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["3", "1", "0"], done.stderr


IN_TRANSACTION: Final = """
import sys
from contextlib import contextmanager

import django
from django.conf import settings

path = sys.argv[1]
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": path}},
    INSTALLED_APPS=["twicesafe.integrations.django_inbox"],
)
django.setup()

from django.db import connection, transaction

from twicesafe import ConfigurationError, Inbox, Policy
from twicesafe.consumers import Consumer
from twicesafe.integrations.django_inbox import open_inbox
from twicesafe.testing import MemoryBroker

inbox = Inbox.open(f"sqlite:///{path}", policy=Policy(max_attempts=1))
broker = MemoryBroker()
for id in ("o-1", "o-1", "o-2"):
    broker.send("orders", {}, id=id)
with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE booked (id TEXT)")


@contextmanager
def connect():
    with transaction.atomic():
        yield connection


def handle(given, message):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO booked VALUES (%s)", [message.id])


source = broker.source("orders")
with Consumer(source, inbox=inbox, connect=connect, concurrency=1) as consumer:
    report = consumer.drain(handle, idle=0.2)
with connection.cursor() as cursor:
    cursor.execute("SELECT id FROM booked ORDER BY id")
    print(*(id for (id,) in cursor.fetchall()), report.dead)
try:
    Consumer(source, inbox=open_inbox(), connect=connect)
except ConfigurationError as error:
    print(error)
"""


def test_the_transaction_of_a_message_may_be_on_djangos_connection(tmp_path: Path) -> None:
    """Django closes old connections before the transaction, never inside it."""
    pytest.importorskip("django")
    done = subprocess.run(
        [sys.executable, "-c", IN_TRANSACTION, str(tmp_path / "shop.db")],
        capture_output=True,
        text=True,
        check=False,
    )
    booked, refused = [*done.stdout.splitlines(), "", ""][:2]
    assert booked == "o-1 o-2 0", done.stderr
    assert "cannot use the inbox of open_inbox()" in refused, done.stderr
    assert "Inbox.open('postgresql:///shop')" in refused
