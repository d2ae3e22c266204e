"""What may be added to an outbox: every message is checked before it is written.

A row that no broker accepts would park its lane. So the limits and header rules are those that every
broker accepts.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from .._core.http.key_field import field_of
from .._core.outbox.requests import Added, Message, lane_of
from ..errors import UsageError
from ..propagation import numbered, outgoing_key

__all__ = ["MAX_BYTES", "checked"]

_log = logging.getLogger("twicesafe")

MAX_BYTES: Final = 1_000_000
"""Brokers accept about a megabyte. A message that is too large would park its lane."""

_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,100}", re.ASCII)
_ID: Final = re.compile(r"[\x21-\x7e]{1,255}", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_FRAMING: Final = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "proxy-connection", "te",
     "trailer", "transfer-encoding", "upgrade"}
)  # fmt: skip
"""Header names that belong to a connection, not to a message: no webhook may send them."""

MAX_HEADER_BYTES: Final = 32_768
"""Limit for all headers together: one AMQP frame, one HTTP request head."""

_FIELDS: Final = frozenset({"topic", "body", "key", "headers", "id"})


def checked(fields: Mapping[str, Any], ordered: bool, max_bytes: int) -> Added:
    """The message as it is written; raises `UsageError` for what cannot be sent."""
    if not isinstance(fields, Mapping):
        raise UsageError(
            "a message is a mapping of the arguments of add, such as dict(topic=…, body=…), not "
            f"{type(fields).__name__}; pass add_many a list of them"
        )
    unknown = fields.keys() - _FIELDS
    if unknown or not fields.keys() >= {"topic", "body"}:
        raise UsageError(
            "a message needs topic= and body=, and may have key=, headers= and id=; "
            + ("unknown: " if unknown else "not given: ")
            + ", ".join(sorted(map(str, unknown or {"topic", "body"} - fields.keys())))
        )
    topic = _text(fields["topic"], "topic")
    key = fields.get("key")
    key = None if key is None else _text(key, "key")
    body, kind = _body(fields["body"])
    if len(body) > max_bytes:
        raise UsageError(
            f"the body has {len(body)} bytes, more than max_bytes={max_bytes}: send a "
            "reference to it, or raise max_bytes= if your broker accepts that much"
        )
    id_ = fields.get("id")
    if id_ is None:
        id_ = sent = outgoing_key(numbered(f"outbox {topic}"))  # our own keys need no quotes
    elif not isinstance(id_, str) or _ID.fullmatch(id_) is None:
        raise UsageError("id= must be 1 to 255 visible ASCII characters")
    else:
        sent = field_of(id_)
    given = fields.get("headers")
    headers = {} if given is None else _headers(given)
    headers.setdefault("content-type", kind)
    headers.setdefault("idempotency-key", sent)
    if "opentelemetry.trace" in sys.modules and "traceparent" not in headers:
        _put_trace(headers)
    message = Message(id_, topic, body, key, headers)
    return Added(
        message,
        lane_of(key, id_),
        headers.get("type", topic)[:255],
        msgspec.json.encode(headers).decode(),
        ordered and key is not None,
    )


def _text(given: object, what: str) -> str:
    if not isinstance(given, str):
        raise UsageError(f"{what}= must be text, not {type(given).__name__}")
    try:
        size = len(given.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{what}= must be valid Unicode (it has a lone surrogate)") from None
    if not 1 <= size <= 255 or _CONTROL.search(given):
        raise UsageError(f"{what}= must be 1 to 255 bytes of UTF-8 without control characters")
    return given


def _body(given: object) -> tuple[bytes, str]:
    """The bytes to send and their content type."""
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given), "application/octet-stream"
    try:
        if isinstance(given, str):
            return given.encode(), "text/plain; charset=utf-8"
        encoded = msgspec.json.encode(given)
        if b"null" in encoded:
            _refuse_nan(given)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"the body cannot be encoded as JSON ({error}): pass bytes, text or plain data"
        ) from error
    return encoded, "application/json"


def _refuse_nan(given: object) -> None:
    """msgspec writes NaN and infinity as null: the number would be lost without a word."""
    try:
        json.dumps(msgspec.to_builtins(given, enc_hook=repr), allow_nan=False)  # of `msgspec.Raw`
    except ValueError:
        raise ValueError("JSON has no NaN and no infinity") from None


def _headers(given: object) -> dict[str, str]:
    """Headers with lower-case names; refuses line breaks and names that belong to a connection."""
    if not isinstance(given, Mapping):
        raise UsageError(f"headers= must be a mapping of text to text, not {type(given).__name__}")
    headers: dict[str, str] = {}
    for name, value in given.items():
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise UsageError(
                "a header name must be 1 to 100 characters from A-Z, a-z, 0-9 and !#$%&'*+-.^_`|~"
            )
        if not isinstance(value, str) or not value.isprintable() or len(value) > 4096:
            raise UsageError(f"the header {name} must be printable text of at most 4096 characters")
        if value != value.strip():
            raise UsageError(f"the header {name} must not begin or end with a space")
        if name.lower() in _FRAMING:
            raise UsageError(f"the header {name} belongs to a connection, not to a message")
        headers[name.lower()] = value
    if sum(len(name) + len(value.encode()) for name, value in headers.items()) > MAX_HEADER_BYTES:
        raise UsageError(f"the headers together must be at most {MAX_HEADER_BYTES} bytes")
    return headers


def _put_trace(headers: dict[str, str]) -> None:
    """Add the current trace context: the application uses OpenTelemetry."""
    from opentelemetry.propagate import inject

    try:
        inject(headers)
    except Exception:  # of a propagator
        _log.exception("the trace could not be added to a message; it is sent without it")
