"""The consumer on a broker in memory: what is run, recorded, acknowledged, retried and dead-lettered."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from twicesafe import (
    AsyncReceiver,
    Backoff,
    Inbox,
    Policy,
    Receiver,
    current_claim,
    current_key,
)
from twicesafe._core.consuming.recovery import decide, default_recovery
from twicesafe._core.protocol import ClaimRequest, Fail
from twicesafe._core.resolved_policy import ResolvedPolicy
from twicesafe._values.keys import new_owner
from twicesafe.consumers import (
    AsyncConsumer,
    Consumer,
    DeadLetter,
    DeadLetters,
    Message,
    Report,
    Retry,
)
from twicesafe.consumers.sources import Received
from twicesafe.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    StillInProgressError,
    StoreUnavailableError,
    UsageError,
)
from twicesafe.events import BrokerFailed
from twicesafe.stores.memory import MemoryStore
from twicesafe.testing import MemoryBroker
from twicesafe.testing._memory_broker import MemorySource

QUICK = Policy(backoff=Backoff(first=0.001, most=0.01))


class Setting:
    """A broker, a receiver, and what was dead-lettered."""

    def __init__(self, receiver: Receiver) -> None:
        self.broker = MemoryBroker()
        self.receiver = receiver
        self.dead: list[tuple[str, str]] = []
        self.sent = 0

    def send(self, body: bytes = b"{}", **fields: Any) -> None:
        self.sent += 1
        fields.setdefault("id", f"m-{self.sent}")
        self.broker.send("orders", body, **fields)

    def acknowledged(self) -> list[str]:
        return [one.id or one.position for one in self.broker.acknowledged]

    def keep_dead(self, message: Message, error: Exception) -> None:
        self.dead.append((message.id or message.position, str(error)))

    def consumer(self, source: Any = None, **settings: Any) -> Consumer:
        settings = {
            "receiver": self.receiver,
            "dead_letter": self.keep_dead,
            "policy": QUICK,
            **settings,
        }
        return Consumer(source or self.broker.source("orders"), **settings)

    def drain(self, handler: Callable[..., Any], **settings: Any) -> Report:
        with self.consumer(**settings) as consumer:
            return consumer.drain(handler, idle=0.05)


@pytest.fixture
def setting() -> Iterator[Setting]:
    with Receiver.open("memory://") as receiver:
        yield Setting(receiver)


def test_a_message_is_run_recorded_and_acknowledged(setting: Setting) -> None:
    seen: list[Any] = []

    def handle(message: Message) -> str:
        claim = current_claim()
        assert claim is not None
        assert claim.attempt == 1
        assert setting.acknowledged() == []
        seen.append(message.json())
        return "done"

    setting.send(b'{"cents": 5}')
    report = setting.drain(handle)
    assert seen == [{"cents": 5}]
    assert setting.acknowledged() == ["m-1"]
    assert report == Report(received=1, ran=1)


def test_claims_of_recorded_messages_take_no_memory(setting: Setting) -> None:
    """A run that does not end must not collect the claims of all its messages."""
    kept: list[int] = []
    for _ in range(100):
        setting.send()
    keeper = setting.receiver._runtime.keeper
    report = setting.drain(lambda message: kept.append(len(keeper._live)), batch=5, concurrency=5)
    assert report.ran == 100
    assert max(kept) <= 10  # of the running batch, and of the one that was just recorded


def test_a_repeat_is_acknowledged_without_running(setting: Setting) -> None:
    runs: list[str | None] = []
    for _ in range(3):
        setting.send(b"{}", id="same")
    report = setting.drain(lambda message: runs.append(message.id))
    assert runs == ["same"]
    assert (report.ran, report.replayed) == (1, 2)
    assert setting.acknowledged() == ["same"] * 3


def test_another_payload_under_a_known_id_is_a_dead_letter(setting: Setting) -> None:
    setting.send(b"1", id="same")
    setting.send(b"2", id="same")
    report = setting.drain(lambda message: None, concurrency=1)
    assert (report.ran, report.dead) == (1, 1)
    assert "different request" in setting.dead[0][1]
    assert setting.acknowledged() == ["same", "same"]


def test_a_message_without_a_usable_key_is_a_dead_letter(setting: Setting) -> None:
    setting.send(b"2", headers={"idempotency-key": '"'})
    setting.send(b"1")
    report = setting.drain(lambda message: None, key=lambda message: None)
    assert (report.ran, report.dead) == (0, 2)


def test_a_failure_is_retried_and_then_a_dead_letter(setting: Setting) -> None:
    attempts: Counter[str | None] = Counter()

    def handle(message: Message) -> None:
        attempts[message.id] += 1
        if message.id == "bad" or attempts[message.id] == 1:
            raise ValueError("not today")

    setting.send(id="bad")
    setting.send(id="good")
    report = setting.drain(handle, policy=QUICK.replace(max_attempts=3))
    assert attempts == {"bad": 3, "good": 2}
    assert (report.ran, report.dead, report.retried) == (1, 1, 3)
    assert "3 attempts failed" in setting.dead[0][1]
    assert "not today" in setting.dead[0][1]
    assert sorted(setting.acknowledged()) == ["bad", "good"]


def test_the_traceback_of_a_failed_attempt_is_logged(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    """The record and the dead letter have only the error's name and text, so no one learned where it was raised."""

    def handle(message: Message) -> None:
        if message.id == "m-2":
            raise DeadLetter("no address")  # a decision, not a mistake
        raise KeyError("cents")

    setting.send()
    setting.send()
    setting.drain(handle, policy=QUICK.replace(max_attempts=2))
    failures = [record for record in caplog.records if record.exc_info]
    (parked,) = (one for one in setting.receiver.records(state="parked") if one.value == "m-1")
    short = parked.key.short
    assert [record.getMessage() for record in failures] == [
        f"consumer orders: the handler failed: key={short} attempt=1",
        f"consumer orders: the handler failed: key={short} attempt=2",
    ]
    assert caplog.text.count('raise KeyError("cents")') == 2


