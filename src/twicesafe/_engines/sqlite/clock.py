"""The clock of a SQLite store: time since the boot, plus an offset that all its processes share.

The first process that opens the store after a boot writes the offset into the file; the others use it.
So the clock never goes back while the machine runs, even if the wall clock does.
"""

from __future__ import annotations

from ..._values.clocks import since_boot, wall_clock
from ...stores._base import Program
from ..sql.commands import Change, Query

__all__ = ["agreed_offset", "known_offset"]


def known_offset(table: str, boot: str) -> Program[int | None]:
    """The offset of this boot in milliseconds; None: no process has set it yet."""
    rows = yield Query(f"SELECT boot, clock FROM {table}_meta")
    return rows[0][1] if rows[0][0] == boot else None


def agreed_offset(table: str, records: str, boot: str) -> Program[int]:
    """The offset of this boot. Sets it if there is none, never behind the newest record."""
    known = yield from known_offset(table, boot)
    if known is not None:
        return known
    latest = yield Query(f"SELECT changed_at FROM {records} ORDER BY n DESC LIMIT 1")
    newest = latest[0][0] if latest else 0
    offset = max(wall_clock(), newest) - int(since_boot() * 1000)
    yield Change(f"UPDATE {table}_meta SET boot = ?, clock = ?", (boot, offset))
    return offset
