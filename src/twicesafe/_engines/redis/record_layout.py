"""Reads the binary layout of a record. Only the scripts write it; lua/record.lua describes it."""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from ..._values.records import Row, State
from ...errors import CorruptRecordError, SchemaVersionError
from ..sql.commands import CAUSES, STATES, scope_of

__all__ = ["row_of"]

VERSION: Final = 1
HEAD: Final = struct.Struct("<BBH")
AFTER_HEAD: Final = 23

HOLD, RESULT, FINGERPRINT, SCOPE, ERROR = 8, 16, 32, 64, 128
LEASED: Final = {State.IN_PROGRESS, State.RELEASED}
ENDED: Final = {State.COMPLETED, State.FAILED, State.RELEASED, State.FORGOTTEN}

_number = int.from_bytes


def row_of(id: bytes, data: bytes) -> Row:  # noqa: A002
    """The row in this string. A string that cannot be read is an error, never an empty row."""
    try:
        return _parse(id, data)
    except (struct.error, IndexError, ValueError, msgspec.MsgspecError) as error:
        raise CorruptRecordError(
            f"the record {id[:4].hex()} cannot be read ({error}); the handler does not run; look at its "
            "key on the server"
        ) from error


def _parse(id_: bytes, data: bytes) -> Row:
    head, flags, attempt = HEAD.unpack_from(data)
    if head >> 4 != VERSION:
        raise SchemaVersionError(
            f"the record {id_[:4].hex()} has layout {head >> 4}, this twicesafe knows {VERSION}; the "
            "handler does not run; update twicesafe"
        )
    state = STATES[head & 15]
    at = AFTER_HEAD
    lease = expires = 0
    if state in LEASED:
        lease = _number(data[at : at + 6], "little")
        at += 6
    if state in ENDED:
        expires = _number(data[at : at + 6], "little")
        at += 6
    end = at + 1 + data[at]
    owner = data[at + 1 : end]
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
        state,
        _number(data[4:11], "little"),
        attempt,
        owner,
        lease,
        _number(data[11:17], "little"),
        _number(data[17:23], "little"),
        expires,
        bool(flags & HOLD),
        CAUSES[flags & 7],
        fingerprint,
        data[at:] if flags & RESULT else None,
        error,
    )
