"""Dead letters: the message as it was, with headers that say why it is here.

It keeps its id, so a replay runs under the same key. The headers:

    twicesafe-dead-reason     what happened
    twicesafe-dead-error      the class of the error
    twicesafe-dead-topic      where a replay sends it: the topic, the subject, the queue,
    twicesafe-dead-place      …and, for Redis, the stream; both as JSON if a line would change them
    twicesafe-dead-broker     the kind of broker that it came from
    twicesafe-dead-position   its position there
    twicesafe-dead-consumer   who gave up on it
    twicesafe-dead-key        its full key: a JSON list of the scope's parts and the value
    twicesafe-dead-lane       the key that parks its lane, if order matters
    twicesafe-dead-starts     the key that counts its starts, in transaction mode

If the message is a dead letter already, of a consumer whose dead letters this one consumes, its
headers of this kind get the prefix `twicesafe-dead-` a second time.

The headers make it larger than the message was. If the broker refuses it, a *brief* one follows,
with only the headers that a replay needs and the beginning of the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit

from .._core.consuming.message import KEY_HEADER, Message
from .._core.consuming.source import Source
from .._core.http.key_field import field_of
from .._core.outbox.publisher import NOT_TRIED, Answer, NotNow, Publisher
from .._core.outbox.requests import Message as Outgoing
from .._values.keys import Key, uuid7
from ..errors import BrokerUnavailableError, text_of
from ..outbox.publishers import open_publisher

__all__ = [
    "PREFIX",
    "DeadLetterSetting",
    "broker_of",
    "dead_message",
    "destination",
    "is_refused",
]

PREFIX: Final = "twicesafe-dead-"

LONGEST: Final = 3000
"""Characters of a header: more than a key needs, with every character escaped."""

BRIEF: Final = 80
"""Characters of the reason in a brief dead letter."""

_OPTIONAL: Final = ("error", "position", "consumer")
"""Headers that a brief dead letter does without: a replay does not read them."""

DeadLetterSetting: TypeAlias = str | Publisher | Callable[[Message, Exception], Any] | None
"""A publisher or its URL (``topic=`` names the topic), or a function of the message and its error."""


def destination(url: str | Publisher) -> tuple[Publisher, str | None]:
    """The publisher at this URL, and the topic that it names."""
    if not isinstance(url, str):
        return url, None
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    topics = [value for name, value in pairs if name == "topic"]
    rest = urlencode([(name, value) for name, value in pairs if name != "topic"])
    plain = f"{parts.scheme}://{parts.netloc}{parts.path}{'?' * bool(rest)}{rest}"
    return open_publisher(plain), topics[-1] if topics else None


def dead_message(
    message: Message,
    error: Exception,
    topic: str,
    *,
    key: Key | None,
    lane: Key | None,
    starts: Key | None,
    consumer: str,
    origin: str,
    place: str,
    broker: str,
    brief: bool,
) -> Outgoing:
    """The message to publish under this topic."""
    cause = error.__cause__
    given = {
        "reason": text_of(error),
        "error": type(error if cause is None else cause).__qualname__,
        "topic": _name(origin),
        "place": _name(place),
        "broker": broker,
        "position": message.position,
        "consumer": consumer,
        "key": _parts(key),
        "lane": _parts(lane),
        "starts": _parts(starts),
    }
    if brief:
        given["reason"] = given["reason"][:BRIEF]
        given |= dict.fromkeys(_OPTIONAL, "")
    headers = _kept_headers(message, given)
    headers.update({PREFIX + name: _line(text) for name, text in given.items() if text})
    id_ = message.id
    if id_ is None and key is not None:  # it has a key even without an id, and keeps it
        id_ = key.value
        headers.setdefault(KEY_HEADER, field_of(id_))
    return Outgoing(id_ or uuid7(), topic, message.body, message.key, headers)


def _kept_headers(message: Message, given: dict[str, str]) -> dict[str, str]:
    """The message's own. If it is a dead letter itself, those that make it one get the prefix a
    second time, and a replay takes that off again; unless it has died here before, and came back by
    other means than a replay."""
    before = [message.headers.get(PREFIX + name, "") for name in ("topic", "place")]
    is_back = before == [given["topic"], given["place"]]
    return {
        PREFIX + name if name.startswith(PREFIX) else name: value
        for name, value in message.headers.items()
        if not (is_back and name.startswith(PREFIX))
    }


def broker_of(source: Source) -> str:
    """The kind of broker, if the source names it. From another kind of broker, a letter cannot be sent back to it."""
    named = getattr(source, "broker", "")
    return named if isinstance(named, str) else ""


def is_refused(answer: Answer) -> bool:
    """Whether the broker refuses this message for good, and not just now."""
    waits = (BrokerUnavailableError, NotNow, type(NOT_TRIED))
    return answer is not None and not isinstance(answer, waits)


def _parts(key: Key | None) -> str:
    """The key as JSON, in ASCII."""
    return "" if key is None else json.dumps([*key.scope, key.value])


def _name(text: str) -> str:
    """A replay needs exactly this text, so a text that a header line would change is JSON."""
    return json.dumps(text) if _line(text) != text or text.startswith('"') else text


def _line(text: str) -> str:
    """As one header line: any text that a terminal would show."""
    return "".join(c if c.isprintable() else " " for c in text).strip()[:LONGEST]
