"""Order and message commit together; a relay publishes the message; a consumer applies it once.

Two services, each with its own database. Some transactions of the first one fail: no order, no message.
The relay runs twice, and the broker delivers everything twice: the inbox of the second service
recognises the repeats.
"""

import sqlite3
from pathlib import Path

from twicesafe import Inbox, Outbox, OutboxRelay
from twicesafe.outbox.publishers import Message

for old in Path().glob("outbox-*.db*"):
    old.unlink()

# --- service A: orders ---------------------------------------------------------------------------

orders = sqlite3.connect("outbox-orders.db")
orders.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, customer TEXT, total INTEGER)")
outbox = Outbox.open("sqlite:///outbox-orders.db")


def place_order(order: str, customer: str, total: int) -> None:
    with orders:  # one transaction: the order and its message, or neither
        outbox.add(
            orders, topic="orders", body={"order": order, "total": total}, key=customer, id=order
        )
        if total < 0:
            raise ValueError("a negative order")
        orders.execute("INSERT INTO orders VALUES (?, ?, ?)", (order, customer, total))


place_order("o-1", "ana", 30)
place_order("o-2", "ben", 12)
try:
    place_order("o-3", "ana", -5)
except ValueError as error:
    print("no order, no message:", error)

# --- a broker that delivers twice ------------------------------------------------------------------

delivered: list[Message] = []


def broker(message: Message) -> None:
    delivered.extend([message, message])


# --- service B: turnover -----------------------------------------------------------------------------

turnover = sqlite3.connect("outbox-turnover.db")
turnover.execute("CREATE TABLE turnover (customer TEXT, amount INTEGER)")
inbox = Inbox.open("sqlite:///outbox-turnover.db")


def consume(message: Message) -> None:
    import json

    with turnover:  # the record of the message and the row, or neither
        if inbox.accept(turnover, message.id):
            total = json.loads(message.body)["total"]
            turnover.execute("INSERT INTO turnover VALUES (?, ?)", (message.key, total))


relay = OutboxRelay(outbox.store, broker)
print("published:", relay.drain())
print("published again:", relay.drain())
for message in delivered:
    consume(message)
print("deliveries:", len(delivered))
print("applied:", sorted(turnover.execute("SELECT customer, amount FROM turnover")))
assert sorted(turnover.execute("SELECT amount FROM turnover")) == [(12,), (30,)]

inbox.close()
outbox.close()
orders.close()
turnover.close()