def test_the_handler_decides(setting: Setting) -> None:
    attempts: Counter[str | None] = Counter()

    def handle(message: Message) -> None:
        attempts[message.id] += 1
        if message.id == "hopeless":
            raise DeadLetter("no such customer")
        if attempts[message.id] == 1:
            raise Retry(after=0)

    setting.send(id="hopeless")
    setting.send(id="later")
    report = setting.drain(handle)
    assert attempts == {"hopeless": 1, "later": 2}
    assert setting.dead == [("hopeless", "no such customer")]
    assert (report.ran, report.dead, report.retried) == (1, 1, 1)


def test_recover_decides_by_message_error_and_attempt(setting: Setting) -> None:
    asked: list[tuple[str | None, str, int]] = []

    def recover(message: Message, error: Exception, attempt: int) -> Retry | DeadLetter:
        asked.append((message.id, str(error), attempt))
        return Retry(after=0) if attempt < 2 else DeadLetter("twice is enough")

    def handle(message: Message) -> None:
        raise ValueError("no")

    setting.send(id="a")
    setting.drain(handle, recover=recover)
    assert asked == [("a", "no", 1), ("a", "no", 2)]
    assert setting.dead == [("a", "twice is enough")]


@pytest.mark.parametrize("wrong", [lambda *a: None, lambda *a: 1 / 0])
def test_a_broken_recover_loses_nothing(setting: Setting, wrong: Any) -> None:
    def handle(message: Message) -> None:
        raise ValueError("no")

    setting.send(id="a")
    setting.drain(handle, recover=wrong, policy=QUICK.replace(max_attempts=2))
    assert "recover=" in setting.dead[0][1]
    assert "ValueError: no" in setting.dead[0][1]


def test_a_decision_that_is_used_again_stays_as_it_is() -> None:
    """One Retry or DeadLetter for all messages, as a constant of the module."""
    policy = ResolvedPolicy(Policy(backoff=Backoff(first=1, factor=2, jitter=0), max_attempts=3))
    again, gone = Retry("busy"), DeadLetter("gone")
    by_recover = decide(lambda message, error, attempt: again, None, policy)
    first, second = by_recover(KeyError("a"), 1), by_recover(ValueError("b"), 2)
    assert isinstance(first, Retry)
    assert isinstance(second, Retry)
    assert (first.after, second.after) == (1, 2)
    assert isinstance(first.__cause__, KeyError)
    assert (
        str(by_recover(KeyError("a"), 3)) == "3 attempts failed; the last one: KeyError: 'a'; busy"
    )
    raised = decide(default_recovery, None, policy)
    assert [raised(again, n).after for n in (1, 2)] == [1, 2]  # type: ignore[attr-defined]
    dead = decide(lambda message, error, attempt: gone, None, policy)
    assert [type(dead(e, 1).__cause__) for e in (KeyError(), ValueError())] == [
        KeyError,
        ValueError,
    ]
    assert (again.after, again.__cause__, gone.__cause__) == (None, None, None)


def test_the_verdict_of_a_retry_says_what_the_handler_raised() -> None:
    """It said that the handler had asked for a retry, also when the handler had raised a KeyError."""
    decided = decide(default_recovery, None, ResolvedPolicy(Policy()))
    errors = KeyError("a"), Retry("out of stock"), Retry()
    assert [str(decided(error, 1)) for error in errors] == [
        "KeyError: 'a'",
        "out of stock",
        "the handler asked for a retry",
    ]


def test_a_dead_letter_function_that_gives_up_is_called_again(setting: Setting) -> None:
    """There is no further place for the message."""
    calls: list[str] = []

    def keep(message: Message, error: Exception) -> None:
        calls.append(message.id or "")
        if len(calls) < 3:
            raise DeadLetter("not here")

    def handle(message: Message) -> None:
        raise DeadLetter("no retry can help")

    setting.send()
    assert setting.drain(handle, dead_letter=keep).dead == 1
    assert calls == ["m-1"] * 3
    assert setting.acknowledged() == ["m-1"]


def test_a_consumer_that_is_closed_while_it_runs_finishes_and_acknowledges(
    setting: Setting,
) -> None:
    source = OnLoop(setting.broker)
    consumer = setting.consumer(source, concurrency=2)
    both = threading.Barrier(2)
    ran: list[str | None] = []

    def handle(message: Message) -> None:
        both.wait(60)
        if message.id == "m-1":
            consumer.close()
        both.wait(60)  # the other one still runs when it is closed
        ran.append(message.id)

    for _ in range(3):
        setting.send()
    assert consumer.run(handle).ran == 2
    assert sorted(setting.acknowledged()) == ["m-1", "m-2"] == sorted(map(str, ran))
    assert source.closed == 1
    with pytest.raises(UsageError, match="closed"):
        consumer.run(handle)


