"""A record with its version, and the write of an owner."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from ..._core import lifecycle
from ..._values.records import AuditEntry, Row, State, moment
from ...errors import SchemaVersionError

__all__ = [
    "EMPTY",
    "SPARE",
    "OwnerWrite",
    "Versioned",
    "WriteRefused",
    "audited",
    "entries_of",
    "entries_since",
    "granted",
    "is_empty",
    "is_removable",
    "other_layout",
]

SPARE: Final = 3660
"""Seconds between the end of retention and the time when the server may delete the record: the largest
``skew`` and a minute. A worker that is late by ``skew`` still gives a new record a higher fence (P3)."""
ENTRIES: Final = 100
"""Audit entries that are kept of one key: the newest."""
TRAIL: Final = 65_536
"""Bytes of all of them together: a record has a limit (400 KB on DynamoDB), and the result needs most of it."""

EMPTY: Final[dict[str, Any]] = {
    "scope": (), "value": "", "owner": b"", "attempt": 1, "lease_until": 0, "expires_at": 0,
    "hold": False, "cause": None, "fingerprint": None, "result": None, "error": "",
}  # fmt: skip
"""The fields of a row that a stored record does not have if they say nothing, and what that means."""


def is_empty(name: str, value: Any) -> bool:
    return name in EMPTY and value == EMPTY[name] and type(value) is type(EMPTY[name])


class Versioned(msgspec.Struct, gc=False):
    """A record with what the store keeps beside it."""

    row: Row
    revision: int = 0
    """Counts the writes, except for a new record and an owner's last one, which change the fence or the state."""
    lease: int = 0
    """The milliseconds that the owner was granted: how long others must watch one version."""
    audit: list[dict[str, Any]] = []
    """What operators did, oldest first, written with the action itself."""

    @property
    def version(self) -> tuple[int, State, int]:
        """Different for any two writes of a key: fences never restart, and a record that is in progress again
        has another fence or a higher revision."""
        return self.row.fence, self.row.state, self.revision


class WriteRefused(NamedTuple):
    """The answer to a write whose condition did not hold."""

    found: Versioned | None
    """The record that is there; None: there is none."""


class OwnerWrite(NamedTuple):
    """An owner's write: it succeeds if the record is in progress under this owner and fence."""

    id: bytes
    owner: bytes
    fence: int
    changes: dict[str, Any]
    """Fields of the row, with their new values."""
    lease: int | None = None
    """Of a renewal; None: the record is in progress no more."""
    ends_by: int | None = None
    """And only if its `lease_until` is not later."""
    attempts_below: int | None = None
    """And only if its `attempt` is less."""
    bare: bool = False
    """This process wrote the record, without an `error` and without a `lease`: there are none to remove."""


def other_layout(record: str, layout: Any) -> SchemaVersionError:
    """The error for a record that another version wrote. The first layout had no number."""
    if layout is None:
        return SchemaVersionError(
            f"an older twicesafe, which was never released, wrote the record {record} (layout 1); the "
            "handler does not run; delete the record, or let it expire"
        )
    return SchemaVersionError(
        f"a newer twicesafe wrote the record {record} (layout {layout}); the handler does not run; update "
        "this twicesafe"
    )


def granted(row: Row) -> int:
    """The lease that a claim was granted; 0 if the record is not in progress."""
    return row.lease_until - row.changed_at if row.state is State.IN_PROGRESS else 0


def is_removable(row: Row, now: int) -> bool:
    """Expired, and a new claim of the key would get a higher fence (P3), also of a worker that is late."""
    return lifecycle.is_expired(row, now) and row.fence < now * 1000


# --- the audit trail -------------------------------------------------------------------------


def audited(found: Versioned, ask: Any, at: int) -> list[dict[str, Any]]:
    """The trail with one more action; names and reasons are cut, so that they never fail a write."""
    entry = {
        "at": at,
        "action": ask.op,
        "by": ask.by[:4000],
        "why": ask.why[:4000],
        "before": found.row.state.value,
    }
    return _newest([*found.audit[1 - ENTRIES :], entry])


def _newest(audit: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last of these entries that have room; the very last one always has."""
    room, kept = TRAIL, len(audit) - 1
    while kept and (room := room - _size(audit[kept])) >= _size(audit[kept - 1]):
        kept -= 1
    return audit[kept:]


def _size(entry: dict[str, Any]) -> int:
    """Bytes of an entry, about as servers count them."""
    return 60 + sum(len(str(value).encode()) for value in entry.values())


def entries_of(found: Versioned) -> list[AuditEntry]:
    return [
        AuditEntry(
            id=found.row.id,
            at=moment(entry["at"]),
            action=entry["action"],
            by=entry["by"],
            why=entry["why"],
            state_before=State(entry["before"]),
        )
        for entry in found.audit
    ]


def entries_since(found: Versioned, first: datetime) -> list[AuditEntry]:
    """For the audit log of all keys."""
    row = found.row
    return [
        replace(entry, scope=row.scope, value=row.value)
        for entry in entries_of(found)
        if entry.at >= first
    ]
