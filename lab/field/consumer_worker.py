"""One consumer process of the trials of consumers: it handles messages until it is stopped, or killed.

Every start is a line in a file that outlives the process: what started, as which attempt, why again, its position in the
broker, and in which process.
On SIGUSR1 it shows where each of its threads is.
A poison message kills the process, every time; in Kafka transactions, where no store counts such deaths, it fails.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from typing import Any, Final, Literal, TypeAlias

import msgspec

from twicesafe import Backoff, Inbox, Policy, Receiver, current_claim
from twicesafe.consumers import Consumer, KafkaTransaction, Message

__all__ = ["MOST", "ORIGIN", "Job", "Mode", "work"]

Mode: TypeAlias = Literal["lease", "transaction", "kafka"]

MOST: Final = 5
"""max_attempts"""

ORIGIN: Final = "origin"
"""The header that tells of which message, by its offset, something was published."""

BARE: Final = Policy(max_attempts=MOST, backoff=Backoff(first=0.05, most=0.2), retention=3600)
POLICY: Final = BARE.replace(lease=0.5)


class Job(msgspec.Struct, frozen=True):
    source: str
    database: str
    mode: Mode
    ledger: str


def work(job: Job) -> None:
    """Run until SIGTERM."""
    faulthandler.register(signal.SIGUSR1)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):  # of the emulator
        os.environ.setdefault(name, "test")
    ledger = os.open(job.ledger, os.O_WRONLY | os.O_APPEND)

    def note(what: str, message: Message) -> None:
        claim = current_claim()
        attempt, cause = (0, None) if claim is None else (claim.attempt, claim.cause)
        line = f"{what} {message.id} {attempt} {cause or '-'} {message.position} {os.getpid()}\n"
        os.write(ledger, line.encode())

    def handle(message: Message) -> None:
        note("start", message)
        _spend(message)
        note("effect", message)

    def handle_in_transaction(connection: Any, message: Message) -> None:
        note("start", message)
        connection.execute("INSERT INTO booked (id) VALUES (%s)", (message.id,))
        _spend(message)

    def handle_in_kafka(transaction: KafkaTransaction, message: Message) -> None:
        note("start", message)
        given = message.json()
        time.sleep(given["seconds"])
        if given["poison"]:
            raise RuntimeError("poison")
        headers = {ORIGIN: message.position}
        transaction.publish("booked", message.id, key=message.key, headers=headers)

    settings: dict[str, Any] = {"concurrency": 4, "batch": 16, "policy": POLICY}
    if job.mode == "kafka":
        Consumer.open(job.source, **settings | {"policy": BARE}).run(handle_in_kafka)
        return
    if job.mode == "lease":
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
    if given["poison"]:
        os.kill(os.getpid(), signal.SIGKILL)