async def test_an_async_consumer_that_is_closed_while_it_runs_finishes_and_acknowledges() -> None:
    broker = MemoryBroker()
    source = OnLoop(broker)
    broker.send("orders", {}, id="m-1")
    async with AsyncReceiver.open("memory://") as receiver:
        consumer = AsyncConsumer(source, receiver=receiver)

        async def handle(message: Message) -> None:
            await consumer.close()

        assert (await consumer.run(handle)).ran == 1
    assert [one.id for one in broker.acknowledged] == ["m-1"]
    assert source.closed == 1


def test_a_stop_while_it_cannot_connect_does_not_stop_the_next_run(setting: Setting) -> None:
    source = Unreachable(setting.broker, "orders")
    setting.send()
    with setting.consumer(source) as consumer:
        source.meanwhile = consumer.stop
        with pytest.raises(BrokerUnavailableError):
            consumer.drain(lambda message: None, idle=0.05)
        assert consumer.drain(lambda message: None, idle=0.05).ran == 1


class OnLoop(MemorySource):
    """A source whose methods are async, as those of most brokers are."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker, "orders")
        self.closed = 0

    async def fetch(self, most: int, seconds: float) -> list[Received]:  # type: ignore[override]
        return await asyncio.to_thread(super().fetch, most, min(seconds, 0.05))

    async def acknowledge(self, receipts: Any) -> None:  # type: ignore[override]
        super().acknowledge(receipts)

    async def give_back(self, receipts: Any, seconds: float) -> None:  # type: ignore[override]
        super().give_back(receipts, seconds)

    async def check(self, consumer: Any) -> list[Any]:  # type: ignore[override]
        return []

    async def close(self) -> None:  # type: ignore[override]
        self.closed += 1


class Unreachable(MemorySource):
    """At the first try."""

    meanwhile: Callable[[], None] | None = None

    def check(self, consumer: Any) -> list[Any]:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is None:
            return []
        meanwhile()
        raise BrokerUnavailableError("the broker is away")


def test_later_messages_of_a_key_wait_behind_one_that_rests(setting: Setting) -> None:
    order: list[str | None] = []
    failed: set[str | None] = set()

    def handle(message: Message) -> None:
        order.append(message.id)
        if message.id == "a1" and message.id not in failed:
            failed.add(message.id)
            raise Retry(after=0.02)

    for id_ in ("a1", "a2", "b1", "a3", "b2"):
        setting.send(id=id_, key=id_[0])
    setting.drain(handle, concurrency=1)
    assert [one for one in order if one and one[0] == "a"] == ["a1", "a1", "a2", "a3"]
    assert order.index("b2") < order.index("a2"), "another key goes on"


def test_later_messages_of_a_dead_key_follow_it(setting: Setting) -> None:
    ran: list[str | None] = []

    def handle(message: Message) -> None:
        ran.append(message.id)
        if message.id == "a1":
            raise DeadLetter("poison")

    for id_ in ("a1", "a2", "b1"):
        setting.send(id=id_, key=id_[0])
    setting.drain(handle)
    assert sorted(filter(None, ran)) == ["a1", "b1"]
    assert [one for one, _ in setting.dead] == ["a1", "a2"]
    setting.send(id="a3", key="a")
    setting.drain(handle)  # another run learns it from the store
    assert [one for one, _ in setting.dead] == ["a1", "a2", "a3"]


def test_without_an_order_nothing_waits(setting: Setting) -> None:
    ran: list[str | None] = []

    def handle(message: Message) -> None:
        ran.append(message.id)
        if message.id == "a1":
            raise DeadLetter("poison")

    for id_ in ("a1", "a2"):
        setting.send(id=id_, key="a")
    setting.drain(handle, order="none")
    assert sorted(filter(None, ran)) == ["a1", "a2"]


def test_a_dead_letter_is_published_before_the_acknowledgement_and_once(setting: Setting) -> None:
    tries = 0

    def keep_dead(message: Message, error: Exception) -> None:
        nonlocal tries
        tries += 1
        assert setting.acknowledged() == []
        if tries < 3:
            raise OSError("the dead letters are away")

    def handle(message: Message) -> None:
        raise DeadLetter("poison")

    setting.send(id="a")
    source = setting.broker.source("orders")
    consumer = setting.consumer(source, dead_letter=keep_dead)
    report = consumer.drain(handle, idle=0.05)
    assert (tries, report.dead) == (3, 1)
    setting.broker.put_back("orders", setting.broker.acknowledged)  # that was lost
    assert consumer.drain(handle, idle=0.05).dead == 0
    assert tries == 3


def test_no_dead_letter_is_published_before_its_lane_is_surely_parked(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform = setting.receiver.store.perform

    def without_failures(ask: Any) -> Any:
        if isinstance(ask, Fail):
            raise StoreUnavailableError("away")
        return perform(ask)

    monkeypatch.setattr(setting.receiver.store, "perform", without_failures)
    message = Message("a", "orders", b"", "key")
    publish = setting.consumer()._dead_publication(message, DeadLetter("poison"))
    with pytest.raises(StillInProgressError):
        publish()
    assert setting.dead == []


def test_messages_that_rest_do_not_keep_others_from_coming(setting: Setting) -> None:
    ran: list[str | None] = []
    failed: set[str | None] = set()

    def handle(message: Message) -> None:
        if message.id and message.id.startswith("slow") and message.id not in failed:
            failed.add(message.id)
            raise Retry(after=0.2)
        ran.append(message.id)

    for n in range(20):
        setting.send(id=f"slow-{n}")
    setting.send(id="quick")
    setting.drain(handle, batch=5)
    assert ran[0] == "quick"
    assert len(ran) == 21


def test_at_most_concurrency_handlers_run_at_once_and_all_slots_are_used(setting: Setting) -> None:
    meeting = threading.Barrier(4, timeout=120)
    running, most = 0, 0
    lock = threading.Lock()

    def handle(message: Message) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        meeting.wait()
        with lock:
            running -= 1

    for _ in range(12):
        setting.send()
    report = setting.drain(handle, concurrency=4)
    assert (report.ran, most) == (12, 4)


def test_stop_finishes_what_runs_and_gives_back_the_rest(setting: Setting) -> None:
    source = setting.broker.source("orders")
    consumer = setting.consumer(source, concurrency=1)

    def handle(message: Message) -> None:
        consumer.stop()

    for _ in range(5):
        setting.send()
    report = consumer.run(handle)
    assert report.ran == 1
    assert setting.acknowledged() == ["m-1"]
    assert len(setting.broker.queues["orders"]) == 4
    assert not source.held


class Partitioned(MemorySource):
    """The header `part` names the partition of a message."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker, "orders")
        self.released: list[frozenset[str]] = []

    def fetch(self, most: int, seconds: float) -> list[Received]:
        found = super().fetch(most, seconds)
        return [Received(r.message, r.receipt, r.message.headers["part"]) for r in found]

    def listen(self, revoke: Any) -> None:
        self.revoke = revoke

    def release(self, partitions: frozenset[str]) -> None:
        self.released.append(partitions)


