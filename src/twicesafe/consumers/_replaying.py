"""Operating the dead letters: look at them, replay them under their old keys, or discard them.

    with DeadLetters.open("kafka://127.0.0.1:9092?topics=orders.dead&group=operators") as dead:
        for letter in dead.look():
            print(letter.id, letter.reason)
        dead.replay(receiver, by="ann", why="the customer exists now", chosen=lambda one: …)

A replay releases the key of the message, which is parked, publishes the message where it came from,
and then removes the dead letter. If the process dies in between, the message is published again under
the same id, and its key makes it run once. Looking changes nothing: what was fetched is given back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self

import msgspec

from .._core.consuming.message import Message, Received
from .._core.consuming.source import Source
from .._core.outbox_requests import Message as Outgoing
from .._runtime.adapting import for_threads
from .._values.keys import Key
from .._values.records import State
from ..errors import UsageError
from ..receiver import Receiver
from ._base import opened
from ._dead_letters import PREFIX, destination

__all__ = ["DeadLetters", "Letter", "Replayed"]

PAGE: Final = 500
QUIET: Final = 1.0
"""Seconds without a message after which all of them have been seen."""

Chosen = Callable[["Letter"], bool]


class Letter(msgspec.Struct, frozen=True):
    """One dead letter."""

    message: Message
    reason: str
    error: str
    """The class of the error."""
    topic: str
    """Where a replay sends it…"""
    place: str
    """…and what else it takes to find it: the stream, for Redis."""
    consumer: str
    key: Key | None
    """The key that its next delivery has; None: it has no usable key."""

    lane: Key | None = None
    """What keeps later messages of its ordering key behind it."""
    starts: Key | None = None
    """What counts its starts, if its consumer is in transaction mode."""

    @property
    def id(self) -> str:
        return self.message.id or self.message.position


class Replayed(msgspec.Struct):
    """What a replay did."""

    replayed: int = 0
    held: list[str] = []
    """Letters that were left, because the outcome of their key is unknown: resolve it first."""


class DeadLetters:
    """The dead letters at a source. Blocking."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._adapted = for_threads(source, "fetch")

    @classmethod
    def open(cls, url: str) -> Self:
        """The dead letters at this URL: that of a consumer, with the dead topic, stream or queue."""
        source: Any = opened(url, cls.__name__)
        if hasattr(source, "hold_many"):
            source.hold_many()
        return cls(source)

    def look(self, limit: int = 1000) -> list[Letter]:
        """The oldest dead letters, as many as the source may hold at a time. They stay where they are."""
        with self._holding() as held:
            self._fetch(held, limit)
            return [_letter(one.message) for one in held]

    def replay(
        self,
        receiver: Receiver,
        *,
        by: str,
        why: str,
        chosen: Chosen | None = None,
        to: str | None = None,
        limit: int = 1_000_000,
    ) -> Replayed:
        """Send letters back to where they came from, in their order; ``chosen`` says which.

        ``receiver``: opened on the store of the consumer that gave up on them. ``to``: the publisher,
        if it is not the broker that the letters are on.
        """
        done = Replayed()
        publishers: dict[object, Any] = {}
        replayed: set[str] = set()
        """On earlier pages. What comes again has died again, and stays."""
        try:
            with self._holding() as held:
                for page in self._pages(held, limit):
                    ids: set[str] = set()
                    for one in page:
                        letter = _letter(one.message)
                        left = letter.id in replayed or (chosen is not None and not chosen(letter))
                        if left:
                            continue
                        if not self._release(receiver, letter, by, why):
                            done.held.append(letter.id)
                            continue
                        url = to or self.source.replay_url(letter.place)
                        if url not in publishers:
                            publishers[url] = for_threads(destination(url)[0], "publish")
                        refusal = publishers[url].publish([_revived(letter)])[0]
                        if refusal is not None:
                            raise refusal
                        self._adapted.acknowledge([one.receipt])
                        held.remove(one)
                        ids.add(letter.id)
                        done.replayed += 1
                    replayed |= ids
        finally:
            for publisher in publishers.values():
                publisher.close()
        return done

    def discard(self, *, chosen: Chosen, limit: int = 1_000_000) -> int:
        """Remove the chosen letters for good; their keys stay parked, so a repeat does not run."""
        count = 0
        with self._holding() as held:
            for page in self._pages(held, limit):
                gone = [one for one in page if chosen(_letter(one.message))]
                if gone:
                    self._adapted.acknowledge([one.receipt for one in gone])
                for one in gone:
                    held.remove(one)
                count += len(gone)
        return count

    def close(self) -> None:
        """Close the connection to the broker."""
        self._adapted.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _holding(self) -> Iterator[list[Received]]:
        """A list for letters; what is in it at the end is given back."""
        held: list[Received] = []
        try:
            yield held
        finally:
            if held:
                self._adapted.give_back([one.receipt for one in held], 0.0)

    def _pages(self, held: list[Received], limit: int) -> Iterator[list[Received]]:
        """All letters, up to the limit. A broker may not let us hold all of them at a time: then the
        next page comes when the caller has settled some, and removed them from `held`."""
        seen = 0
        while seen < limit:
            start = len(held)
            self._fetch(held, start + limit - seen)
            page, full = held[start:], len(held) >= self.source.most_held
            seen += len(page)
            yield page
            if not full or len(held) == start + len(page):
                return

    def _fetch(self, held: list[Received], limit: int) -> None:
        """Add letters until ``limit`` are held, or as many as the source allows, or all that there are."""
        while (room := min(limit, self.source.most_held) - len(held)) > 0:
            joined = getattr(self.source, "joined", True)
            some: Sequence[Received] = self._adapted.fetch(min(PAGE, room), QUIET)
            if not some and joined:
                return
            held.extend(some)

    def _release(self, receiver: Receiver, letter: Letter, by: str, why: str) -> bool:
        """Let the key's next delivery run. False: its outcome is unknown, so it must not run yet."""
        found = [key for key in (letter.key, letter.starts, letter.lane) if key is not None]
        records = [receiver.record(key) for key in found]
        if any(record is not None and record.state is State.HELD for record in records):
            return False
        for key, record in zip(found, records, strict=True):
            if record is not None and record.state is State.PARKED:
                receiver.release(key, by=by, why=why)
        return True


def _letter(message: Message) -> Letter:
    given = {
        name.removeprefix(PREFIX): value
        for name, value in message.headers.items()
        if name.startswith(PREFIX)
    }
    return Letter(
        message,
        given.get("reason", ""),
        given.get("error", ""),
        given.get("topic", message.topic),
        given.get("place", ""),
        given.get("consumer", ""),
        _key(given.get("key")),
        _key(given.get("lane")),
        _key(given.get("starts")),
    )


def _key(text: str | None) -> Key | None:
    if text is None:
        return None
    try:
        *scope, value = msgspec.json.decode(text, type=list[str])
        return Key(value, scope, absolute=True)
    except ValueError as error:
        raise UsageError("a key in the headers of a dead letter cannot be read") from error


def _revived(letter: Letter) -> Outgoing:
    message = letter.message
    headers = {n: v for n, v in message.headers.items() if not n.startswith(PREFIX)}
    return Outgoing(letter.id, letter.topic, message.body, message.key, headers)
