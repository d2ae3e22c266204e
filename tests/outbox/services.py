"""Two services and a broker, for the test that kills both. Run as a script:

    services.py orders   DATABASE BROKER COUNT     places orders, relays their messages
    services.py turnover DATABASE BROKER           applies each message once, in its own database

Each goes on where its own database says it was.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from urllib.parse import parse_qs, urlsplit

import psycopg

from twicesafe import Inbox, Outbox, OutboxRelay

LEASE = 0.6


def orders(database: str, broker: str, count: int) -> None:
    outbox = Outbox.open(database)
    with psycopg.connect(database) as connection, OutboxRelay.open(database, broker, lease=LEASE):
        while True:
            row = connection.execute("SELECT count(*) FROM orders").fetchone()
            assert row is not None
            connection.commit()
            if row[0] >= count:
                time.sleep(0.05)  # the relay has work to do, until we are killed
                continue
            number = row[0]
            with connection.transaction():
                connection.execute("INSERT INTO orders VALUES (%s)", (number,))
                outbox.add(
                    connection,
                    topic="orders",
                    body={"order": number},
                    key=f"customer {number % 5}",
                    id=f"order-{number}",
                )


async def turnover(database: str, broker: str) -> None:
    import nats
    import nats.errors

    inbox = Inbox.open(database)
    parts = urlsplit(broker)
    prefix = parse_qs(parts.query)["prefix"][0]
    link = await nats.connect(f"nats://{parts.netloc}")
    stream = link.jetstream()
    queue = await stream.pull_subscribe(f"{prefix}orders", durable="turnover")
    with psycopg.connect(database) as connection:
        while True:
            try:
                messages = await queue.fetch(10, timeout=1)
            except nats.errors.TimeoutError:
                continue
            for message in messages:
                assert message.headers is not None
                with connection.transaction():
                    if inbox.accept(connection, message.headers["Nats-Msg-Id"]):
                        order = json.loads(message.data)["order"]
                        connection.execute("INSERT INTO turnover VALUES (%s)", (order,))
                await message.ack()


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    if role == "orders":
        orders(rest[0], rest[1], int(rest[2]))
    else:
        asyncio.run(turnover(rest[0], rest[1]))
