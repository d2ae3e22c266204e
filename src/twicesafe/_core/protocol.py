"""The requests that `_core` sends to a store, and the answers. Plain data.

A *request* is one atomic store operation on one key. Requests are data, so stores can batch them, and
tests can count, delay, lose, repeat and intercept them.

    worker    Claim  Renew  Complete  Fail  Abandon
    anyone    Read
    operator  Release  Resolve  Forget  Discard  History
    upkeep    Sweep  Survey  Browse  Count  AuditLog  Rewrite
    copying   Adopt  RaiseFences

Durations in requests are milliseconds: a store adds them to its *own* clock (P5).

The rules of the protocol, which comments and tests cite by number:

    P1   One atomic write of the store decides a claim. A claim that was won has a durable record.
    P2   A claim is idempotent by its owner token: a network retry by the same owner gets the same fence.
    P3   The fences of a key strictly increase, also across a release, an expiry, a sweep and a reopening.
    P4   Completing is idempotent for the same owner and fence. It succeeds after the lease has expired if
         no other worker took over. It never creates a missing record.
    P5   The store's clock decides leases and retention, never a worker's.
    P6   A lease is a field, not a TTL. Retention starts at completion. Work in progress never expires and
         is never swept.
    P7   A worker counts its deadline from before it sent the claim, and stops a margin early. If the
         answer comes after that deadline, the handler does not start. Renewals end at max_lease.
    P8   Every read compares the expiry itself. It does not rely on the store to remove expired records.
    P9   If the store cannot be reached, the handler does not start, unless outage="run" allows it.
    P10  After a lost reply, a worker asks the store again with its owner token. It never guesses, and
         never runs the handler again for that reason.
    P11  A mismatch of fingerprints is reported before everything else, and never starts the handler.
    P12  Every start after the first has a recorded cause.
"""

from __future__ import annotations

import enum
from typing import ClassVar, Final, TypeAlias, final

import msgspec

from .._values.keys import Key
from .._values.records import Cause, Record, Row, State
from .._values.steps import Step

__all__ = [
    "ALL",
    "Abandon",
    "Ack",
    "Adopt",
    "AuditLog",
    "Browse",
    "ClaimRequest",
    "Claimed",
    "Complete",
    "Count",
    "Discard",
    "Fail",
    "Filter",
    "Forget",
    "History",
    "Page",
    "RaiseFences",
    "Read",
    "Release",
    "Renew",
    "Request",
    "Resolve",
    "Rewrite",
    "Survey",
    "Sweep",
    "Verdict",
]


class Verdict(enum.Enum):
    """The answer to a claim. Only `WON` starts a handler."""

    WON = enum.auto()
    REPLAY = enum.auto()
    """Completed, or failed permanently: the row holds the answer."""
    BUSY = enum.auto()
    """Another worker has a live claim; ``wait`` = the rest of its lease."""
    RESTING = enum.auto()
    """The last attempt failed, or the run is suspended; ``wait`` = the rest of the back-off or suspension."""
    MISMATCH = enum.auto()
    HELD = enum.auto()
    PARKED = enum.auto()
    FORGOTTEN = enum.auto()


class Ack(enum.Enum):
    """The answer to a worker's or an operator's write."""

    OK = enum.auto()
    LOST = enum.auto()
    """Another owner or fence holds the key; nothing was changed."""
    MISSING = enum.auto()
    """There is no such row; it was not created (P4)."""
    REFUSED = enum.auto()
    """The row's state does not allow the change; nothing was changed."""
    LOCKED = enum.auto()
    """To an operator: an open transaction holds the row; nothing was changed."""


@final
class Claimed(msgspec.Struct, gc=False):
    """A verdict with the data that the caller needs."""

    verdict: Verdict
    fence: int = 0
    attempt: int = 0
    cause: Cause | None = None
    wait: int = 0
    state: State | None = None
    result: bytes | None = None
    fingerprint: bytes | None = None
    age: int = 0
    """REPLAY: milliseconds since completion."""
    expires_in: int = 0
    """REPLAY: milliseconds of retention left."""
    closes: bool = False
    """HELD, PARKED: this claim closed the key; later claims find it closed."""
    reason: str = ""
    """HELD, PARKED: the recorded reason; empty: a worker stopped, or no reason was recorded."""
    locked: bool = False
    """BUSY: an open inbox transaction holds the key. Its end is not announced, so poll."""
    steps: list[Step] | None = None
    """WON, of a durable run: its recorded steps."""
    now: int = 0
    """WON or RESTING, of a durable run: the store's time."""


