"""Messages, from their transaction to the broker: what the world knows of each.

Numbers are drawn when a message is added, and seen when its transaction commits. So rows with lower
numbers come in late, as on PostgreSQL and MariaDB; within a lane the gate keeps them in order. The
engine below has one writer at a time and cannot show this by itself: a row is written with its number
at the moment of its commit.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from twicesafe._core.outbox_requests import Added, Message, lane_of, slot_of

if TYPE_CHECKING:
    from .broker import Call
    from .plan import Post
    from .world import World

__all__ = ["KEYS", "Letter", "Office"]


def _keys() -> list[str]:
    """Four keys: two that share a slot, one beside them, one that another relay holds."""
    names = [f"key-{number}" for number in range(400)]
    slots = {name: slot_of(lane_of(name, "")) for name in names}
    shared = [name for name in names if slots[name] == 40]
    return [*shared[:2], *(next(n for n in names if slots[n] == slot) for slot in (60, 10))]


KEYS: Final = _keys()


class Letter:
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
        """How often a relay was told so, of this message alone."""
        self.settled_by: bool | None = None
        """Its row was deleted: by the relay that held its slot then?"""
        self.skipped_at: float | None = None


class Office:
    """Where transactions add messages and commit."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._drawn = 0
        self.open = len(world.plan.posts)
        """Transactions that have not ended."""
        self._gates: dict[bytes, deque[Letter]] = {}
        self.letters: dict[str, Letter] = {}
        """By id: those that were committed."""
        self.by_number: dict[int, Letter] = {}
        self.lanes: dict[bytes, list[Letter]] = {}
        self._highest = 0

    def post(self, post: Post, number: int) -> None:
        letter = Letter(post, number)
        if post.key >= 0:
            if letter.lane in self._gates:  # somebody passed and has not committed yet
                self._gates[letter.lane].append(letter)
                return
            self._gates[letter.lane] = deque()
        self._add(letter)

    def _add(self, letter: Letter) -> None:
        self._drawn += 1
        letter.n = self._drawn
        if letter.post.lasts:
            self._world.after(letter.post.lasts, None, self._end, letter)
        else:
            self._end(letter)

    def _end(self, letter: Letter) -> None:
        world = self._world
        if letter.post.rolled_back:
            world.seen["outcome", "rolled back"] += 1
        else:
            self._commit(letter)
        if letter.post.key >= 0:
            queue = self._gates[letter.lane]
            if queue:
                self._add(queue.popleft())
            else:
                del self._gates[letter.lane]
        self.open -= 1
        world.ending.look()

    def _commit(self, letter: Letter) -> None:
        world, message = self._world, letter.message
        if letter.n < self._highest:
            world.seen["outcome", "committed late"] += 1
        self._highest = max(self._highest, letter.n)
        lane = self.lanes.setdefault(letter.lane, [])
        letter.place = len(lane)
        lane.append(letter)
        self.letters[message.id] = self.by_number[letter.n] = letter
        added = Added(message, letter.lane, "type", "{}", message.key is not None)
        sleepers = world.table.commit(letter.n, added)
        if world.say:
            world.say(f"+  {message.id} is row {letter.n}, lane {name_of(letter)}")
        for owner in sleepers:
            if letter.post.unheard and world.faulty:
                world.seen["outcome", "wake-up lost"] += 1
            else:
                world.ring(owner)


def name_of(letter: Letter) -> str:
    return letter.message.key or f"of {letter.message.id} alone"