def test_a_revoked_partition_starts_nothing_more(setting: Setting) -> None:
    source = Partitioned(setting.broker)
    consumer = setting.consumer(source, concurrency=1)
    ran: list[str | None] = []

    def handle(message: Message) -> None:
        ran.append(message.id)
        if message.id == "a1":
            source.revoke(frozenset({"a"}))

    for id_ in ("a1", "a2", "b1"):
        setting.send(id=id_, headers={"part": id_[0]})
    consumer.drain(handle, idle=0.05)
    assert ran == ["a1", "b1"]
    assert source.released == [frozenset({"a"})]
    assert setting.acknowledged() == ["a1", "b1"]


def test_the_key_is_the_producers_id_in_the_consumers_scope(setting: Setting) -> None:
    keys: list[Any] = []
    setting.send(id="77")
    setting.drain(lambda message: keys.append(current_key()))
    assert (keys[0].value, keys[0].scope) == ("77", ("orders",))
    assert setting.receiver.record(keys[0]) is not None


def test_a_worker_that_died_leaves_a_suspect_that_runs_alone(setting: Setting) -> None:
    """Its claim expired while it ran. No other message runs beside it."""
    key = setting.receiver.options(scope=("orders",)).key("suspect")
    setting.receiver.store.perform(ClaimRequest(key, new_owner(), lease=0))
    running: set[str | None] = set()
    beside: list[set[str | None]] = []
    lock = threading.Lock()

    def handle(message: Message) -> None:
        with lock:
            running.add(message.id)
            if "suspect" in running:
                beside.append(set(running))
        with lock:
            running.discard(message.id)

    for id_ in ("m1", "suspect", "m2", "m3"):
        setting.send(id=id_)
    report = setting.drain(handle)
    assert report.ran == 4
    assert beside == [{"suspect"}]


def test_transaction_mode_commits_effect_and_record_together(tmp_path: Any) -> None:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE booked (id TEXT)")
    broker = MemoryBroker()
    dead: list[str | None] = []
    failed: set[str | None] = set()

    def handle(connection: sqlite3.Connection, message: Message) -> None:
        connection.execute("INSERT INTO booked VALUES (?)", (message.id,))
        if message.id == "bad":
            raise ValueError("no")
        if message.id not in failed:
            failed.add(message.id)
            raise ValueError("once")

    for id_ in ("a", "bad", "b", "a"):
        broker.send("orders", id=id_)
    with Inbox.open(f"sqlite:///{path}", policy=Policy(max_attempts=3)) as inbox:
        consumer = Consumer(
            broker.source("orders"),
            inbox=inbox,
            connect=lambda: sqlite3.connect(path),
            dead_letter=lambda message, error: dead.append(message.id),
            policy=QUICK.replace(max_attempts=3),
        )
        report = consumer.drain(handle, idle=0.1)
    with sqlite3.connect(path) as connection:
        booked = sorted(row[0] for row in connection.execute("SELECT id FROM booked"))
    assert booked == ["a", "b"]
    assert dead == ["bad"]
    assert (report.ran, report.replayed, report.dead) == (2, 1, 1)
    assert sorted(str(one.id) for one in broker.acknowledged) == ["a", "a", "b", "bad"]


