"""Messages, from their transaction to the broker: what the world knows of each.

Numbers are drawn when a message is added, and seen when its transaction commits. So rows with lower
numbers come in late, as on PostgreSQL and MariaDB; within a lane the gate keeps them in order. The
engine below has one writer at a time and cannot show this by itself: a row is written with its number
at the moment of its commit.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from twicesafe._core.outbox.requests import Added, Message, lane_of, slot_of

if TYPE_CHECKING:
    from .broker import Call
    from .plan import Post
    from .world import World

__all__ = ["KEYS", "TrackedMessage", "Writers"]


def _keys() -> list[str]:
    """Four keys: two that share a slot, one beside them, one that another relay holds."""
    names = [f"key-{number}" for number in range(400)]
    slots = {name: slot_of(lane_of(name, "")) for name in names}
    shared = [name for name in names if slots[name] == 40]
    return [*shared[:2], *(next(n for n in names if slots[n] == slot) for slot in (60, 10))]


KEYS: Final = _keys()


class TrackedMessage:
    """One message: where it stands, and what became of it."""

    __slots__ = (
        "calls", "lane", "message", "n", "place", "post", "refusals", "refused", "settled_by",
        "skipped_at", "slot",
    )  # fmt: skip

    def __init__(self, post: Post, number: int) -> None:
        self.post = post
        key = None if post.key < 0 else KEYS[post.key]
        id_ = f"m{number}"
        self.message = Message(id_, "topic", b"%d" % number, key)
        self.lane = lane_of(key, id_)
        self.slot = slot_of(self.lane)
        self.n = 0
        self.place = -1
        """In its lane, once it is committed."""
        self.calls: list[Call] = []
        """Those that published it."""
        self.refused = 0
        """How often the broker did."""
        self.refusals = 0
        """How often a relay got a refusal of this message alone."""
        self.settled_by: bool | None = None
        """Its row was deleted: by the relay that held its slot then?"""
        self.skipped_at: float | None = None


class Writers:
    """Where transactions add messages and commit."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._drawn = 0
        self.open = len(world.plan.posts)
        """Transactions that have not ended."""
        self._gates: dict[bytes, deque[TrackedMessage]] = {}
        self.messages: dict[str, TrackedMessage] = {}
        """By id: those that were committed."""
        self.by_number: dict[int, TrackedMessage] = {}
        self.lanes: dict[bytes, list[TrackedMessage]] = {}
        self._highest = 0
        self._unplanned = 0

    def add(self, post: Post) -> None:
        """One that was not planned."""
        self.open += 1
        self._unplanned += 1
        self.post(post, len(self._world.plan.posts) + self._unplanned)

    def post(self, post: Post, number: int) -> None:
        tracked = TrackedMessage(post, number)
        if post.key >= 0:
            if tracked.lane in self._gates:  # another writer passed and has not committed yet
                self._gates[tracked.lane].append(tracked)
                return
            self._gates[tracked.lane] = deque()
        self._add(tracked)

    def _add(self, tracked: TrackedMessage) -> None:
        self._drawn += 1
        tracked.n = self._drawn
        if tracked.post.lasts:
            self._world.after(tracked.post.lasts, None, self._end, tracked)
        else:
            self._end(tracked)

    def _end(self, tracked: TrackedMessage) -> None:
        world = self._world
        if tracked.post.rolled_back:
            world.seen["outcome", "rolled back"] += 1
        else:
            self._commit(tracked)
        if tracked.post.key >= 0:
            queue = self._gates[tracked.lane]
            if queue:
                self._add(queue.popleft())
            else:
                del self._gates[tracked.lane]
        self.open -= 1
        world.ending.look()

    def _commit(self, tracked: TrackedMessage) -> None:
        world, message = self._world, tracked.message
        if tracked.n < self._highest:
            world.seen["outcome", "committed late"] += 1
        self._highest = max(self._highest, tracked.n)
        lane = self.lanes.setdefault(tracked.lane, [])
        tracked.place = len(lane)
        lane.append(tracked)
        self.messages[message.id] = self.by_number[tracked.n] = tracked
        added = Added(message, tracked.lane, "type", "{}", message.key is not None)
        sleepers = world.table.commit(tracked.n, added)
        if world.say:
            world.say(f"+  {message.id} is row {tracked.n}, lane {name_of(tracked)}")
        for owner in sleepers:
            if tracked.post.unheard and world.faulty:
                world.seen["outcome", "wake-up lost"] += 1
            else:
                world.ring(owner)


def name_of(tracked: TrackedMessage) -> str:
    return tracked.message.key or f"of {tracked.message.id} alone"
