"""Consumers in transaction mode: crashes are counted outside the transaction, and what is done is not dead.

A worker that dies leaves only its mark: a claim, outside the transaction that the database rolled back.
The tests leave such marks by hand, and one kills real processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker

from tests.observers.test_opentelemetry import TRACEPARENT, Backend
from twicesafe import AsyncInbox, Backoff, Inbox, Policy, Record, State, current_claim
from twicesafe._core.protocol import ClaimRequest
from twicesafe._values.keys import new_owner
from twicesafe.consumers import AsyncConsumer, Consumer, DeadLetter, Message, Report
from twicesafe.events import BrokerFailed, StoreFailed
from twicesafe.testing import MemoryBroker

MOST = 3
POLICY = Policy(lease=30, max_attempts=MOST, backoff=Backoff(first=0.001, most=0.01))


class Shop:
    """A broker, a database with an inbox, and what was dead-lettered."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.broker = MemoryBroker()
        self.dead: list[tuple[str | None, str]] = []
        self.attempts: list[tuple[str | None, int]] = []
        self.inbox = Inbox.open(f"sqlite:///{path}")
        with self.connect() as connection:
            connection.execute("CREATE TABLE booked (id TEXT)")

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path)

    def booked(self) -> list[str]:
        with self.connect() as connection:
            return sorted(row[0] for row in connection.execute("SELECT id FROM booked"))

    def redeliver(self, id_: str, body: bytes = b"{}", key: str | None = None) -> None:
        """Send a message that the broker has delivered before."""
        self.broker.send("orders", body, id=id_, key=key)
        self.broker.put_back("orders", [self.broker.queues["orders"].pop()])

    def consumer(self, **settings: Any) -> Consumer:
        settings.setdefault("policy", POLICY)
        return Consumer(
            self.broker.source("orders"), inbox=self.inbox, connect=self.connect,
            dead_letter=lambda message, error: self.dead.append((message.id, str(error))), **settings,
        )  # fmt: skip

    def die(self, id_: str, times: int = 1) -> None:
        """So many workers have died while they ran this message."""
        with self.consumer() as consumer:
            for _ in range(times):
                mark = self.mark(consumer, id_)
                self.inbox.store.perform(ClaimRequest(mark, new_owner(), 0, max_attempts=99))

    def mark(self, consumer: Consumer, id_: str) -> Any:
        message = Message(id_, "orders", b"{}", position="1", deliveries=2)
        return consumer._mark_key(consumer._key_of(message))

    def starts(self, id_: str) -> Record | None:
        with self.consumer() as consumer:
            return consumer._claims.record(self.mark(consumer, id_))  # type: ignore[no-any-return]

    def handle(self, connection: sqlite3.Connection, message: Message) -> None:
        claim = current_claim()
        assert claim is not None
        self.attempts.append((message.id, claim.attempt))
        connection.execute("INSERT INTO booked VALUES (?)", (message.id,))
        if message.json() == "bad":
            raise ValueError("bad")

    def drain(self, **settings: Any) -> Report:
        with self.consumer(**settings) as consumer:
            return consumer.drain(self.handle, idle=0.05)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    shop.inbox.close()


def test_a_first_delivery_leaves_no_mark(shop: Shop) -> None:
    shop.broker.send("orders", id="a")
    assert shop.drain().ran == 1
    assert shop.starts("a") is None


def test_a_redelivered_message_has_one_span_in_the_trace_of_its_producer(tmp_path: Path) -> None:
    """The tracer did not know the number of the attempt that a mark passes on: with OpenTelemetry, every
    redelivered message failed until it was dead. And every message had two spans."""
    backend = Backend()
    shop = Shop(tmp_path / "shop.db")
    shop.inbox.close()
    shop.inbox = Inbox.open(f"sqlite:///{shop.path}", observers=[backend.observer])
    shop.broker.send("orders", id="a", headers={"traceparent": TRACEPARENT})
    shop.broker.put_back("orders", [shop.broker.queues["orders"].pop()])
    report = shop.drain()
    assert (report.ran, report.retried, report.dead) == (1, 0, 0)
    (span,) = backend.spans("handler")
    assert f"{span.context.trace_id:032x}" in TRACEPARENT
    assert span.attributes is not None
    assert span.attributes["twicesafe.attempt"] == 1
    shop.inbox.close()
    backend.close()