async def test_the_async_consumer_does_the_same() -> None:
    broker = MemoryBroker()
    dead: list[str | None] = []
    attempts: Counter[str | None] = Counter()

    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        attempts[message.id] += 1
        if message.id == "bad":
            raise ValueError("no")

    async def keep_dead(message: Message, error: Exception) -> None:
        dead.append(message.id)

    for id_ in ("a", "bad", "b", "a"):
        broker.send("orders", id=id_)
    async with AsyncReceiver.open("memory://") as receiver:
        consumer = AsyncConsumer(
            broker.source("orders"),
            receiver=receiver,
            dead_letter=keep_dead,
            policy=QUICK.replace(max_attempts=3),
        )
        report = await consumer.drain(handle, idle=0.1)
    assert attempts == {"a": 1, "b": 1, "bad": 3}
    assert dead == ["bad"]
    assert (report.ran, report.replayed, report.dead, report.retried) == (2, 1, 1, 2)
    assert sorted(str(one.id) for one in broker.acknowledged) == ["a", "a", "b", "bad"]


def test_dead_letters_go_next_to_the_source_by_default(setting: Setting) -> None:
    setting.send(b'{"cents": 1}', id="a")

    def handle(message: Message) -> None:
        raise DeadLetter("no such customer")

    setting.drain(handle, dead_letter=None)
    (letter,) = setting.broker.queues["orders.dead"]
    assert (letter.id, letter.json()) == ("a", {"cents": 1})
    assert letter.headers["twicesafe-dead-reason"] == "no such customer"


def test_mistakes_are_named(setting: Setting) -> None:
    with pytest.raises(ConfigurationError, match="either receiver="):
        setting.consumer(receiver=None)
    with pytest.raises(ConfigurationError, match="order='sideways'"):
        setting.consumer(order="sideways")
    with pytest.raises(ConfigurationError, match="outage='run' is not for consumers"):
        setting.consumer(policy=Policy(outage="run"))
    with pytest.raises(UsageError, match=r"handle\(message\)"):
        setting.consumer().drain(lambda: None)

    async def handle(message: Message) -> None: ...

    with pytest.raises(UsageError):
        setting.consumer().drain(handle)


async def _async(*_: Any) -> Any: ...


def _generator(*_: Any) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("key", "order_id"),
        ("key", _async),
        ("recover", "retry"),
        ("recover", _async),
        ("recover", _generator),
        ("dead_letter", 3),
        ("dead_letter", _generator),
        ("policy", {"lease": 5}),
    ],
)
def test_a_setting_that_would_fail_for_every_message_is_refused(
    setting: Setting, name: str, wrong: Any
) -> None:
    """With key="order_id", every message would be a dead letter."""
    with pytest.raises(ConfigurationError, match=f"^{name}="):
        setting.consumer(**{name: wrong})


def test_a_position_that_is_used_again_is_another_message(setting: Setting) -> None:
    """A topic that was deleted and created again: its dead letters are new ones."""

    def refuse(message: Message) -> None:
        raise DeadLetter("no")

    for life in ("first", "second"):
        setting.broker = MemoryBroker()
        setting.broker.send("orders", life.encode(), id=life)
        assert setting.drain(refuse).dead == 1
    assert [id_ for id_, _ in setting.dead] == ["first", "second"]


async def _send_async(message: Message, error: Exception) -> None:
    raise AssertionError("never awaited")


def _send_in_steps(message: Message, error: Exception) -> Iterator[None]:
    raise AssertionError("never started")
    yield


@pytest.mark.parametrize(
    "send, what", [(_send_async, "is async"), (_send_in_steps, "is a generator")]
)
def test_a_dead_letter_function_that_does_not_run_is_refused_or_not_believed(
    setting: Setting, send: Any, what: str
) -> None:
    """What it returns has not run: the message must not be acknowledged."""
    with pytest.raises(ConfigurationError, match=f"dead_letter= {what}"):
        setting.consumer(dead_letter=send)

    setting.send()
    tries: list[str | None] = []

    def hand_over(message: Message, error: Exception) -> Any:
        tries.append(message.id)
        if len(tries) == 3:
            consumer.stop()
        return send(message, error)

    def refuse(message: Message) -> None:
        raise DeadLetter("no")

    with setting.consumer(dead_letter=hand_over) as consumer:
        report = consumer.run(refuse)
    assert tries == ["m-1"] * 3
    assert report.dead == 0
    assert setting.acknowledged() == []


@pytest.mark.parametrize("kind", ["function", "lambda", "object"])
async def test_a_dead_letter_function_is_awaited_however_it_is_written(kind: str) -> None:
    sent: list[str | None] = []

    async def send(message: Message, error: Exception) -> None:
        await asyncio.sleep(0)
        sent.append(message.id)

    class Sender:
        async def __call__(self, message: Message, error: Exception) -> None:
            await send(message, error)

    given: Any = {"function": send, "lambda": lambda m, e: send(m, e), "object": Sender()}[kind]  # noqa: PLW0108

    async def refuse(message: Message) -> None:
        raise DeadLetter("no")

    broker = MemoryBroker()
    broker.send("orders", b"{}", id="m-1")
    async with AsyncReceiver.open("memory://") as receiver:
        source = broker.source("orders")
        async with AsyncConsumer(source, receiver=receiver, dead_letter=given) as consumer:
            assert (await consumer.drain(refuse, idle=0.05)).dead == 1
    assert sent == ["m-1"]
    assert [one.id for one in broker.acknowledged] == ["m-1"]