# --- a worker's requests ---------------------------------------------------------------------


class ClaimRequest(msgspec.Struct, gc=False):
    """May this owner run the handler? The answer is `Claimed`."""

    op: ClassVar[str] = "claim"
    key: Key
    owner: bytes
    lease: int
    max_attempts: int = 5
    hold: bool = False
    fingerprint: bytes | None = None
    looked: bool = False
    """A hint: the caller has just asked (`Store.recall`), and the key is most likely new."""

    @property
    def id(self) -> bytes:
        return self.key.id


class Renew(msgspec.Struct, gc=False):
    """The handler is still running: extend the lease to at least `lease` milliseconds from now."""

    op: ClassVar[str] = "renew"
    id: bytes
    owner: bytes
    fence: int
    lease: int


class Complete(msgspec.Struct, gc=False):
    """The end: a value (COMPLETED) or a failure that is the answer (FAILED)."""

    op: ClassVar[str] = "complete"
    id: bytes
    owner: bytes
    fence: int
    retention: int
    result: bytes | None
    """None: done, but the result could not be kept."""
    state: State = State.COMPLETED
    error: str = ""
    alone: bool = False
    """Do not batch it with other requests: if it fails, the others must not fail with it."""


class Fail(msgspec.Struct, gc=False):
    """The attempt failed: back off for `delay`, then let the next delivery run; or park the key."""

    op: ClassVar[str] = "fail"
    id: bytes
    owner: bytes
    fence: int
    delay: int
    max_attempts: int
    retention: int
    error: str = ""
    hold: bool = False
    """The outcome is unknown and the policy is at most once: hold instead of release."""
    alone: bool = False
    """As in `Complete`."""


class Abandon(msgspec.Struct, gc=False):
    """Release a claim whose handler never started (its answer came late or not at all)."""

    op: ClassVar[str] = "abandon"
    id: bytes
    owner: bytes
    retention: int


class Read(msgspec.Struct, gc=False):
    op: ClassVar[str] = "read"
    id: bytes


# --- an operator's requests ------------------------------------------------------------------


class Release(msgspec.Struct, gc=False):
    """Let the next delivery run, in any state of the record. A current owner loses its claim."""

    op: ClassVar[str] = "release"
    id: bytes
    by: str
    why: str
    retention: int
    force: bool = False
    """Release a completed key too: its answer is dropped and the work will run again."""
    fence: int | None = None
    """Only if the record still has this fence: nothing has started or was decided since it was read."""
    unless_running: bool = False
    """Only if no worker has a live lease: a renewal raises no fence."""


class Resolve(msgspec.Struct, gc=False):
    """Record an answer by hand, for a key whose outcome an operator knows.

    `retention` is a minimum: a record that is kept longer stays so.
    """

    op: ClassVar[str] = "resolve"
    id: bytes
    by: str
    why: str
    retention: int
    result: bytes | None
    fence: int | None = None
    """As in `Release`."""
    unless_running: bool = False
    """As in `Release`."""


class Forget(msgspec.Struct, gc=False):
    """Erase the result and the key text, keep the tombstone: a late duplicate does not run.

    `retention` is a minimum: a record that is kept longer stays so.
    """

    op: ClassVar[str] = "forget"
    id: bytes
    by: str
    why: str
    retention: int
    fence: int | None = None
    """As in `Release`."""


class Discard(msgspec.Struct, gc=False):
    """Write to the audit trail that the key's dead letter was removed; the record stays as it is.

    `retention`: if the store keeps trails apart from records, it keeps this one at least that long.
    """

    op: ClassVar[str] = "discard"
    id: bytes
    by: str
    why: str
    retention: int


class History(msgspec.Struct, gc=False):
    op: ClassVar[str] = "history"
    id: bytes


