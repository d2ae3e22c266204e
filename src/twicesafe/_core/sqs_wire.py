"""How a message looks in SQS: text, and at most ten attributes.

body                the message's, if it is text that SQS allows; else base64
id                  the message's id
twicesafe-key       the ordering key
twicesafe-topic     the topic, if the queue takes several
twicesafe-body      ``base64`` or ``empty``, if the body is not the text itself
twicesafe-headers   JSON: the headers for which there was no room, or which SQS does not allow
any other           a header
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from .outbox.requests import Message

__all__ = ["OURS", "body_of", "deduplication_id", "entry_of", "headers_of", "size_of"]

MOST_ATTRIBUTES: Final = 10

ID, KEY, TOPIC, BODY, HEADERS = (
    "id",
    "twicesafe-key",
    "twicesafe-topic",
    "twicesafe-body",
    "twicesafe-headers",
)
OURS: Final = frozenset({KEY, TOPIC, BODY, HEADERS})
"""Attributes that are not headers. (`ID` is one, too, as on every broker.)"""

_FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAME: Final = re.compile(
    r"(?!aws\.|amazon\.|\.)(?!.*\.\.)[a-z0-9_.-]{1,256}(?<!\.)", re.ASCII | re.IGNORECASE
)
_ID: Final = re.compile(r"[!-~]{1,128}", re.ASCII)


def entry_of(
    message: Message,
    queue: str,
    number: int,
    *,
    with_topic: bool = False,
    deduplicate: bool = True,
) -> dict[str, Any]:
    """One entry of SendMessageBatch; `number` is its id in the batch."""
    text, encoding = _text_of(message.body)
    fixed = {
        ID: message.id,
        KEY: message.key,
        TOPIC: message.topic if with_topic else None,
        BODY: encoding,
    }
    entry: dict[str, Any] = {
        "Id": str(number),
        "MessageBody": text,
        "MessageAttributes": {
            name: {"DataType": "String", "StringValue": value}
            for name, value in _attributes(fixed, message.headers).items()
        },
    }
    if queue.endswith(".fifo"):
        # A message without a key is alone in its group, so it waits for no other.
        entry["MessageGroupId"] = _plain(message.id if message.key is None else message.key)
        entry["MessageDeduplicationId"] = _plain(message.id) if deduplicate else uuid.uuid4().hex
    return entry


def _text_of(body: bytes) -> tuple[str, str | None]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = ""
    if text and not _FORBIDDEN.search(text):
        return text, None
    return (base64.b64encode(body).decode(), "base64") if body else ("-", "empty")


def _attributes(fixed: Mapping[str, str | None], headers: Mapping[str, str]) -> dict[str, str]:
    wanted = {name: value for name, value in fixed.items() if value is not None}
    wanted |= {name: value for name, value in headers.items() if name.lower() not in OURS | {ID}}
    fine = {name: value for name, value in wanted.items() if _fits(name, value)}
    if len(fine) == len(wanted) <= MOST_ATTRIBUTES:
        return fine
    kept = dict(list(fine.items())[: MOST_ATTRIBUTES - 1])
    rest = {name: value for name, value in wanted.items() if name not in kept}
    return kept | {HEADERS: json.dumps(rest)}  # in ASCII, which SQS always allows


def _fits(name: str, value: str) -> bool:
    return bool(value and not _FORBIDDEN.search(value) and _NAME.fullmatch(name))


def _plain(text: str) -> str:
    """As an id or a group of SQS: 128 characters of ASCII; other texts are hashed."""
    return text if _ID.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()


def size_of(entry: Mapping[str, Any]) -> int:
    """Bytes, as SQS counts them."""
    attributes = sum(
        len(name.encode()) + len("String") + len(value["StringValue"].encode())
        for name, value in entry["MessageAttributes"].items()
    )
    return len(entry["MessageBody"].encode()) + attributes


def headers_of(attributes: Mapping[str, Any]) -> dict[str, str]:
    """All attributes of a received message, as text with lower-case names.

    Reading never fails: a message that cannot be read would hide all that were fetched with it.
    """
    found = {
        name.lower(): value["StringValue"] if "StringValue" in value else _hex(value)
        for name, value in attributes.items()
    }
    with contextlib.suppress(ValueError):  # not written by us: it stays as it is
        packed = msgspec.json.decode(found.get(HEADERS, "{}"), type=dict[str, str])
        found.pop(HEADERS, None)
        found |= {name.lower(): value for name, value in packed.items()}
    return found


def _hex(value: Mapping[str, Any]) -> str:
    return f"0x{bytes(value.get('BinaryValue', b'')).hex()}"


def deduplication_id(system: Mapping[str, str], text: str) -> str | None:
    """What the producer of a FIFO queue gave; None: SQS computed it from the body."""
    found = system.get("MessageDeduplicationId")
    return None if found == hashlib.sha256(text.encode()).hexdigest() else found


def body_of(text: str, encoding: str | None) -> bytes:
    if encoding == "base64":
        with contextlib.suppress(ValueError):
            return base64.b64decode(text, validate=True)
    return b"" if encoding == "empty" else text.encode()
