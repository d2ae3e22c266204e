"""A broker in memory: try a consumer and its handler without a server.

    broker = MemoryBroker()
    broker.send("orders", {"cents": 500}, id="o-1", key="ann")
    with Consumer(broker.source("orders"), receiver=receiver) as consumer:
        consumer.drain(handle, idle=0.05)
    broker.bodies("orders.dead")

It redelivers what is not acknowledged: when a consumer gives it back, and when its source is closed.
A `MemoryBroker` is also a publisher: an outbox relay can publish to it.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .._core.consuming.message import Message, Received
from .._core.consuming.source import ConsumerSettings, Revoke, SourceProblem, SourceStatus
from .._core.outbox.requests import Message as Outgoing

__all__ = ["MemoryBroker", "MemorySource"]


class MemoryBroker:
    """Topics of messages, for the threads and tasks of one process."""

    batch = 100
    concurrency = 1

    def __init__(self) -> None:
        self.queues: dict[str, deque[Message]] = defaultdict(deque)
        self.acknowledged: list[Message] = []
        self._changed = threading.Condition()
        self._sent = 0

    def send(
        self,
        topic: str,
        body: object = b"{}",
        *,
        id: str | None = None,  # noqa: A002 - the message's own name for it
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a message; a body that is not bytes becomes JSON."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        with self._changed:
            self._sent += 1
            place = f"{topic}/{self._sent}"
            message = Message(id, topic, data, key, dict(headers or {}), 1, place)
            self.queues[topic].append(message)
            self._changed.notify_all()

    def bodies(self, topic: str) -> list[Any]:
        """The JSON bodies of the messages that wait in a topic, the oldest first."""
        return [message.json() for message in self.queues[topic]]

    def source(self, topic: str) -> MemorySource:
        """What a consumer of this topic reads from."""
        return MemorySource(self, topic)

    def publish(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        for one in messages:
            self.send(one.topic, one.body, id=one.id, key=one.key, headers=one.headers)
        return [None for _ in messages]

    def close(self) -> None:
        """Nothing to close."""

    # -- for its sources ------------------------------------------------------------------------

    def take(self, topic: str, most: int, seconds: float) -> list[Message]:
        with self._changed:
            queue = self.queues[topic]
            self._changed.wait_for(lambda: bool(queue), seconds)
            return [queue.popleft() for _ in range(min(most, len(queue)))]

    def put_back(self, topic: str, messages: Sequence[Message]) -> None:
        with self._changed:
            again = [
                msgspec.structs.replace(m, deliveries=(m.deliveries or 0) + 1) for m in messages
            ]
            self.queues[topic].extendleft(reversed(again))
            self._changed.notify_all()


class MemorySource:
    """Blocking. Closing it is what the death of a consumer is to a real broker."""

    ack_wait = 0.0
    can_delay = False
    most_held = 10_000
    place = ""

    def __init__(self, broker: MemoryBroker, topic: str) -> None:
        self.broker, self.name = broker, topic
        self.dead_url = broker
        self.held: dict[int, Message] = {}
        self._receipts = 0

    def fetch(self, most: int, seconds: float) -> list[Received]:
        found = []
        for message in self.broker.take(self.name, most, seconds):
            self._receipts += 1
            self.held[self._receipts] = message
            found.append(Received(message, self._receipts))
        return found

    def acknowledge(self, receipts: Sequence[int]) -> None:
        self.broker.acknowledged += [self.held.pop(receipt) for receipt in receipts]

    def give_back(self, receipts: Sequence[int], seconds: float) -> None:
        self.broker.put_back(self.name, [self.held.pop(receipt) for receipt in receipts])

    def extend(self, receipts: Sequence[int]) -> None:
        """Nothing expires here."""

    def listen(self, revoke: Revoke | None) -> None:
        """Nothing is revoked here."""

    def release(self, partitions: frozenset[str]) -> None:
        """Nothing is revoked here."""

    def check(self, consumer: ConsumerSettings) -> list[SourceProblem]:
        return []

    def status(self) -> SourceStatus:
        return SourceStatus(len(self.broker.queues[self.name]))

    def scope(self, topic: str) -> tuple[str, ...]:
        return (self.name,)

    def origin(self, topic: str) -> str:
        return topic

    def replay_url(self, place: str) -> MemoryBroker:
        return self.broker

    def dead_topic(self, topic: str) -> str:
        return f"{topic}.dead"

    def prepare_dead_letters(self) -> None:
        """A topic exists once it has a message."""

    def close(self) -> None:
        held, self.held = list(self.held.values()), {}
        self.broker.put_back(self.name, held)