# --- upkeep ----------------------------------------------------------------------------------


ALL: Final = 2**31 - 1
"""For a sweep: remove all expired records among those that it examines."""


class Sweep(msgspec.Struct, gc=False):
    """Remove records past their retention: one bounded batch. ``after``: where to continue."""

    op: ClassVar[str] = "sweep"
    limit: int
    """Examine this many records."""
    after: str = ""
    most: int = ALL
    """Remove at most this many; the answer's cursor points at the rest."""


class Rewrite(msgspec.Struct, gc=False):
    """Store the same answer in other bytes: nothing else of the record changes, no time and no fence.

    Answered with `Ack.LOST` if the record has another state or other bytes by now.
    """

    op: ClassVar[str] = "rewrite"
    id: bytes
    state: State
    before: bytes
    after: bytes


class Adopt(msgspec.Struct, gc=False):
    """Store an unchanged copy of another store's record, unless the record here is newer.

    A record is newer if its fence is higher, or if the fence is equal and its state comes later
    (`lifecycle.adopt`). An answer is not replaced by a record without one, unless an operator released it.
    OK: it is here now, or was before. LOST: the record here is newer, and stays.
    Only with the capability ``copies``.
    """

    op: ClassVar[str] = "adopt"
    row: Row
    over: int | None = None
    """Only in place of the record that has this fence. It counts as changed now."""

    @property
    def id(self) -> bytes:
        return self.row.id


class RaiseFences(msgspec.Struct, gc=False):
    """From now on, give every new key a fence above this number. Only with the capability ``copies``.

    REFUSED: the store's fences are times, and its clock is behind this one.
    """

    op: ClassVar[str] = "raise_fences"
    above: int
    id: bytes = bytes(32)
    """The request is about no key, but stores order and batch requests by their ids."""


class Survey(msgspec.Struct, gc=False):
    op: ClassVar[str] = "survey"


class Filter(msgspec.Struct, gc=False):
    """Which records to search for: those that meet every condition. `record_filter.matches` decides it."""

    limit: int
    """At most this many."""
    states: tuple[State, ...] = ()
    """In one of these states; empty: in any."""
    scope: tuple[str, ...] = ()
    """The key's scope starts with these parts."""
    value: str | None = None
    """The key's value is exactly this one, in any scope."""
    error: str | None = None
    """The recorded error starts with this text."""
    changed_after: int | None = None
    """Last changed at this time of the store's clock, or later."""
    changed_before: int | None = None
    """Last changed before this time of the store's clock."""
    stuck: bool = False
    """In progress, and the lease is over."""
    cause: Cause | None = None
    """The handler was last started again for this reason."""
    digits: str = ""
    """The hex digits of the key's id start with these (lower case)."""


class Browse(Filter, gc=False):
    """Rows, newest first, a page at a time. ``after`` is the last page's `Page.after`."""

    op: ClassVar[str] = "browse"
    after: str = ""


class Count(Filter, gc=False):
    """How many records match; it stops counting at ``limit``."""

    op: ClassVar[str] = "count"


class AuditLog(msgspec.Struct, gc=False):
    """The last actions of operators on all keys, newest first. The key's text is filled in if it is kept."""

    op: ClassVar[str] = "audit_log"
    limit: int
    since: int = 0
    """Only those at this time of the store's clock, or later."""


class Page(msgspec.Struct, gc=False):
    """A page of rows; ``after`` is empty on the last one."""

    rows: list[Row]
    after: str = ""
    unreadable: tuple[str, ...] = ()
    """Ids, in hex, of records that the search met and cannot read: they are damaged, or a newer version wrote
    them. Another page may name them again."""

    def view(self) -> list[Record]:
        """As users see them."""
        return [row.view() for row in self.rows]


Request: TypeAlias = (
    ClaimRequest
    | Renew
    | Complete
    | Fail
    | Abandon
    | Read
    | Release
    | Resolve
    | Forget
    | Discard
    | History
    | Sweep
    | Rewrite
    | Adopt
    | RaiseFences
    | Survey
    | Browse
    | Count
    | AuditLog
)
