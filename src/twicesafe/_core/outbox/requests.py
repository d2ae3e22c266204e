"""The requests of a relay to a store, and their vocabulary. Plain data.

    message   added in the caller's transaction, sent by a publisher
    lane      the messages of one ordering key, published in row order; a message without a key is
              alone in its lane
    slot      one of 64 groups of lanes; a relay leases slots (fenced, on the store's clock)
    blocked   a lane whose first message was refused: it backs off, and is parked after too many
              refusals
    aside     messages of a blocked lane that are set aside in a separate table

    relay     Prepare  Heartbeat  Fetch  Settle  Awake
    operator  Backlog  ListRelays  ParkedLanes  Unpark

Durations are milliseconds, added to the store's own clock (P5).
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import ClassVar, Final, Generic, TypeVar

import msgspec

from ...errors import TwicesafeError

__all__ = [
    "GATES",
    "SLOTS",
    "Added",
    "Awake",
    "Backlog",
    "Depth",
    "Fetch",
    "Fetched",
    "Heartbeat",
    "LeasedSlots",
    "ListRelays",
    "Message",
    "OutboxRequest",
    "ParkedLane",
    "ParkedLanes",
    "Pending",
    "Prepare",
    "RelayStatus",
    "Relays",
    "Setback",
    "Settle",
    "Unpark",
    "gate_of",
    "lane_of",
    "slot_of",
]

SLOTS: Final = 64
GATES: Final = 1024

Reply = TypeVar("Reply")
_Reply_co = TypeVar("_Reply_co", covariant=True)


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message, as a publisher gets it; the same on every attempt."""

    id: str
    """Never changes: consumers deduplicate by it."""
    topic: str
    body: bytes
    key: str | None = None
    """The ordering key; None: no order relative to other messages."""
    headers: dict[str, str] = {}


class Added(msgspec.Struct, frozen=True, gc=False):
    """A message as `add` writes it: checked, and with its lane."""

    message: Message
    lane: bytes
    type: str
    headers: str
    ordered: bool
    """It has a key, so adding it waits for the lane's gate."""


class Pending(msgspec.Struct, gc=False):
    """A pending row, with what the relay must know about its lane."""

    n: int
    lane: bytes
    slot: int
    attempts: int
    """How often this message has been refused."""
    last: bool
    """The last row that its blocked lane may send; after it the next rows may follow."""
    created_at: int
    message: Message
    fence: int = 0
    """The slot's fence when the row was fetched; after it changes, do not publish this row."""
    unreadable: TwicesafeError | None = None
    """Why its body cannot be decrypted: the message is then refused, never published."""


class Fetched(msgspec.Struct, gc=False):
    """The rows that a relay may publish, in order, and the rows to set aside."""

    rows: list[Pending]
    aside: dict[bytes, list[int]] = {}
    """By lane: rows of blocked lanes, to be set aside."""


class LeasedSlots(msgspec.Struct, gc=False):
    """The slots that a relay may publish from, each with its fence."""

    slots: dict[int, int]
    share: int
    """How many slots each relay should have, given the number of live relays."""


class Setback(msgspec.Struct, gc=False):
    """A message was refused: its lane backs off for `delay`, or is parked with its fetched rows."""

    slot: int
    fence: int
    lane: bytes
    n: int
    attempts: int
    delay: int
    error: str
    park: bool = False
    counts: bool = True
    """False: the lane backs off, but the message is not to blame; `attempts` does not change."""


class Depth(msgspec.Struct, frozen=True):
    """The outbox backlog: the numbers to monitor."""

    pending: int
    """Pending messages."""
    oldest_age: float
    """Seconds since the oldest of them was added; 0 if there is none."""
    parked: int
    """Messages of parked lanes: an operator must act."""
    parked_lanes: int
    resting_lanes: int
    """Lanes whose message was refused and will be retried."""
    relays: int
    """Relays that are alive."""


class RelayStatus(msgspec.Struct, frozen=True):
    """One relay, as its last heartbeat left it."""

    id: str
    """32 hex digits; new for each run of a relay."""
    is_alive: bool
    until: datetime
    """The end of its lease. A live relay renews it; of one that is gone it says since when."""
    is_idle: bool
    """It waits for a message to be added."""
    slots: int
    """How many of the 64 groups of lanes it publishes."""
    pending: int
    """Messages in its slots, without those that are set aside."""
    oldest_age: float
    """Seconds since the oldest of them was added; 0 if there is none."""


