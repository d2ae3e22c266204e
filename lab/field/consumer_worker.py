"""One consumer process of the trials of consumers: it handles messages until it is stopped, or killed.

Every start is a line in a file that outlives the process: what started, as which attempt, and why again.
A message whose body says so kills the process, every time.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Final

import msgspec

from twicesafe import Backoff, Inbox, Policy, Receiver, current_claim
from twicesafe.consumers import Consumer, Message

__all__ = ["MOST", "Job", "work"]

MOST: Final = 5
"""max_attempts"""

POLICY: Final = Policy(
    lease=0.5, max_attempts=MOST, backoff=Backoff(first=0.05, most=0.2), retention=3600
)


class Job(msgspec.Struct, frozen=True):
    source: str
    database: str
    transactions: bool
    ledger: str


def work(job: Job) -> None:
    """Run until SIGTERM."""
    ledger = os.open(job.ledger, os.O_WRONLY | os.O_APPEND)

    def note(what: str, message: Message) -> None:
        claim = current_claim()
        assert claim is not None
        line = f"{what} {message.id} {claim.attempt} {claim.cause or '-'}\n"
        os.write(ledger, line.encode())

    def handle(message: Message) -> None:
        note("start", message)
        _spend(message)
        note("effect", message)

    def handle_in_transaction(connection: Any, message: Message) -> None:
        note("start", message)
        connection.execute("INSERT INTO booked (id) VALUES (%s)", (message.id,))
        _spend(message)

    settings: dict[str, Any] = {"concurrency": 4, "batch": 16, "policy": POLICY}
    if not job.transactions:
        with Receiver.open(job.database) as receiver:
            Consumer.open(job.source, receiver=receiver, **settings).run(handle)
        return
    import psycopg

    def connect() -> Any:
        return psycopg.connect(job.database)

    with Inbox.open(job.database) as inbox:
        consumer = Consumer.open(job.source, inbox=inbox, connect=connect, **settings)
        consumer.run(handle_in_transaction)


def _spend(message: Message) -> None:
    given = message.json()
    time.sleep(given["seconds"])
    if given["kills"]:
        os.kill(os.getpid(), signal.SIGKILL)