async def test_one_signal_stops_every_consumer_of_the_process() -> None:
    before = signal.getsignal(signal.SIGTERM)
    started: set[str | None] = set()
    all_run = asyncio.Event()

    async def handle(message: Message) -> None:
        started.add(message.id)
        if len(started) == 3:
            all_run.set()

    async with AsyncReceiver.open("memory://") as receiver:
        brokers = [MemoryBroker() for _ in range(3)]
        consumers = [AsyncConsumer(one.source("orders"), receiver=receiver) for one in brokers]
        runs = [asyncio.create_task(one.run(handle)) for one in consumers]
        for number, broker in enumerate(brokers):
            broker.send("orders", b"{}", id=f"m-{number}")
        await asyncio.wait_for(all_run.wait(), 60)
        os.kill(os.getpid(), signal.SIGTERM)
        done, pending = await asyncio.wait(runs, timeout=120)
        for one in consumers:
            one.stop()
        assert (len(done), len(pending)) == (3, 0)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_consumer_can_be_closed_in_another_event_loop(setting: Setting) -> None:
    async def handle(message: Message) -> None: ...

    async def drained() -> AsyncConsumer:
        receiver = AsyncReceiver.open("memory://")
        consumer = AsyncConsumer(setting.broker.source("orders"), receiver=receiver)
        await consumer.drain(handle, idle=0.05)
        return consumer

    consumer = asyncio.run(drained())
    asyncio.run(consumer.close())


class Forming(MemorySource):
    """Kafka while a group forms: nothing comes, although there are messages."""

    joined = False

    def fetch(self, most: int, seconds: float) -> list[Received]:
        if not self.joined:
            threading.Timer(0.3, lambda: setattr(self, "joined", True)).start()
            threading.Event().wait(seconds)
            return []
        return list(super().fetch(most, seconds))


def test_drain_waits_until_the_broker_has_said_what_is_ours(setting: Setting) -> None:
    setting.send()
    with setting.consumer(Forming(setting.broker, "orders")) as consumer:
        assert consumer.drain(lambda message: None, idle=0.05).ran == 1


class Faltering(MemorySource):
    """It has nothing, then it does not answer, and then it has a message."""

    asked = 0
    error: BaseException = BrokerUnavailableError("a restart")

    def fetch(self, most: int, seconds: float) -> list[Received]:
        self.asked += 1
        if self.asked == 2:
            self.broker.send("orders", b"{}", id="meanwhile")
            raise self.error
        return [] if self.asked == 1 else list(super().fetch(most, seconds))


@pytest.mark.parametrize("error", [Faltering.error, SystemExit(), asyncio.CancelledError()])
def test_drain_waits_until_the_broker_is_back(setting: Setting, error: BaseException) -> None:
    """Or its driver: without an answer to a fetch, there would be no further one."""
    source = Faltering(setting.broker, "orders")
    source.error = error
    with setting.consumer(source) as consumer:
        assert consumer.drain(lambda message: None, idle=0.01).ran == 1


class FalteringOnLoop(OnLoop):
    def __init__(self, error: BaseException) -> None:
        super().__init__(MemoryBroker())
        self.inner = Faltering(self.broker, "orders")
        self.inner.error, self.held = error, self.inner.held

    async def fetch(self, most: int, seconds: float) -> list[Received]:  # type: ignore[override]
        return self.inner.fetch(most, 0)


@pytest.mark.parametrize("error", [Faltering.error, asyncio.CancelledError()])
async def test_an_async_drain_waits_too(error: BaseException) -> None:
    async with (
        AsyncReceiver.open("memory://") as receiver,
        AsyncConsumer(FalteringOnLoop(error), receiver=receiver) as consumer,
    ):
        handled: list[str | None] = []

        async def handle(message: Message) -> None:
            handled.append(message.id)

        await asyncio.wait_for(consumer.drain(handle, idle=0.05), 60)
    assert handled == ["meanwhile"]


def test_dead_letters_wait_for_it_too(setting: Setting) -> None:
    setting.send()
    with DeadLetters(Forming(setting.broker, "orders")) as dead:
        dead._adapted.joined = False
        assert len(dead.look()) == 1


class Impatient(MemorySource):
    """A broker that was away at the start: its ack-wait is known when it answers."""

    ack_wait = 3600.0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.extended = threading.Event()

    def fetch(self, most: int, seconds: float) -> list[Received]:
        self.ack_wait = 0.06
        return list(super().fetch(most, seconds))

    def extend(self, receipts: Any) -> None:
        self.extended.set()


def test_the_ack_wait_is_what_the_broker_says_now(setting: Setting) -> None:
    setting.send()
    source = Impatient(setting.broker, "orders")
    with setting.consumer(source) as consumer:
        report = consumer.drain(lambda message: source.extended.wait(60) or None, idle=0.05)
    assert report.ran == 1
    assert source.extended.is_set()


