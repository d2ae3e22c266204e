"""How a message looks in Kafka, in both directions.

Our messages have text for a key and for headers; a record of Kafka has bytes, and its value may be
missing (a tombstone). Bytes that are not text are read as ``0x`` and hex digits, and the header
``twicesafe-raw`` names those parts. So a message that goes to the dead letters and back is the same record.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ..._core.outbox.requests import Message

__all__ = ["RAW", "Raw", "record_of", "texts_of"]

RAW: Final = "twicesafe-raw"


class Raw(msgspec.Struct, omit_defaults=True):
    """Which parts of a record were not text."""

    key: bool = False
    value: bool = False
    """It had no value."""
    headers: list[str] = []


def record_of(message: Message) -> dict[str, Any]:
    """The arguments of `produce`, but the topic."""
    raw = _raw_of(message.headers.get(RAW, ""))
    sent: dict[str, str | bytes] = {"id": message.id}
    for name, value in message.headers.items():
        if name not in ("id", RAW):
            sent[name] = _bytes_of(value) if name in raw.headers else value
    return {
        "value": None if raw.value and not message.body else message.body,
        "key": _bytes_of(message.key) if raw.key and message.key is not None else message.key,
        "headers": [(n, v.encode() if isinstance(v, str) else v) for n, v in sent.items()],
    }


def texts_of(record: Any) -> tuple[str | None, dict[str, str]]:
    """The key and the headers of a record, as text, with lower-case names."""
    raw = Raw(value=record.value() is None)
    headers: dict[str, str] = {}
    for name, value in record.headers() or ():
        text, is_raw = _read(value or b"")
        headers[name.lower()] = text
        if is_raw:
            raw.headers.append(name.lower())
    key, raw.key = (None, False) if record.key() is None else _read(record.key())
    if raw != Raw():
        headers[RAW] = msgspec.json.encode(raw).decode()
    return key, headers


def _read(value: bytes | str) -> tuple[str, bool]:
    """UTF-8 as it is; other bytes as ``0x`` and their hex digits, and True."""
    if isinstance(value, str):
        return value, False
    try:
        return value.decode(), False
    except UnicodeDecodeError:
        return f"0x{value.hex()}", True


def _raw_of(text: str) -> Raw:
    try:
        return msgspec.json.decode(text, type=Raw) if text else Raw()
    except ValueError:  # not ours
        return Raw()


def _bytes_of(text: str) -> str | bytes:
    try:
        return bytes.fromhex(text[2:]) if text.startswith("0x") else text
    except ValueError:
        return text
