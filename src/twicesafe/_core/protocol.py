"""What the core asks of a store, and what a store may answer: data, nothing else.

A *request* is one atomic store operation on one key. Because requests are data they can be
joined into batches, counted, delayed, lost and repeated by a test, and stopped in front of.

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
    """Another worker's live claim; ``wait`` = what is left of its lease."""
    RESTING = enum.auto()
    """Failed a moment ago; ``wait`` = what is left of its back-off."""
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
    """The row's state does not allow it; nothing was changed."""
    LOCKED = enum.auto()
    """To an operator: an open transaction holds the row; nothing was changed."""


class Claimed(msgspec.Struct, gc=False):
    """A verdict with what its reader needs and no more."""

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
    """HELD, PARKED: this very claim closed the key; a later one finds it closed."""
    locked: bool = False
    """BUSY: an open transaction of the inbox holds the key. Its end is not announced: look again."""


# --- a worker's requests ---------------------------------------------------------------------


class ClaimRequest(msgspec.Struct, gc=False):
    op: ClassVar[str] = "claim"
    key: Key
    owner: bytes
    lease: int
    max_attempts: int = 5
    hold: bool = False
    fingerprint: bytes | None = None

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
    """Not to be joined with other requests: if it fails, none of them is to blame, and none is hit."""


class Fail(msgspec.Struct, gc=False):
    """The attempt failed: rest for `delay`, then let the next delivery try; or park the key."""

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
    """As of `Complete`."""


class Abandon(msgspec.Struct, gc=False):
    """Give back a claim whose handler never started (its answer came late or not at all)."""

    op: ClassVar[str] = "abandon"
    id: bytes
    owner: bytes
    retention: int


class Read(msgspec.Struct, gc=False):
    op: ClassVar[str] = "read"
    id: bytes


# --- an operator's requests ------------------------------------------------------------------


class Release(msgspec.Struct, gc=False):
    """Let the next delivery run, whatever happened before. The owner, if any, loses its claim."""

    op: ClassVar[str] = "release"
    id: bytes
    by: str
    why: str
    retention: int
    force: bool = False
    """Also a completed key: its answer is dropped and the work will be done again."""


class Resolve(msgspec.Struct, gc=False):
    """Record an answer by hand, for a key whose outcome an operator found out.

    `retention` is the least: a record that was to be kept longer is.
    """

    op: ClassVar[str] = "resolve"
    id: bytes
    by: str
    why: str
    retention: int
    result: bytes | None


class Forget(msgspec.Struct, gc=False):
    """Erase result and key text, keep the tombstone: a late duplicate does not run again.

    `retention` is the least: a record that was to be kept longer is.
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
"""Of a sweep: remove whatever is due among those that it looks at."""


class Sweep(msgspec.Struct, gc=False):
    """Remove records whose retention is over: one bounded bite. ``after``: where to go on."""

    op: ClassVar[str] = "sweep"
    limit: int
    """Look at so many."""
    after: str = ""
    most: int = ALL
    """Remove at most so many. If there are more, they are where the answer says to go on."""


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
