"""The source interface: a source brings a broker's messages and settles them.

A source is an object whose methods are all blocking or all async; both consumers accept both. It
decides nothing. Which message is run, retried, dead-lettered or acknowledged, and in which order, is
decided by `flow`.

- `fetch` waits up to `seconds` for messages and returns at most `most` of them, or none. It may run
  at the same time as one call of another method; two other methods never run at the same time.
- `joined`, if a source has it: False while the broker has not said which messages are this consumer's
  (Kafka, while a group forms). A fetch that returns none then does not mean that there are none.
- `acknowledge` tells the broker that these messages are done. It is called after the record is
  durable. It must not return before the broker has accepted it, where the broker says so. Where only
  a prefix can be committed (Kafka), the source keeps the rest until the gap is closed (`prefix`).
- `give_back` makes messages available again, after `seconds` if the source `can_delay`. A source that
  cannot delay is called with 0 only.
- `extend` keeps messages from being redelivered for another `ack_wait` seconds.
- `revoke`: a source whose broker takes partitions away calls the function that it got by `listen`,
  with the names of the partitions. A running fetch then returns no more of their messages, and the
  flow starts no more of them. What the fetch has taken before is given back: the source drops it,
  or fetches it again if the partition is ours again. When the last of them has ended, the flow
  calls `release` with the same names, once. A source may wait for that, but not longer than its
  broker allows. When a run has ended, `listen` gets None: no flow will call `release`, and a source
  that waits for it stops waiting.
- Dead letters go through a publisher of the outbox: by default to `dead_url`, under `dead_topic`.
  `prepare_dead_letters` is called before the first one.
- `check` compares the broker's settings with the consumer's (`ConsumerSettings`) and returns what will go wrong.
- `status`, if a source has it, asks the broker how far behind the consumer is and who takes part. It
  neither takes part itself nor takes a message; it creates nothing.
- A source that `publishes` (Kafka with a transactional id) keeps what a handler publishes until its
  message is acknowledged, and commits both together (`PublishingSource`).
- What a driver raises when its broker is away becomes `BrokerUnavailableError`. The flow then backs
  off and asks again: a source replaces its connection by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from ..outbox.publisher import Publisher
from ..outbox.requests import Message as Outgoing
from .message import Message, Received

__all__ = [
    "ConsumerSettings",
    "DeadLetterOf",
    "Member",
    "Publication",
    "PublishingSource",
    "Revoke",
    "Source",
    "SourceProblem",
    "SourceStatus",
]

Revoke: TypeAlias = Callable[[frozenset[str]], None]
"""Called by a source, in any thread: these partitions are being taken away."""


class ConsumerSettings(msgspec.Struct, frozen=True):
    """The settings of a consumer that `Source.check` compares with the broker's. Durations are seconds."""

    lease: float
    retention: float
    max_attempts: int
    longest_backoff: float
    """The longest delay between two attempts."""
    concurrency: int
    batch: int
    ordered: bool
    """``order="key"``"""
    timeout: float | None = None
    """The longest run of a handler; None: not limited."""


class SourceProblem(msgspec.Struct, frozen=True):
    """One result of `Source.check`: what will go wrong, and which setting to change."""

    problem: str
    remedy: str


class Member(msgspec.Struct, frozen=True):
    """One process that consumes, as its broker knows it."""

    name: str
    idle: float | None = None
    """Seconds since the broker heard from it; None: the broker does not say."""
    unsettled: int | None = None
    """Messages that it has and did not acknowledge; None: the broker does not say."""


class SourceStatus(msgspec.Struct, frozen=True):
    """How far behind a consumer is, as its broker knows it. None: the broker does not say."""

    waiting: int | None
    """Messages that were not delivered to it yet."""
    unsettled: int | None = None
    """Messages that were delivered and not acknowledged."""
    count: int | None = None
    """Processes that take part."""
    members: tuple[Member, ...] = ()
    """Those that the broker names."""
    active: float | None = None
    """Seconds since the last delivery."""


class Source(Protocol):
    """Where messages come from."""

    name: str
    """Who consumes: the group, the queue, the durable."""
    ack_wait: float
    """Seconds after which the broker redelivers what is neither settled nor extended; 0: never."""
    can_delay: bool
    """`give_back` can hide a message for a while."""
    most_held: int
    """How many messages may be fetched and not settled at the same time."""

    def fetch(
        self, most: int, seconds: float
    ) -> Sequence[Received] | Awaitable[Sequence[Received]]: ...

    def acknowledge(self, receipts: Sequence[Any]) -> Awaitable[None] | None: ...

    def give_back(self, receipts: Sequence[Any], seconds: float) -> Awaitable[None] | None: ...

    def extend(self, receipts: Sequence[Any]) -> Awaitable[None] | None: ...

    def listen(self, revoke: Revoke | None) -> None: ...

    def release(self, partitions: frozenset[str]) -> Awaitable[None] | None: ...

    def check(
        self, consumer: ConsumerSettings
    ) -> Sequence[SourceProblem] | Awaitable[Sequence[SourceProblem]]: ...

    @property
    def dead_url(self) -> str | Publisher:
        """Where dead letters go by default: a publisher of the outbox, or its URL."""
        ...

    def dead_topic(self, topic: str) -> str:
        """The topic, at `dead_url`, for dead messages of this topic."""
        ...

    def scope(self, topic: str) -> tuple[str, ...]:
        """What the keys of messages of this topic begin with: who consumes, and the place in which
        a producer's ids are unique. Never changes, not by a redelivery and not by a replay."""
        ...

    def origin(self, topic: str) -> str:
        """The topic under which a message is sent back to this source, at `replay_url`."""
        ...

    @property
    def place(self) -> str:
        """What `replay_url` needs besides the topic, to find this source again; most need nothing."""
        ...

    def replay_url(self, place: str) -> str | Publisher:
        """The publisher, or its URL, that sends messages back to the source that is at this place."""
        ...

    def prepare_dead_letters(self) -> Awaitable[None] | None:
        """Create the default destination of dead letters, if it does not exist."""
        ...

    def close(self) -> Awaitable[None] | None: ...


DeadLetterOf: TypeAlias = Callable[[Exception, bool], Outgoing]
"""Of the error, and whether it must be brief."""


class Publication(msgspec.Struct):
    """What is published for one delivery, in the transaction that commits its acknowledgement."""

    message: Message
    """The delivery, by its identity as an object: a redelivery is another one."""
    messages: list[Outgoing]
    dead: DeadLetterOf
    """The dead letter that is published instead, if the broker refuses one of the messages; the brief one,
    if it refuses the dead letter."""
    identity: bytes | None = None
    """The id to log as processed; None: nothing was processed, it is a dead letter."""
    fingerprint: bytes = b""
    is_brief: bool = False
    """Its dead letter is the brief one already."""


class PublishingSource(Source, Protocol):
    """A source that commits what handlers publish together with the acknowledgement. Its extra
    methods never wait; any thread may call them."""

    publishes: bool
    """Whether this one was opened for it."""

    def begin(self, message: Message, identity: bytes) -> bytes | None:
        """Before a handler starts. Not None: the id was processed, with this fingerprint; do not run.
        `StillInProgressError`: another delivery of the id runs."""
        ...

    def fail(self, message: Message, identity: bytes) -> None:
        """The handler failed: nothing is kept."""
        ...

    def keep(self, publication: Publication) -> None:
        """The handler is done: `acknowledge` of this delivery commits it."""
        ...
