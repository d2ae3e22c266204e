"""One dead letter, as operators see it, and the conditions that choose letters for an action."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from .._core.consuming.message import Message
from .._core.outbox.requests import Message as Outgoing
from .._values.keys import Key
from ..errors import UsageError
from ._dead_letters import PREFIX

__all__ = ["Chosen", "Letter", "LetterFilter", "letter_of", "revived"]


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
    broker: str = ""
    """The kind of broker that it came from; empty: it does not say."""

    @property
    def id(self) -> str:
        return self.message.id or self.message.position

    @property
    def digits(self) -> str:
        """16 hex digits that stand for the id where the id must not be shown."""
        return hashlib.sha256(self.id.encode("utf-8", "surrogatepass")).hexdigest()[:16]


Chosen: TypeAlias = Callable[[Letter], bool]


class LetterFilter(msgspec.Struct, frozen=True):
    """Chooses the letters that meet all given conditions. Call it with a letter."""

    ids: tuple[str, ...] = ()
    """One of these ids, or of these `Letter.digits`."""
    reason: str | None = None
    """The reason contains this."""
    topic: str | None = None
    """It came from here."""

    def __call__(self, letter: Letter) -> bool:
        return (
            (not self.ids or letter.id in self.ids or letter.digits in self.ids)
            and (self.reason is None or self.reason in letter.reason)
            and (self.topic is None or self.topic == letter.topic)
        )

    def missing(self, found: Iterable[Letter]) -> list[str]:
        """The ids that none of these letters has."""
        known = {name for letter in found for name in (letter.id, letter.digits)}
        return [id_ for id_ in self.ids if id_ not in known]


def letter_of(message: Message) -> Letter:
    given = {
        name.removeprefix(PREFIX): value
        for name, value in message.headers.items()
        if name.startswith(PREFIX)
    }
    return Letter(
        message,
        given.get("reason", ""),
        given.get("error", ""),
        _name(given.get("topic", message.topic)),
        _name(given.get("place", "")),
        given.get("consumer", ""),
        _key(given.get("key")),
        _key(given.get("lane")),
        _key(given.get("starts")),
        given.get("broker", ""),
    )


def _name(text: str) -> str:
    with contextlib.suppress(ValueError):  # most are not JSON: they stand as they are
        return msgspec.json.decode(text, type=str)
    return text


def _key(text: str | None) -> Key | None:
    if text is None:
        return None
    try:
        *scope, value = msgspec.json.decode(text, type=list[str])
        return Key(value, scope, absolute=True)
    except ValueError as error:
        raise UsageError("a key in the headers of a dead letter cannot be read") from error


def revived(letter: Letter) -> Outgoing:
    message = letter.message
    headers = {
        name.removeprefix(PREFIX): value
        for name, value in message.headers.items()
        if not name.startswith(PREFIX) or name.startswith(2 * PREFIX)
    }
    return Outgoing(letter.id, letter.topic, message.body, message.key, headers)
