"""The bytes of a transaction, as Protocol Buffers has them.

Every claim and every completion is a transaction. Protobuf took a tenth of the client's time to
build its message, which contains a message for each comparison and each operation. So its few
fields are encoded here; a test compares the bytes with those of `messages`. Replies and all other
requests use the messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .messages import CREATE, MOD

__all__ = ["compared", "delete", "put", "read", "transaction"]


def _varint(number: int) -> bytes:
    """Seven bits per byte, the lowest first; the last byte has no high bit."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


_SHORT: Final = [_varint(number) for number in range(2048)]


def _number(number: int) -> bytes:
    return _SHORT[number] if number < 2048 else _varint(number)


# Before each field is its number, times 8, plus 0 for a number or 2 for bytes that follow their length.

_TARGETS: Final = {CREATE: (b"\x10\x01\x1a", b"\x28"), MOD: (b"\x10\x02\x1a", b"\x30")}


def compared(key: bytes, target: int, revision: int) -> bytes:
    """`Compare`: that this revision of the key is equal."""
    head, tail = _TARGETS[target]
    return head + _number(len(key)) + key + tail + _number(revision)


def read(key: bytes) -> bytes:
    """`RequestOp`: a range of one key."""
    length = len(key)
    return b"\x0a" + _number(length + 1 + len(_number(length))) + b"\x0a" + _number(length) + key


def put(key: bytes, value: bytes, lease: int = 0) -> bytes:
    """`RequestOp`."""
    asked = b"\x0a" + _number(len(key)) + key + b"\x12" + _number(len(value)) + value
    if lease:
        asked += b"\x18" + _number(lease)
    return b"\x12" + _number(len(asked)) + asked


def delete(key: bytes) -> bytes:
    """`RequestOp`: of one key."""
    asked = b"\x0a" + _number(len(key)) + key
    return b"\x1a" + _number(len(asked)) + asked


def transaction(
    compare: Iterable[bytes], success: Iterable[bytes], failure: Iterable[bytes] = ()
) -> bytes:
    """`TxnRequest`."""
    parts: list[bytes] = []
    for head, fields in ((b"\x0a", compare), (b"\x12", success), (b"\x1a", failure)):
        for field in fields:
            parts += (head, _number(len(field)), field)
    return b"".join(parts)