def test_a_crash_counts_although_its_transaction_is_gone(shop: Shop) -> None:
    shop.die("a", times=2)
    shop.redeliver("a")
    assert shop.drain().ran == 1
    assert shop.attempts == [("a", 3)]
    assert shop.booked() == ["a"]
    mark = shop.starts("a")
    assert mark is not None
    assert mark.state is State.RELEASED, "its run ended, so it can be swept"


def test_a_message_that_kills_every_worker_goes_to_the_dead_letters(shop: Shop) -> None:
    shop.die("a", times=MOST)
    shop.redeliver("a")
    report = shop.drain()
    assert (report.ran, report.dead) == (0, 1)
    assert shop.attempts == []
    assert [id_ for id_, _ in shop.dead] == ["a"]


def test_crashes_and_failures_count_together(shop: Shop) -> None:
    """Two workers died, so the first failure is the last attempt."""
    shop.die("a", times=MOST - 1)
    shop.redeliver("a", b'"bad"')
    report = shop.drain()
    assert shop.attempts == [("a", MOST)]
    assert (report.retried, report.dead) == (0, 1)
    assert shop.booked() == []


def test_failures_count_before_and_after_a_crash(shop: Shop) -> None:
    shop.die("a")
    shop.redeliver("a", b'"bad"')
    report = shop.drain()
    assert shop.attempts == [("a", 2), ("a", 3)]
    assert (report.retried, report.dead) == (1, 1)


def test_one_start_is_counted_from_the_first_delivery_on(shop: Shop) -> None:
    """With max_attempts=1 a crash must be seen, although the broker has not delivered it before."""
    shop.broker.send("orders", id="a")
    shop.drain(policy=POLICY.replace(max_attempts=1))
    assert shop.starts("a") is not None


def test_a_done_message_with_too_many_crashes_is_not_dead(shop: Shop) -> None:
    """Its last worker committed, and died before it gave its mark back."""
    shop.broker.send("orders", id="a")
    shop.drain()
    shop.die("a", times=MOST)
    shop.redeliver("a")
    report = shop.drain()
    assert (report.replayed, report.dead) == (1, 0)
    assert shop.dead == []
    assert shop.booked() == ["a"]


def test_a_done_message_behind_a_dead_one_of_its_key_is_not_dead(shop: Shop) -> None:
    """Its acknowledgement was lost; then a later message of its key died."""

    def handle(connection: sqlite3.Connection, message: Message) -> None:
        if message.id == "dies":
            raise DeadLetter("never")
        shop.handle(connection, message)

    for id_ in ("done", "dies"):
        shop.broker.send("orders", id=id_, key="k")
    with shop.consumer() as consumer:
        consumer.drain(handle, idle=0.05)
    shop.redeliver("done", key="k")
    shop.broker.send("orders", id="behind", key="k")
    report = shop.drain()
    assert (report.replayed, report.dead) == (1, 1)
    assert [id_ for id_, _ in shop.dead] == ["dies", "behind"]
    assert shop.booked() == ["done"]


def test_another_payload_behind_a_dead_one_is_dead_for_its_own_reason(shop: Shop) -> None:
    shop.broker.send("orders", b'"bad"', id="dies", key="k")
    shop.broker.send("orders", b"1", id="a")
    shop.drain(policy=POLICY.replace(max_attempts=2))
    shop.redeliver("a", b"2", key="k")
    shop.drain()
    assert "different request" in shop.dead[-1][1]


def test_a_replay_lets_the_counted_starts_begin_again(shop: Shop) -> None:
    from twicesafe import Receiver
    from twicesafe.consumers import DeadLetters

    shop.die("a", times=MOST)
    shop.redeliver("a")
    with shop.consumer() as consumer:
        consumer._dead_letter, consumer._dead = None, shop.broker
        assert consumer.drain(shop.handle, idle=0.05).dead == 1
    with (
        Receiver.open(f"sqlite:///{shop.path}") as receiver,
        DeadLetters(shop.broker.source("orders.dead")) as dead,
    ):
        assert dead.replay(receiver, by="ann", why="fixed").replayed == 1
    assert shop.drain().ran == 1
    assert shop.booked() == ["a"]