async def test_handlers_that_occupy_all_threads_do_not_keep_the_broker_waiting() -> None:
    """Those of `asyncio.to_thread`; a broker would deliver the messages elsewhere."""
    broker = MemoryBroker()
    source = Impatient(broker, "orders")
    broker.send("orders", b"{}", id="long")
    with ThreadPoolExecutor(1) as threads:
        asyncio.get_running_loop().set_default_executor(threads)

        async def handle(message: Message) -> None:
            assert await asyncio.to_thread(source.extended.wait, 60)

        async with (
            AsyncReceiver.open("memory://") as receiver,
            AsyncConsumer(source, receiver=receiver) as consumer,
        ):
            report = await consumer.drain(handle, idle=0.05)
    assert (report.ran, report.retried) == (1, 0)


class Alone:
    """A publisher for one caller at a time, as those of the outbox are."""

    batch, concurrency = 100, 1

    def __init__(self) -> None:
        self.inside, self.met, self.published = 0, False, 0
        self.other = threading.Event()

    def publish(self, messages: Any) -> list[None]:
        self.inside += 1
        if self.inside > 1:
            self.met = True
            self.other.set()
        self.other.wait(0.05)
        self.published += len(messages)
        self.inside -= 1
        return [None] * len(messages)

    def close(self) -> None: ...


def test_dead_letters_are_published_by_as_many_as_the_publisher_allows(setting: Setting) -> None:
    def refuse(message: Message) -> None:
        raise DeadLetter("no")

    for _ in range(8):
        setting.send()
    publisher = Alone()
    assert setting.drain(refuse, dead_letter=publisher, order="none").dead == 8
    assert (publisher.published, publisher.met) == (8, False)


def test_a_stop_before_the_start_is_not_lost(setting: Setting) -> None:
    setting.send()
    with setting.consumer() as consumer:
        consumer.stop()
        assert consumer.run(lambda message: None).ran == 0
        assert consumer.drain(lambda message: None, idle=0.05).ran == 1


class Connecting(MemorySource):
    """Its consumer is stopped while it connects."""

    stop: Callable[[], None]

    def check(self, terms: Any) -> list[Any]:
        self.stop()
        return []


def test_a_stop_while_it_connects_is_not_lost(setting: Setting) -> None:
    source = Connecting(setting.broker, "orders")
    with setting.consumer(source) as consumer:
        source.stop = consumer.stop
        assert consumer.run(lambda message: None).ran == 0


def test_a_message_whose_handler_still_runs_after_its_time_out_is_no_dead_letter(
    setting: Setting,
) -> None:
    """A thread cannot be stopped: it keeps its claim, and what it records is the answer."""
    go = threading.Event()

    def handle(message: Message) -> None:
        assert go.wait(60) if message.id == "slow" else go.set() is None

    for id_ in ("slow", "other"):
        setting.send(id=id_)
    policy = QUICK.replace(timeout=0.05, max_attempts=1)
    report = setting.drain(handle, concurrency=1, policy=policy)
    assert setting.dead == []
    assert report.ran + report.replayed == 2
    assert sorted(setting.acknowledged()) == ["other", "slow"]


async def _await_cancelled() -> None:
    shared = asyncio.get_running_loop().create_future()
    shared.cancel()
    await shared


async def _cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize("limit", [None, 60])
@pytest.mark.parametrize("cancel", [_await_cancelled, _cancel_itself])
async def test_a_handler_that_is_cancelled_from_inside_has_failed(
    cancel: Callable[[], Awaitable[None]], limit: float | None
) -> None:
    """It is one message's failure, and no reason for the consumer to end."""
    ran: list[str | None] = []
    dead: list[str] = []

    async def handle(message: Message) -> None:
        ran.append(message.id)
        if message.id == "bad":
            await cancel()

    broker = MemoryBroker()
    for id_ in ("bad", "good"):
        broker.send("orders", b"{}", id=id_)
    async with (
        AsyncReceiver.open("memory://") as receiver,
        AsyncConsumer(
            broker.source("orders"),
            receiver=receiver,
            policy=QUICK.replace(max_attempts=2, timeout=limit),
            dead_letter=lambda message, error: dead.append(str(error)),
        ) as consumer,
    ):
        report = await consumer.drain(handle, idle=0.05)
    assert (report.ran, report.retried, report.dead) == (1, 1, 1)
    assert sorted(map(str, ran)) == ["bad", "bad", "good"]
    assert "was cancelled" in dead[0]


def test_a_closed_consumer_is_refused(setting: Setting) -> None:
    consumer = setting.consumer()
    consumer.close()
    with pytest.raises(UsageError, match="this consumer is closed"):
        consumer.drain(print)


def test_a_cancellation_inside_a_blocking_handler_is_its_failure_too(setting: Setting) -> None:
    """For example, of what it runs by `asyncio.run`."""

    def handle(message: Message) -> None:
        if message.id == "bad":
            asyncio.run(_await_cancelled())

    for id_ in ("bad", "good"):
        setting.send(id=id_)
    report = setting.drain(handle, policy=QUICK.replace(max_attempts=2))
    assert (report.ran, report.retried, report.dead) == (1, 1, 1)


