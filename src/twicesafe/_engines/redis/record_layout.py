"""Reads the binary layout of a record. Only the scripts write it; lua/record.lua describes it."""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from ..._values.records import Row, State
from ...errors import CorruptRecordError, SchemaVersionError, StoreError
from ..sql.commands import CAUSES, STATES, scope_of

__all__ = [
    "COMPACT",
    "ERROR",
    "HEAD_BYTES",
    "SCOPE",
    "SPANS",
    "UNREADABLE",
    "head_of",
    "row_of",
    "unreadable",
]

HEAD: Final = struct.Struct("<BBH")
AFTER_HEAD: Final = 23
SPANS: Final = struct.Struct("<2xQIIB")
"""Of the compact layout: attempt and fence as one number, the change after it, and 5 bytes of the end after that."""
AFTER_OWNER: Final = 35
"""In the compact layout."""
HEAD_BYTES: Final = 36
"""All times of a record are in them, and the length of its owner."""

HOLD, RESULT, FINGERPRINT, SCOPE, ERROR = 8, 16, 32, 64, 128
COMPACT: Final = (32, 33, 34)
"""First bytes of compact records: in progress, completed, failed."""
LEASED: Final = {State.IN_PROGRESS, State.RELEASED, State.SUSPENDED}
ENDED: Final = {State.COMPLETED, State.FAILED, State.RELEASED, State.FORGOTTEN}

_number = int.from_bytes


class UnknownLayoutError(ValueError):
    """Its argument: the version of the layout."""


UNREADABLE: Final = (struct.error, IndexError, ValueError, msgspec.MsgspecError)


def unreadable(id: bytes, error: Exception) -> StoreError:  # noqa: A002
    """What is wrong with this record, for its reader."""
    if isinstance(error, UnknownLayoutError):
        return SchemaVersionError(
            f"the record {id[:4].hex()} has layout {error}, this twicesafe knows 2; the handler does not "
            "run; update twicesafe"
        )
    return CorruptRecordError(
        f"the record {id[:4].hex()} cannot be read ({error}); the handler does not run; look at its "
        "key on the server"
    )


def row_of(id: bytes, data: bytes) -> Row:  # noqa: A002
    """The row in this string. A string that cannot be read is an error, never an empty row."""
    try:
        return _parse(id, data)
    except UNREADABLE as error:
        raise unreadable(id, error) from error


def head_of(data: bytes) -> tuple[int, int, int, int, int, int, int]:
    """Fence; created, changed, end of the lease, end of retention; where the owner begins and ends.

    It needs the first `HEAD_BYTES`. What it raises for bytes that are no record is in `UNREADABLE`.
    """
    first = data[0]
    if first >> 4 == 2:
        if first not in COMPACT:
            raise ValueError("no compact record has this state")
        both, after, low, high = SPANS.unpack_from(data)
        fence = both >> 8
        created = fence // 1000
        changed = created + after
        until = changed + low + (high << 32)
        lease, expires = (until, 0) if first == COMPACT[0] else (0, until)
        return fence, created, changed, lease, expires, 19, AFTER_OWNER
    if first >> 4 != 1:
        raise UnknownLayoutError(first >> 4)
    state, lease, expires = STATES[first & 15], 0, 0
    created, changed = _number(data[11:17], "little"), _number(data[17:23], "little")
    at = AFTER_HEAD
    if state in LEASED:
        lease = _number(data[at : at + 6], "little")
        at += 6
    if state in ENDED:
        expires = _number(data[at : at + 6], "little")
        at += 6
    return (
        _number(data[4:11], "little"),
        created,
        changed,
        lease,
        expires,
        at + 1,
        at + 1 + data[at],
    )


def _parse(id_: bytes, data: bytes) -> Row:
    fence, created, changed, lease, expires, begin, end = head_of(data)
    head, flags, attempt = HEAD.unpack_from(data)
    if head >> 4 == 2:
        attempt = data[2]
    owner = data[begin:end]
    at = end + 1 + data[end]
    value = data[end + 1 : at].decode()
    scope: tuple[str, ...] = ()
    fingerprint = None
    error = ""
    if flags & SCOPE:
        end = at + 2 + _number(data[at : at + 2], "little")
        scope = scope_of(data[at + 2 : end].decode())
        at = end
    if flags & FINGERPRINT:
        end = at + 1 + data[at]
        fingerprint = data[at + 1 : end]
        at = end
    if flags & ERROR:
        end = at + 2 + _number(data[at : at + 2], "little")
        error = data[at + 2 : end].decode()
        at = end
    if at > len(data) or (at != len(data) and not flags & RESULT):
        raise ValueError("its length is wrong")
    return Row(
        id_,
        scope,
        value,
        STATES[head & 15],
        fence,
        attempt,
        owner,
        lease,
        created,
        changed,
        expires,
        bool(flags & HOLD),
        CAUSES[flags & 7],
        fingerprint,
        data[at:] if flags & RESULT else None,
        error,
    )