@pytest.mark.parametrize("value", [object(), "x" * 300_000], ids=["not storable", "too large"])
@pytest.mark.parametrize("remember", [(), (Exception,)], ids=["retried", "remembered"])
def test_a_message_whose_result_cannot_be_kept_is_not_acknowledged(
    shop: Shop, value: object, remember: tuple[type[Exception], ...]
) -> None:
    """Its transaction was rolled back, so an acknowledgement would lose the message."""

    def handle(connection: sqlite3.Connection, message: Message) -> object:
        shop.handle(connection, message)
        return value

    shop.broker.send("orders", id="a")
    with shop.consumer(policy=POLICY.replace(remember=remember)) as consumer:
        report = consumer.drain(handle, idle=0.05)
    assert (report.dead, len(shop.attempts)) == (1, 1 if remember else MOST)
    assert [id_ for id_, _ in shop.dead] == ["a"]
    assert "nothing was recorded" in shop.dead[0][1]
    assert shop.booked() == []


async def test_the_async_consumer_counts_crashes_too(shop: Shop) -> None:
    aiosqlite = pytest.importorskip("aiosqlite")
    shop.die("poison", times=MOST)
    shop.die("a")
    for id_ in ("poison", "a"):
        shop.redeliver(id_)

    async def handle(connection: Any, message: Message) -> None:
        claim = current_claim()
        assert claim is not None
        shop.attempts.append((message.id, claim.attempt))
        await connection.execute("INSERT INTO booked VALUES (?)", (message.id,))

    async with AsyncInbox.open(f"sqlite:///{shop.path}") as inbox:
        consumer = AsyncConsumer(
            shop.broker.source("orders"), inbox=inbox, policy=POLICY,
            connect=lambda: aiosqlite.connect(shop.path),
            dead_letter=lambda message, error: shop.dead.append((message.id, str(error))),
        )  # fmt: skip
        async with consumer:
            report = await consumer.drain(handle, idle=0.05)
    assert (report.ran, report.dead) == (1, 1)
    assert shop.attempts == [("a", 2)]
    assert [id_ for id_, _ in shop.dead] == ["poison"]


class _Odd(BaseException):
    """As `gevent.Timeout` and `trio.Cancelled` are."""


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, _Odd])
def test_a_handler_that_exits_does_not_do_so_after_each_restart(
    shop: Shop, kind: type[BaseException]
) -> None:
    def handle(connection: sqlite3.Connection, message: Message) -> None:
        shop.handle(connection, message)
        if message.id == "exits":
            raise kind

    shop.broker.send("orders", id="exits")
    shop.broker.send("orders", id="b")
    for _ in range(MOST):
        with shop.consumer(concurrency=1) as consumer, pytest.raises(kind):
            consumer.drain(handle, idle=0.05)
    assert shop.drain().dead == 1
    assert [id_ for id_, _ in shop.attempts].count("exits") == MOST
    assert [id_ for id_, _ in shop.dead] == ["exits"]
    assert shop.booked() == ["b"]


async def test_an_async_handler_that_exits_is_counted_and_a_cancelled_consumer_is_not(
    shop: Shop,
) -> None:
    aiosqlite = pytest.importorskip("aiosqlite")
    started = asyncio.Event()

    async def handle(connection: Any, message: Message) -> None:
        claim = current_claim()
        assert claim is not None
        shop.attempts.append((message.id, claim.attempt))
        if len(shop.attempts) == 1:
            started.set()
            await asyncio.Event().wait()
        raise _Odd

    async with AsyncInbox.open(f"sqlite:///{shop.path}") as inbox:
        for run in range(3):
            # A new one: the fetch of a cancelled consumer may still take from the old one.
            broker = MemoryBroker()
            broker.send("orders", id="a")
            consumer = AsyncConsumer(
                broker.source("orders"), inbox=inbox, policy=POLICY,
                connect=lambda: aiosqlite.connect(shop.path),
            )  # fmt: skip
            async with consumer:
                running = asyncio.create_task(consumer.run(handle))
                await started.wait()
                if run == 0:
                    running.cancel()
                with pytest.raises(_Odd if run else asyncio.CancelledError):
                    await running
    assert [attempt for _, attempt in shop.attempts] == [1, 1, 2]


# --- processes that die --------------------------------------------------------------------------

WORKER = """
import os, signal, sqlite3, sys
from twicesafe import Backoff, Inbox, Policy
from twicesafe.consumers import Consumer
from twicesafe.testing import MemoryBroker

path, starts, dead, deliveries = sys.argv[1:5]

def noted(file, id_):
    with open(file, "a") as kept:
        kept.write(id_ + "\\\\n")

def handle(connection, message):
    noted(starts, message.id)
    connection.execute("INSERT INTO booked VALUES (?)", (message.id,))
    if message.id == "poison":
        os.kill(os.getpid(), signal.SIGKILL)

broker = MemoryBroker()
for id_ in ("a", "b", "poison", "c", "d", "e"):
    broker.send("orders", id=id_)
source = broker.source("orders")
if int(deliveries) > 1:
    source.fetch(100, 0)
    source.close()
with Inbox.open(f"sqlite:///{path}") as inbox:
    policy = Policy(lease=0.3, max_attempts=3, backoff=Backoff(first=0))
    consumer = Consumer(source, inbox=inbox, connect=lambda: sqlite3.connect(path, timeout=20),
        dead_letter=lambda message, error: noted(dead, message.id), policy=policy, concurrency=2)
    consumer.drain(handle, idle=0.1)
""".replace("\\\\", "\\")