async def test_a_dead_letter_function_that_is_cancelled_from_inside_is_called_again() -> None:
    called: list[str | None] = []

    async def refuse(message: Message) -> None:
        raise DeadLetter("no address")

    async def dead_letter(message: Message, error: Exception) -> None:
        called.append(message.id)
        if len(called) == 1:
            await _await_cancelled()

    broker = MemoryBroker()
    broker.send("orders", b"{}", id="bad")
    async with (
        AsyncReceiver.open("memory://") as receiver,
        AsyncConsumer(
            broker.source("orders"), receiver=receiver, policy=QUICK, dead_letter=dead_letter
        ) as consumer,
    ):
        report = await consumer.drain(refuse, idle=0.05)
    assert (called, report.dead) == (["bad", "bad"], 1)


async def test_a_handler_that_has_ended_is_done_although_it_cancelled_itself() -> None:
    broker = MemoryBroker()
    broker.send("orders", b"{}", id="odd")

    async def handle(message: Message) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async with (
        AsyncReceiver.open("memory://") as receiver,
        AsyncConsumer(broker.source("orders"), receiver=receiver, policy=QUICK) as consumer,
    ):
        report = await consumer.drain(handle, idle=0.05)
    assert (report.ran, report.retried) == (1, 0)


@pytest.mark.parametrize("also", [False, True])
async def test_a_handler_that_takes_too_long_is_cancelled_by_the_time_out(also: bool) -> None:
    """``also``: it cancels its own task as well, when the time-out has come."""
    broker, dead = MemoryBroker(), []
    broker.send("orders", b"{}", id="slow")

    async def handle(message: Message) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            if also:
                await _cancel_itself()

    async with (
        AsyncReceiver.open("memory://") as receiver,
        AsyncConsumer(
            broker.source("orders"),
            receiver=receiver,
            policy=QUICK.replace(max_attempts=1, timeout=0.05),
            dead_letter=lambda message, error: dead.append(str(error)),
        ) as consumer,
    ):
        await consumer.drain(handle, idle=0.05)
    assert "TimeoutError" in dead[0]


def test_each_failure_to_publish_a_dead_letter_is_an_event() -> None:
    """Too large with its headers, or no such queue: an operator must hear of it, and why."""
    told: list[str] = []
    tries: list[str | None] = []

    def refuse(message: Message) -> None:
        raise DeadLetter("no")

    def full(message: Message, error: Exception) -> None:
        tries.append(message.id)
        if len(tries) < 3:
            raise OverflowError("larger than the broker allows")

    def hear(event: Any) -> None:
        if isinstance(event, BrokerFailed):
            told.append(event.error)

    with Receiver.open("memory://", observers=[hear]) as receiver:
        setting = Setting(receiver)
        setting.send()
        report = setting.drain(refuse, dead_letter=full)
    assert (report.dead, report.retried) == (1, 0)
    assert told == ["dead letter: OverflowError"] * 2


@pytest.mark.parametrize("idle", [0, -1, "0s"])
async def test_an_idle_time_in_which_no_broker_could_send_is_refused(
    setting: Setting, idle: Any
) -> None:
    with pytest.raises(ConfigurationError, match="idle"):
        setting.consumer().drain(print, idle=idle)
    async with AsyncReceiver.open("memory://") as other:
        consumer = AsyncConsumer(MemoryBroker().source("orders"), receiver=other)
        with pytest.raises(ConfigurationError, match="idle"):
            await consumer.drain(asyncio.sleep, idle=idle)


@pytest.mark.parametrize("value", [object(), "x" * 300_000], ids=["not storable", "too large"])
def test_a_repeat_of_work_whose_result_was_not_kept_did_not_run(
    setting: Setting, value: object
) -> None:
    ran: list[str | None] = []

    def handle(message: Message) -> object:
        ran.append(message.id)
        return value

    counted = []
    for _ in range(2):
        setting.broker.send("orders", b"{}", id="a")
        report = setting.drain(handle)
        counted.append((report.ran, report.replayed))
    assert ran == ["a"]
    assert counted == [(1, 0), (0, 1)]


def test_the_dead_letter_of_a_message_that_a_late_worker_completed_does_not_run_it_again() -> None:
    """Its lease expired while it ran, and another worker gave up on the message."""
    broker, now, ran = MemoryBroker(), [1_000_000], []
    broker.send("orders", b"{}", id="m-1")
    with Receiver(MemoryStore(now=lambda: now[0]), policy=Policy(max_attempts=1)) as receiver:

        def drained(handler: Any) -> Report:
            # One at a time: the worker that is late does not fetch the copy.
            with Consumer(broker.source("orders"), receiver=receiver, batch=1) as consumer:
                return consumer.drain(handler, idle=0.05)

        def late(message: Message) -> None:
            ran.append(message.id)
            if len(ran) == 1:
                now[0] += 60_000
                broker.send("orders", b"{}", id="m-1")
                assert drained(late).dead == 1
                claim = current_claim()
                assert claim is not None
                claim.gone = True  # as its lease keeper notices, sooner or later

        assert drained(late).ran == 1
        with DeadLetters(broker.source("orders.dead")) as dead:
            assert dead.replay(receiver, by="ann", why="again").replayed == 1
        report = drained(late)
    assert (report.ran, report.replayed, ran) == (0, 1, ["m-1"])
