"""The record that a claim returns, as one column: PyMySQL takes longer for a column than the server for a row.

Its numbers come first, as text. Then come its bytes without separators; the last numbers say how
long they are. The numbers are in latin1 (see ``_latin1``), because the caller's
`collation_connection` may be in UTF-16. A large result is not put into one value with the rest: the
server refuses such values above max_allowed_packet.
"""

from __future__ import annotations

from typing import Final

from ..._values.records import Row
from ..sql.commands import TEXT_OR_RESULT, present_from

__all__ = ["LARGE", "RECORD", "record_from", "stored_id"]

_RESULT: Final = TEXT_OR_RESULT.format(of="", error="CAST(error AS BINARY)", result="result")

LARGE: Final = 256 * 1024
"""Bytes of a result above which a claim is decided under a lock, from separate columns."""

RECORD: Final = (
    "CONCAT(CONCAT_WS(_latin1' ', state, fence, attempt, lease_until, changed_at, expires_at, hold, cause, {now},"
    f" LENGTH(owner), IFNULL(LENGTH(fingerprint), -1), {_RESULT} IS NULL), _latin1' ', id, owner,"
    f" IFNULL(fingerprint, x''), IF(LENGTH(result) > {LARGE:d}, NULL, IFNULL({_RESULT}, x''))) AS record"
)
"""NULL: there is no row, or its result is large."""

_NUMBERS: Final = 12


def record_from(record: bytes, id_: bytes, width: int) -> tuple[Row, int]:
    """The row, and the server's time. `width`: the bytes of an id that are stored."""
    *numbers, rest = record.split(b" ", _NUMBERS)
    (
        state,
        fence,
        attempt,
        lease,
        changed,
        expires,
        hold,
        cause,
        now,
        owner_size,
        print_size,
        empty,
    ) = map(int, numbers)
    start = width + owner_size
    end = start + max(print_size, 0)
    owner, fingerprint = rest[width:start], None if print_size < 0 else rest[start:end]
    columns = (state, fence, attempt, owner, lease, changed, expires, hold, cause, fingerprint)
    return present_from(id_, (*columns, None if empty else rest[end:])), now


def stored_id(record: bytes, width: int) -> bytes:
    return record.split(b" ", _NUMBERS)[_NUMBERS][:width]