class Relays(msgspec.Struct, frozen=True):
    """The relays of the last day, and the messages that none of them publishes."""

    relays: list[RelayStatus]
    """The live ones first."""
    unserved: int
    """Messages in slots that no live relay holds."""
    unserved_age: float
    """Seconds since the oldest of them was added; 0 if there is none."""


class ParkedLane(msgspec.Struct, frozen=True):
    """A lane that no relay publishes until an operator calls `retry` or `skip`."""

    lane: str
    """The lane's id: 32 hex digits."""
    key: str | None
    topic: str
    message_id: str
    """The message that was refused."""
    attempts: int
    error: str
    since: datetime
    waiting: int
    """Messages of the lane that are set aside, the refused one included."""


# --- requests --------------------------------------------------------------------------------


class OutboxRequest(msgspec.Struct, Generic[_Reply_co], gc=False):
    """One request to an outbox. The parameter is the type of its reply."""

    op: ClassVar[str]
    reads: ClassVar[bool] = False
    """It writes nothing."""


class Prepare(OutboxRequest[list[str]], gc=False):
    """Create the outbox tables, or check that they exist. Reply: what was done."""

    op: ClassVar[str] = "outbox_prepare"
    migrate: bool = False
    """Create them even on a store that was opened with ?migrate=false."""


class Heartbeat(OutboxRequest[LeasedSlots], gc=False):
    """Heartbeat: renew my slots, take free ones up to my share, release these."""

    op: ClassVar[str] = "outbox_heartbeat"
    owner: bytes
    lease: int
    give: frozenset[int] = frozenset()
    leave: bool = False
    """Release all slots; this relay stops."""


class Fetch(OutboxRequest[Fetched], gc=False):
    """The first publishable rows of these slots, except those of `except_lanes`."""

    op: ClassVar[str] = "outbox_fetch"
    reads: ClassVar[bool] = True
    slots: list[int]
    limit: int
    except_lanes: list[bytes]


class Settle(OutboxRequest[int], gc=False):
    """Delete published rows, record setbacks, set rows of blocked lanes aside.

    Published rows are deleted even if another relay holds the slot now. The rest requires owner and
    fence. Repeating the request changes nothing. Reply: how many setbacks were refused.
    """

    op: ClassVar[str] = "outbox_settle"
    owner: bytes
    done: list[int]
    cured: dict[bytes, int]
    """By blocked lane: the last row it was allowed to send is published; the next may follow."""
    setbacks: list[Setback]
    aside: dict[bytes, list[int]]


class Awake(OutboxRequest[None], gc=False):
    """This relay is awake: writers need not wake it."""

    op: ClassVar[str] = "outbox_awake"
    owner: bytes


class Backlog(OutboxRequest[Depth], gc=False):
    """The numbers to monitor."""

    op: ClassVar[str] = "outbox_backlog"
    reads: ClassVar[bool] = True


class ListRelays(OutboxRequest[Relays], gc=False):
    """Who publishes, and how far behind each is."""

    op: ClassVar[str] = "outbox_relays"
    reads: ClassVar[bool] = True


class ParkedLanes(OutboxRequest[list[ParkedLane]], gc=False):
    """The parked lanes, the longest parked first."""

    op: ClassVar[str] = "outbox_parked"
    reads: ClassVar[bool] = True
    limit: int
    lane: bytes | None = None


class Unpark(OutboxRequest[bool], gc=False):
    """Continue the lane with its first message, or (`skip`) with the one after it.

    `by` and `why` are written to the audit, in the same transaction. A skipped message is kept with
    them, too, and never published. Reply: was it parked (at this time, if one is given)?
    """

    op: ClassVar[str] = "outbox_unpark"
    lane: bytes
    skip: bool
    by: str
    why: str
    since: int | None = None
    """Milliseconds: only if it is parked since then. Later, another message may be the refused one."""


# --- the lane of a message -------------------------------------------------------------------


def lane_of(key: str | None, id: str) -> bytes:  # noqa: A002
    """The lane of a message: its key's, or its own."""
    name = b"key\0" + key.encode() if key is not None else b"id\0" + id.encode()
    return hashlib.sha256(b"twicesafe.outbox.lane.1\0" + name).digest()[:16]


def slot_of(lane: bytes) -> int:
    return lane[0] % SLOTS


def gate_of(lane: bytes) -> int:
    """The lock that a transaction holds from adding to a keyed lane until it commits."""
    return int.from_bytes(lane[1:3], "big") % GATES
