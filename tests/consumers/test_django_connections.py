"""Handlers that use Django's ORM: a connection that the database has closed costs one attempt, and no dead letter."""

from __future__ import annotations

import subprocess
import sys
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
