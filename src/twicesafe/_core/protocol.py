"""The requests that `_core` sends to a store, and the answers. Plain data.

A *request* is one atomic store operation on one key. Because requests are data, they can be joined
into batches; tests can count, delay, lose, repeat and intercept them.

    worker    Claim  Renew  Complete  Fail  Abandon
    anyone    Read
    operator  Release  Resolve  Forget  History
    upkeep    Sweep  Survey  Browse

Durations in requests are milliseconds: a store adds them to its *own* clock (P5).
"""

from __future__ import annotations

import enum
from typing import ClassVar, Final, TypeAlias

import msgspec

from .._values.keys import Key
from .._values.records import Cause, Row, State

__all__ = [
    "ALL",
    "Abandon",
    "Ack",
    "Browse",
    "ClaimRequest",
    "Claimed",
    "Complete",
    "Fail",
    "Forget",
    "History",
    "Page",
    "Read",
    "Release",
    "Renew",
    "Request",
    "Resolve",
    "Survey",
    "Sweep",
    "Verdict",
]


class Verdict(enum.Enum):
    """The answer to a claim. Only `WON` starts a handler."""

    WON = enum.auto()
    REPLAY = enum.auto()
    """Completed, or failed for good: the row holds the answer."""
    BUSY = enum.auto()
    """Another worker has a live claim; ``wait`` = what is left of its lease."""
    RESTING = enum.auto()
    """The last attempt failed; ``wait`` = what is left of its back-off."""
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
    locked: bool = False
    """BUSY: an open inbox transaction holds the key. Its end is not announced, so poll."""


# --- a worker's requests ---------------------------------------------------------------------


class ClaimRequest(msgspec.Struct, gc=False):
    op: ClassVar[str] = "claim"
    key: Key
    owner: bytes
    lease: int
    max_attempts: int = 5
    hold: bool = False
    fingerprint: bytes | None = None
    looked: bool = False
    """A hint: the caller has just looked (`Store.recall`), so the key is most likely new."""

    @property
    def id(self) -> bytes:
        return self.key.id


class Renew(msgspec.Struct, gc=False):
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
    """Let the next delivery run, whatever happened before. A current owner loses its claim."""

    op: ClassVar[str] = "release"
    id: bytes
    by: str
    why: str
    retention: int
    force: bool = False
    """Release a completed key too: its answer is dropped and the work will run again."""


class Resolve(msgspec.Struct, gc=False):
    """Record an answer manually, for a key whose outcome an operator has found out.

    `retention` is a minimum: a record that is kept longer stays so.
    """

    op: ClassVar[str] = "resolve"
    id: bytes
    by: str
    why: str
    retention: int
    result: bytes | None


class Forget(msgspec.Struct, gc=False):
    """Erase the result and the key text, keep the tombstone: a late duplicate does not run.

    `retention` is a minimum: a record that is kept longer stays so.
    """

    op: ClassVar[str] = "forget"
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


class Survey(msgspec.Struct, gc=False):
    op: ClassVar[str] = "survey"


class Browse(msgspec.Struct, gc=False):
    """Rows, newest first, a page at a time. ``after`` is the last page's `Page.after`."""

    op: ClassVar[str] = "browse"
    limit: int
    state: State | None = None
    scope: tuple[str, ...] = ()
    """Only keys whose scope starts with these parts."""
    after: str = ""


class Page(msgspec.Struct, gc=False):
    """A page of rows; ``after`` is empty on the last one."""

    rows: list[Row]
    after: str = ""


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
    | History
    | Sweep
    | Survey
    | Browse
)
