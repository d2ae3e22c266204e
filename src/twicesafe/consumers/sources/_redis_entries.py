"""Entries of a Redis stream: their two layouts, and the scripts that settle them.

A pending entry belongs to one consumer of a group. The scripts check in one step that it is
still ours, and act. So a slow consumer cannot settle another consumer's delivery.
"""

from __future__ import annotations

import base64
from typing import Final

import msgspec

from ..._core.consuming.message import Message

__all__ = ["ACKNOWLEDGE", "EXTEND", "FORGET", "RETURN", "RETURNED", "message_of"]

RETURNED: Final = "twicesafe-returned"
"""The consumer that has the messages that were given back."""

_IF_OURS: Final = """
local settled = 0
for place = 4, #ARGV do
    local id = ARGV[place]
    if #redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1, ARGV[2]) > 0 then
        settled = settled + 1
        %s
    end
end
return settled
"""
"""For each entry that is pending with this consumer. ARGV: group, consumer, idle time, entries."""

ACKNOWLEDGE: Final = _IF_OURS % "redis.call('XACK', KEYS[1], ARGV[1], id)"
EXTEND: Final = _IF_OURS % "redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id, 'JUSTID')"
RETURN: Final = _IF_OURS % (
    f"redis.call('XCLAIM', KEYS[1], ARGV[1], '{RETURNED}', 0, id, 'IDLE', ARGV[3], 'JUSTID')"
)
FORGET: Final = """
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
    local found = {}
    for place = 1, #consumer, 2 do found[consumer[place]] = consumer[place + 1] end
    local gone = found['name'] == ARGV[2] or found['idle'] > tonumber(ARGV[3])
    if gone and found['pending'] == 0 then
        redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], found['name'])
    end
end
"""
"""Checked and removed at once: removing a consumer also removes what is pending with it."""


def message_of(stream: str, id_: bytes, fields: dict[bytes, bytes], deliveries: int) -> Message:
    position = f"{stream}/{id_.decode()}"
    return _of_outbox(fields, position, deliveries) or Message(
        None, stream, _as_json(fields), deliveries=deliveries, position=position
    )


def _of_outbox(fields: dict[bytes, bytes], position: str, count: int) -> Message | None:
    """The message that our outbox wrote; None: this entry has another layout."""
    try:
        headers = msgspec.json.decode(fields[b"headers"], type=dict[str, str])
        key = fields.get(b"key")
        return Message(
            fields[b"id"].decode(),
            fields[b"topic"].decode(),
            fields[b"body"],
            None if key is None else key.decode(),
            {name.lower(): value for name, value in headers.items()},
            count,
            position,
        )
    except (KeyError, ValueError):  # a decoding error is a ValueError
        return None


def _as_json(fields: dict[bytes, bytes]) -> bytes:
    return msgspec.json.encode({_text(name): _value(value) for name, value in fields.items()})


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace")


def _value(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
