"""From one service's transaction through a broker into another's, both killed at random: applied once.

``TWICESAFE_SERVICE_KILLS=100`` makes it longer.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from tests.house.repository import ROOT

KILLS = int(os.environ.get("TWICESAFE_SERVICE_KILLS", "4"))
ORDERS = 200 + 40 * KILLS


def service(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.outbox.services", *arguments], cwd=ROOT)


@pytest.mark.timeout(120 + 10 * KILLS)
async def test_every_order_is_applied_once(postgres: Any, nats: Any, nats_url: str):
    import nats as driver
    from nats.js.api import ConsumerConfig

    prefix = parse_qs(urlsplit(nats_url).query)["prefix"][0]
    link = await driver.connect(nats.url)
    stream = link.jetstream()
    name = prefix.rstrip(".")
    # A window shorter than the run: the broker's own deduplication must not be what carries it.
    await stream.add_stream(name=name, subjects=[f"{prefix}>"], duplicate_window=0.2)
    await stream.add_consumer(
        name, ConsumerConfig(durable_name="turnover", ack_wait=1, filter_subject=f"{prefix}orders")
    )
    with postgres.fresh() as shop, postgres.fresh() as books:
        with psycopg.connect(shop) as connection:
            connection.execute("CREATE TABLE orders (number integer PRIMARY KEY)")
        with psycopg.connect(books) as connection:
            connection.execute("CREATE TABLE turnover (number integer)")
        commands = [("orders", shop, nats_url, str(ORDERS)), ("turnover", books, nats_url)]
        running = [service(*command) for command in commands]
        chance = random.Random(1)
        try:
            for _ in range(KILLS):
                # Long enough that they begin to work before they are killed.
                await asyncio.sleep(chance.uniform(0.8, 2.0))
                victim = chance.randrange(2)
                running[victim].kill()
                running[victim].wait()
                running[victim] = service(*commands[victim])
            until = time.monotonic() + 60
            with psycopg.connect(books, autocommit=True) as connection:
                while time.monotonic() < until:
                    row = connection.execute("SELECT count(*) FROM turnover").fetchone()
                    if row is not None and row[0] >= ORDERS:
                        break
                    await asyncio.sleep(0.1)
                applied = [n for (n,) in connection.execute("SELECT number FROM turnover")]
        finally:
            for process in running:
                process.kill()
                process.wait()
        assert sorted(applied) == list(range(ORDERS))
    await link.close()
