"""Reads the binary layout of a record. Only the scripts write it; lua/record.lua describes it."""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from ..._values.records import Row, State
from ...errors import CorruptRecordError, SchemaVersionError
from ..sql.commands import CAUSES, STATES, scope_of

__all__ = ["row_of"]

VERSIONS: Final = (1, 2)
HEAD: Final = struct.Struct("<BBH")
AFTER_HEAD: Final = 23
AFTER_OWNER: Final = 35
"""In the compact layout."""

HOLD, RESULT, FINGERPRINT, SCOPE, ERROR = 8, 16, 32, 64, 128
COMPACT: Final = {State.IN_PROGRESS, State.COMPLETED, State.FAILED}
LEASED: Final = {State.IN_PROGRESS, State.RELEASED, State.SUSPENDED}
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
    version, state = head >> 4, STATES[head & 15]
    if version not in VERSIONS:
        raise SchemaVersionError(
            f"the record {id_[:4].hex()} has layout {version}, this twicesafe knows "
            f"{VERSIONS[-1]}; the handler does not run; update twicesafe"
        )
    lease = expires = 0
    if version == 2:
        if state not in COMPACT:
            raise ValueError(f"a compact record is never {state.value}")
        attempt, fence = data[2], _number(data[3:10], "little")
        created = fence // 1000
        changed = created + _number(data[10:14], "little")
        until = changed + _number(data[14:19], "little")
        lease, expires = (until, 0) if state is State.IN_PROGRESS else (0, until)
        owner, end = data[19:AFTER_OWNER], AFTER_OWNER
    else:
        fence = _number(data[4:11], "little")
        created, changed = _number(data[11:17], "little"), _number(data[17:23], "little")
        at = AFTER_HEAD
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
