"""What a relay asks of a store, and the words it uses: data, nothing else.

    message   what was added in the caller's transaction, and what a publisher gets
    lane      the messages of one ordering key, published in the order of their rows;
              a message without a key is a lane of its own
    slot      one of 64 parts of all lanes: what a relay leases (fenced, on the store's clock)
    trouble   a lane whose first message was refused: it rests, and is parked in the end
    aside     messages of a lane in trouble that wait in a table of their own

    relay     Prepare  Hold  Fetch  Settle  Rise
    operator  Backlog  ParkedLanes  Unpark

Durations are milliseconds, added to the store's own clock (P5).
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import ClassVar, Final, TypeAlias

import msgspec

__all__ = [
    "BELL",
    "GATES",
    "SLOTS",
    "Backlog",
    "Depth",
    "Fetch",
    "Fetched",
    "Held",
    "Hold",
    "Message",
    "OutboxRequest",
    "ParkedLane",
    "ParkedLanes",
    "Pending",
    "Prepare",
    "Rise",
    "Setback",
    "Settle",
    "Unpark",
    "gate_of",
    "lane_of",
    "slot_of",
]

SLOTS: Final = 64
GATES: Final = 1024

BELL: Final = hashlib.sha256(b"twicesafe.outbox._outbox.bell.1").digest()[:16]
"""With a relay's token behind it: what that relay watches while it sleeps."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message, the same at every try: what a publisher gets."""

    id: str
    """Stable for ever: consumers deduplicate by it."""
    topic: str
    body: bytes
    key: str | None = None
    """The ordering key; None: in no order with others."""
    headers: dict[str, str] = {}


class Pending(msgspec.Struct, gc=False):
    """A row that waits, with what the relay must know of its lane."""

    n: int
    lane: bytes
    slot: int
    attempts: int
    """How often this message was refused so far."""
    last: bool
    """Of those that its lane in trouble may send: once it is published, the next ones may follow."""
    created_at: int
    message: Message
    fence: int = 0
    """Of its slot when the relay fetched it: under another one, this row is not ours to publish."""


class Fetched(msgspec.Struct, gc=False):
    """What a relay may publish, in order; and what should get out of its way."""

    rows: list[Pending]
    aside: dict[bytes, list[int]] = {}
    """By lane: rows of lanes in trouble that stand between those that may go."""


class Held(msgspec.Struct, gc=False):
    """The slots that a relay may publish from, each with its fence."""

    slots: dict[int, int]
    share: int
    """As many as each relay should have, by the number of those that are alive."""


class Setback(msgspec.Struct, gc=False):
    """A message was refused: its lane rests for `delay`, or is parked with the rows seen of it."""

    slot: int
    fence: int
    lane: bytes
    n: int
    attempts: int
    delay: int
    error: str
    park: bool = False
    counts: bool = True
    """False: the lane rests, but the message is not to blame; `attempts` stays what it was."""


class Depth(msgspec.Struct, frozen=True):
    """How much waits, and for how long: the numbers to watch."""

    pending: int
    """Messages that wait to be published."""
    oldest_age: float
    """Seconds since the first of them was added; 0 if none waits."""
    parked: int
    """Messages of parked lanes: an operator must look."""
    parked_lanes: int
    resting_lanes: int
    """Lanes that were refused and will be tried again."""
    relays: int
    """Relays that are alive."""


class ParkedLane(msgspec.Struct, frozen=True):
    """A lane that nobody publishes until an operator says `retry` or `skip`."""

    lane: str
    """Names the lane: 32 hex digits."""
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


class Prepare(msgspec.Struct, gc=False):
    """Make the tables of the outbox, or check that they are there. Answer: what was done."""

    op: ClassVar[str] = "outbox_prepare"
    migrate: bool = False
    """Make them also on a store that was opened with ?migrate=false."""


class Hold(msgspec.Struct, gc=False):
    """I am alive; renew my slots, take free ones up to my share, give these back. Answer: `Held`."""

    op: ClassVar[str] = "outbox_hold"
    owner: bytes
    lease: int
    give: frozenset[int] = frozenset()
    leave: bool = False
    """Give all back, and be counted no more."""


class Fetch(msgspec.Struct, gc=False):
    """The first rows of these slots whose lanes may go, but not of those lanes. Answer: `Fetched`."""

    op: ClassVar[str] = "outbox_fetch"
    slots: list[int]
    limit: int
    except_lanes: list[bytes]


class Settle(msgspec.Struct, gc=False):
    """Published rows go; setbacks are noted; rows of lanes in trouble are set aside.

    What was published goes whoever holds the slot by now. The rest needs owner and fence. Saying it
    again changes nothing. Answer: how many setbacks were refused.
    """

    op: ClassVar[str] = "outbox_settle"
    owner: bytes
    done: list[int]
    cured: dict[bytes, int]
    """By lane in trouble: the last row that it might send was published. The next ones may follow."""
    setbacks: list[Setback]
    aside: dict[bytes, list[int]]


class Rise(msgspec.Struct, gc=False):
    """This relay is awake: nobody needs to wake it."""

    op: ClassVar[str] = "outbox_rise"
    owner: bytes


class Backlog(msgspec.Struct, gc=False):
    """Answer: `Depth`."""

    op: ClassVar[str] = "outbox_backlog"


class ParkedLanes(msgspec.Struct, gc=False):
    """Answer: a list of `ParkedLane`, the longest parked first."""

    op: ClassVar[str] = "outbox_parked"
    limit: int
    lane: bytes | None = None


class Unpark(msgspec.Struct, gc=False):
    """Let the lane go on: from its first message, or (`skip`) from the one behind it.

    A skipped message is kept, with who and why; it is never published. Answer: was it parked?
    """

    op: ClassVar[str] = "outbox_unpark"
    lane: bytes
    skip: bool
    by: str
    why: str


OutboxRequest: TypeAlias = Prepare | Hold | Fetch | Settle | Rise | Backlog | ParkedLanes | Unpark


# --- where a message belongs -----------------------------------------------------------------


def lane_of(key: str | None, id: str) -> bytes:  # noqa: A002
    """The lane of a message: of its key, or its own."""
    name = b"key\0" + key.encode() if key is not None else b"id\0" + id.encode()
    return hashlib.sha256(b"twicesafe.outbox._outbox.lane.1\0" + name).digest()[:16]


def slot_of(lane: bytes) -> int:
    return lane[0] % SLOTS


def gate_of(lane: bytes) -> int:
    """Whoever adds to a lane with a key passes this gate until he commits."""
    return int.from_bytes(lane[1:3], "big") % GATES
