"""A message from a broker, and the key that its deliveries share.

The id that decides is the one that the *producer* gave: a redelivery and a producer's retry then
have the same key. In this order:

    key=                            what you say
    idempotency-key                 a header; our outbox and our clients send it
    ce-source and ce-id             CloudEvents, in headers (`ce_…` on Kafka, `ce-…` elsewhere)
    the broker's own id             `message_id`, `Nats-Msg-Id`, the deduplication id of a FIFO queue
    the position                    the last resort: partition and offset, for example

A position is the same for every redelivery. It differs when a producer sends the same work again.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from ..._values.keys import MAX_KEY_BYTES, Key
from ...errors import InvalidKeyError, MissingKeyError
from ..http.key_field import BadKey, parse_key

__all__ = ["KEY_HEADER", "Message", "Received", "body_of", "key_of", "lane_of"]

KEY_HEADER: Final = "idempotency-key"

_CLOUD_EVENTS: Final = tuple(
    (mark + "id", mark + "source") for mark in ("ce-", "ce_", "cloudevents:", "cloudevents_")
)


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message as its handler gets it."""

    id: str | None
    """The id that its producer or its broker gave it; None: it has none."""
    topic: str
    body: bytes
    key: str | None = None
    """The ordering key; None: no order relative to other messages."""
    headers: dict[str, str] = {}
    """With lower-case names."""
    deliveries: int | None = None
    """How often the broker has delivered it, this time included; None: the broker does not count."""
    position: str = ""
    """Where the broker keeps it: the same on every redelivery."""

    def json(self) -> Any:
        """The body, decoded from JSON; `ValueError` if it is not JSON."""
        return msgspec.json.decode(self.body)


class Received(msgspec.Struct, gc=False):
    """A message with what its source needs to settle it."""

    message: Message
    receipt: Any
    """The source's own handle: what it acknowledges, gives back or extends."""
    partition: str = ""
    """The part of the source that may be taken from this consumer, if the broker has such parts."""


def key_of(message: Message) -> Key | str:
    """The key of a message whose consumer has no ``key=``. Most are texts: as a Key, each would be
    hashed here and again with its scope."""
    headers = message.headers
    if headers:
        if KEY_HEADER in headers:
            try:
                return parse_key([headers[KEY_HEADER].encode()], most=MAX_KEY_BYTES)
            except BadKey as bad:
                raise InvalidKeyError(
                    f"the producer's {KEY_HEADER} is not valid: {bad}; the producer must correct it"
                ) from None
        source, id_ = _cloud_event(headers)
        if source and id_:
            return Key.natural(source, id_, scope=("cloudevent",))
    if message.id:
        return _fitting(message.id)
    if message.position:
        return _fitting(f"position:{message.position}")
    raise MissingKeyError(
        f"the message has no id and no position; the producer must send the header {KEY_HEADER}, or you "
        "pass key=…, a function that makes a key from the message"
    )


def _cloud_event(headers: dict[str, str]) -> tuple[str, str]:
    for id_, source in _CLOUD_EVENTS:
        if id_ in headers:
            return headers.get(source, ""), headers[id_]
    return "", ""


def body_of(*arguments: Any) -> bytes:
    """The fingerprint of a message, the last argument: of its body only, because a retry or a replay
    may have other headers."""
    return hashlib.sha256(arguments[-1].body).digest()


def lane_of(message: Message) -> str:
    """The name of the lane of an ordering key: keys of two topics have no order between them."""
    return _fitting(f"{message.topic}/{message.key}")


def _fitting(text: str) -> str:
    """A long text is hashed: producers may use ids that are longer than a key."""
    if (
        len(text) <= MAX_KEY_BYTES // 4
        or len(text.encode("utf-8", "surrogatepass")) <= MAX_KEY_BYTES
    ):
        return text
    return Key.natural(text).value
