"""Records: what a store keeps about a key, and the view of it that callers may see.

`Row` is the full row, secrets included, for stores and `_core`. `Record` is what
`receiver.record(key)` returns: everything that an operator needs, but never the owner token, the
fingerprint or the result. Times are whole milliseconds of the store's clock.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from .keys import Key

__all__ = ["AuditEntry", "Cause", "Record", "Row", "State", "Stats", "SweepReport", "moment"]


class State(enum.StrEnum):
    IN_PROGRESS = "in_progress"
    """A worker holds it until its lease ends."""
    COMPLETED = "completed"
    """Done: the recorded value is the answer, until retention ends."""
    FAILED = "failed"
    """Failed permanently: the failure is the answer (``remember=``)."""
    RELEASED = "released"
    """No worker holds it; the next delivery runs it again."""
    HELD = "held"
    """Outcome unknown, at most once: waits for an operator."""
    PARKED = "parked"
    """Started ``max_attempts`` times without finishing: waits for an operator."""
    FORGOTTEN = "forgotten"
    """Done; its result was erased. A late duplicate does not run."""

    __hash__ = str.__hash__  # as its word, to which it is equal; and in C


class Cause(enum.StrEnum):
    """Why a handler was started again while its record existed (P12)."""

    FAILED = "failed"
    """The last attempt raised."""
    LEASE_EXPIRED = "lease_expired"
    """The last owner's lease expired: it crashed, hung or lost its connection."""
    RETENTION_EXPIRED = "retention_expired"
    """The recorded answer's retention was over."""
    OPERATOR = "operator"
    """An operator released the key."""
    RECORD_LOST = "record_lost"
    """Reserved: no store in this version reports it."""

    __hash__ = str.__hash__


class Row(msgspec.Struct, gc=False):
    """One key in a store. Only the decisions in `_core.lifecycle` change it."""

    id: bytes
    scope: tuple[str, ...]
    value: str
    state: State
    fence: int
    attempt: int
    owner: bytes
    lease_until: int
    """In progress: end of the lease. Released: end of the back-off."""
    created_at: int
    changed_at: int
    expires_at: int = 0
    """End of retention; 0 = never (in progress, held, parked)."""
    hold: bool = False
    cause: Cause | None = None
    fingerprint: bytes | None = None
    result: bytes | None = None
    error: str = ""
    """Type name of the last failure, for operators."""

    def view(self) -> Record:
        rests = self.state is State.RELEASED and self.lease_until > self.changed_at
        return Record(
            id=self.id,
            scope=self.scope,
            value=self.value,
            state=self.state,
            attempt=self.attempt,
            fence=self.fence,
            cause=self.cause,
            error=self.error,
            created_at=moment(self.created_at),
            changed_at=moment(self.changed_at),
            lease_until=moment(self.lease_until) if self.state is State.IN_PROGRESS else None,
            not_before=moment(self.lease_until) if rests else None,
            expires_at=moment(self.expires_at) if self.expires_at else None,
            result_bytes=None if self.result is None else len(self.result),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is known about one key, without its secrets. ``repr`` does not show the key."""

    id: bytes = field(repr=False)
    """The key's identity, 32 bytes."""
    scope: tuple[str, ...] = field(repr=False)
    """Empty once the key is forgotten, as is the value."""
    value: str = field(repr=False)
    state: State
    attempt: int
    """Starts of the handler since the key was new, or since an operator released it."""
    fence: int
    cause: Cause | None
    """Why the last start was not the first; None if it was."""
    error: str
    """Type name of the last failure; empty if there was none."""
    created_at: datetime
    changed_at: datetime
    """When the state last changed; renewals do not change it."""
    lease_until: datetime | None
    """In progress: when the lease expires, unless it is renewed."""
    not_before: datetime | None
    """Released after a failure: when its back-off ends."""
    expires_at: datetime | None
    """End of retention; None: in progress, held or parked, which are kept."""
    result_bytes: int | None
    """Size of the stored result; None: there is none."""

    @property
    def key(self) -> Key | None:
        """The full key, to pass to a receiver; None once it is forgotten."""
        return Key(self.value, self.scope, absolute=True) if self.value else None

    def __repr__(self) -> str:
        words = [f"key={self.short}", self.state.value, f"attempt={self.attempt}"]
        words += [f"fence={self.fence}"]
        words += [f"cause={self.cause.value}"] if self.cause else []
        words += [f"error={self.error}"] if self.error else []
        return f"<Record {', '.join(words)}, changed {self.changed_at:%Y-%m-%d %H:%M:%S} UTC>"

    @property
    def short(self) -> str:
        """The short form of the key that errors, logs and the CLI show."""
        return self.id[:4].hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One operator action on one key."""

    id: bytes
    at: datetime
    action: str
    """release, resolve or forget."""
    by: str
    why: str
    state_before: State


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What one sweep did. ``more``: it stopped at its limit, and there may be more to remove."""

    removed: int
    examined: int
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Record counts of a store."""

    by_state: dict[State, int]
    stuck: int
    """In progress past their lease: the next delivery of each takes it over."""
    expired: int
    """Past their retention: the next sweep removes them."""
    oldest_in_progress: datetime | None

    @property
    def total(self) -> int:
        return sum(self.by_state.values())


def moment(milliseconds: int) -> datetime:
    """A store's time as a datetime."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