def test_a_message_that_kills_its_process_does_not_loop_for_ever(tmp_path: Path) -> None:
    """Real processes, killed in the middle of a transaction; the broker delivers everything again."""
    path, starts, dead = tmp_path / "shop.db", tmp_path / "starts", tmp_path / "dead"
    shop = Shop(path)
    for delivery in range(1, MOST + 4):
        command = [sys.executable, "-c", WORKER, str(path), str(starts), str(dead), str(delivery)]
        if subprocess.run(command, check=False).returncode == 0:
            break
    shop.inbox.close()
    started = starts.read_text().split()
    assert dead.read_text().split() == ["poison"]
    assert MOST <= started.count("poison") <= MOST + 1, "the first one may be uncounted"
    assert shop.booked() == ["a", "b", "c", "d", "e"]


def test_a_dead_workers_mark_is_waited_for(shop: Shop) -> None:
    """Its lease runs: perhaps it is not dead."""
    with shop.consumer(policy=POLICY.replace(lease=0.2)) as consumer:
        mark = shop.mark(consumer, "a")
        shop.inbox.store.perform(ClaimRequest(mark, new_owner(), 200))
        shop.redeliver("a")
        assert consumer.drain(shop.handle, idle=0.05).ran == 1
    assert shop.attempts == [("a", 2)]


@pytest.mark.parametrize("kind", ["engine.begin", "sessionmaker", "sessionmaker.begin"])
@pytest.mark.parametrize("end", ["rollback", "close"])
def test_a_handler_that_ends_sqlalchemys_transaction_is_a_dead_letter(
    shop: Shop, kind: str, end: str
) -> None:
    """What SQLAlchemy raises then is not an outage of the database, after which all would begin again."""
    engine = create_engine(f"sqlite:///{shop.path}")
    sessions = sessionmaker(engine)
    connect: dict[str, Any] = {
        "engine.begin": engine.begin,
        "sessionmaker": sessions,
        "sessionmaker.begin": sessions.begin,
    }
    starts: list[str | None] = []

    def handle(connection: Any, message: Message) -> None:
        starts.append(message.id)
        connection.execute(text("INSERT INTO booked VALUES ('a')"))
        getattr(connection, end)()

    shop.broker.send("orders", b"{}", id="a")
    with Consumer(
        shop.broker.source("orders"), inbox=shop.inbox, connect=connect[kind], policy=POLICY,
        dead_letter=lambda message, error: shop.dead.append((message.id, type(error).__name__)),
    ) as consumer:  # fmt: skip
        assert consumer.drain(handle, idle=0.1).dead == 1
    engine.dispose()
    assert starts == ["a"]
    assert shop.dead == [("a", "AtomicityBrokenError")]
    assert shop.booked() == []


@pytest.mark.parametrize("wrong", ["away", "no connection"])
def test_a_message_that_waits_for_the_database_is_an_event(shop: Shop, wrong: str) -> None:
    """No attempt is counted, so nothing else would tell."""
    told: list[Any] = []

    def watch(event: Any) -> None:
        if isinstance(event, (StoreFailed, BrokerFailed)):
            told.append(event)
            consumer.stop()

    def connect() -> Any:
        if wrong == "away":
            raise sqlite3.OperationalError("unable to open database file")
        return contextlib.nullcontext(object())

    shop.broker.send("orders", b"{}", id="a")
    with (
        Inbox.open(f"sqlite:///{shop.path}", observers=[watch]) as inbox,
        Consumer(shop.broker.source("orders"), inbox=inbox, connect=connect) as consumer,
    ):
        report = consumer.run(lambda connection, message: None)
    assert (report.ran, report.retried, report.dead) == (0, 0, 0)
    if wrong == "away":
        assert [(event.operation, event.error) for event in told] == [
            ("delivery", "OperationalError")
        ]
    else:
        assert "is not a supported connection" in told[0].error
