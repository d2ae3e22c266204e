"""Records: what a store keeps about a key, and the view of it that callers may see.

`Row` is the full row, secrets included, for stores and `_core`. `Record` is what
`receiver.record(key)` returns: everything that an operator needs, but never the owner token, the
fingerprint or the result. Times are whole milliseconds of the store's clock.
"""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Final

import msgspec

from .keys import Key
from .steps import StepRecord, moment

__all__ = [
    "RETRY",
    "SKIP",
    "ArchiveReport",
    "AuditEntry",
    "Cause",
    "Record",
    "ReencryptReport",
    "Row",
    "State",
    "Stats",
    "SweepReport",
    "moment",
]


class State(enum.StrEnum):
    """The state of a record. `_core.transitions` has all changes from one to another."""

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

    SUSPENDED = "suspended"
    """A durable run that sleeps or waits for a signal: no worker holds it until it is due."""

    __hash__ = str.__hash__  # equal to its text; implemented in C


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
    RESUMED = "resumed"
    """A durable run had slept or waited, and was due."""
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
    """In progress: end of the lease. Released: end of the back-off. Suspended: when it is due."""
    created_at: int
    changed_at: int
    expires_at: int = 0
    """End of retention; 0 = never (in progress, suspended, held, parked)."""
    hold: bool = False
    cause: Cause | None = None
    fingerprint: bytes | None = None
    result: bytes | None = None
    error: str = ""
    """Type name of the last failure, for operators."""

    def view(self) -> Record:
        rests = self.lease_until > self.changed_at and self.state in _RESTING
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


_RESTING = (State.RELEASED, State.SUSPENDED)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one key, without its secrets. ``repr`` does not show the key."""

    id: bytes
    """The key's identity: 32 bytes, or the first 16 if an older version forgot the key."""
    scope: tuple[str, ...]
    """The key's scope; empty once the key is forgotten."""
    value: str
    """The key's value; empty once the key is forgotten."""
    state: State
    """Its present state."""
    attempt: int
    """How often the handler was started since the key was new, or since an operator released it."""
    fence: int
    """The fence of the last claim."""
    cause: Cause | None
    """Why the last start was not the first; None if it was."""
    error: str
    """Type name of the last failure; "never finished" if it was parked without one; else empty."""
    created_at: datetime
    """When the key was first claimed."""
    changed_at: datetime
    """When the state last changed; renewals do not change it."""
    lease_until: datetime | None
    """In progress: when the lease expires, unless it is renewed."""
    not_before: datetime | None
    """Released after a failure: when its back-off ends. Suspended: when it is due."""
    expires_at: datetime | None
    """End of retention; None: in progress, suspended, held or parked, which are kept."""
    result_bytes: int | None
    """Size of the stored result; None: there is none."""
    steps: tuple[StepRecord, ...] = ()
    """Of a durable run, from `receiver.record`: its recorded steps, oldest first."""

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


RETRY: Final = "retry"
SKIP: Final = "skip"
"""What an operator does to a parked lane of the outbox."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One operator action on one key, or on one lane of the outbox."""

    id: bytes
    """The key's identity: 32 bytes, or the first 16 if its record no longer has the key's text. Of a
    lane: its 16 bytes."""
    at: datetime
    """When it happened, on the store's clock."""
    action: str
    """release, resolve, forget, restart or signal; of a lane: retry or skip."""
    by: str
    """Who did it, as given in ``by=``."""
    why: str
    """The reason, as given in ``why=``."""
    state_before: State
    """The record's state before the action; a lane was parked."""
    scope: tuple[str, ...] = ()
    """The key's scope; empty if its record no longer has the key's text."""
    value: str = ""
    """The key's value; empty if its record no longer has the key's text."""

    @property
    def key(self) -> Key | None:
        """The full key, to pass to a receiver; None if its record no longer has the key's text."""
        return Key(self.value, self.scope, absolute=True) if self.value else None

    @property
    def lane(self) -> str | None:
        """The lane of the outbox, as `Outbox.parked` names it; None: the action was on a key."""
        return self.id[:16].hex() if self.action in (RETRY, SKIP) else None

    @property
    def short(self) -> str:
        """The short form of the key that errors, logs and the CLI show."""
        return self.id[:4].hex()


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one sweep did. ``more``: it stopped at its limit, and there may be more to remove."""

    removed: int
    """Records that were deleted."""
    examined: int
    """Records that were read."""
    more: bool
    """True: call `sweep` again."""


class ArchiveReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one `archive` did."""

    archived: int
    """Answers that are in the archive, and no longer in the store."""
    changed: int
    """Answers that changed or expired meanwhile: they were written to the archive, and left alone in the store."""
    after: str
    """Where to continue; empty: every answer of that age was archived."""
    unreadable: tuple[str, ...] = ()
    """Ids of records that stayed, because they are damaged or were written by a newer version."""
    unreadable_count: int = 0
    """Unreadable records in the store, including those that the search for answers did not find."""


class ReencryptReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one `reencrypt` did."""

    examined: int
    """Records that were read."""
    rewritten: int
    """Answers, and payloads of durable runs, that are now encrypted with the first key of the ring."""
    changed: int
    """Those that changed or expired meanwhile, or whose run is in progress: they were left alone."""
    unreadable: tuple[str, ...]
    """Keys (in short form) of what does not decrypt: their key is not in the ring, or they were changed."""
    after: str
    """Where to continue; empty: every record was examined."""


class Stats(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Record counts of a store. Two with equal counts are equal; the size is not compared."""

    by_state: dict[State, int]
    """The number of records in each state."""
    stuck: int
    """In progress past their lease: the next delivery of each takes it over."""
    expired: int
    """Past their retention: the next sweep removes them."""
    oldest_in_progress: datetime | None
    """When the oldest work in progress was claimed; None: there is none."""
    oldest_expired: datetime | None = None
    """When the retention of the oldest of the expired ended."""
    size: int | None = None
    """Bytes of the tables or of the database file; None: the store cannot say."""
    unreadable: int = 0
    """Records that cannot be read: they are damaged, or a newer version wrote them. Their handlers do not run."""

    @property
    def total(self) -> int:
        """The number of all records."""
        return sum(self.by_state.values()) + self.unreadable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stats) and self._counts() == other._counts()

    __hash__ = None  # type: ignore[assignment]

    def _counts(self) -> tuple[object, ...]:
        return (
            self.by_state,
            self.unreadable,
            self.stuck,
            self.expired,
            self.oldest_in_progress,
            self.oldest_expired,
        )
