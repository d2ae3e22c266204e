"""The keys of slots that move to another node of a Cluster while a search reads it.

A search may be past their slot on the new node when they arrive, and reach their slot on the old
node when they are gone. So it asks before and after which slots each node has, and which of them
are moving, and reads the keys of these slots once more. A slot that moved there and back again in
between is not noticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ...errors import ConfigurationError, StoreUnavailableError
from ...stores._base import Program
from .record_scan import NODES
from .routed_commands import PlainCommand

__all__ = ["TOGETHER", "Placement", "keys_in", "placement"]

TOGETHER: Final = 50
"""Slots that are listed in one round trip."""
MOST: Final = 10_000
"""Keys of a slot: a node lists them in one or two milliseconds."""


class Placement(NamedTuple):
    """Which slots each node has, by its id, and which slots are on their way."""

    slots: dict[bytes, frozenset[int]]
    moving: frozenset[int]

    def moved_until(self, after: Placement) -> list[int]:
        """The slots whose keys may have moved between this placement and a later one."""
        found = self.moving | after.moving
        for node, slots in after.slots.items():
            found |= slots - self.slots.get(node, frozenset())
        return sorted(found)


def placement() -> Program[Placement]:
    slots, moving = dict[bytes, frozenset[int]](), set[int]()
    while True:
        first = len(slots)
        replies = yield [
            PlainCommand((b"CLUSTER", b"NODES"), node=node) for node in range(first, first + NODES)
        ]
        for reply in replies:
            if reply is None:
                return Placement(slots, frozenset(moving))
            if isinstance(reply, Exception):
                raise reply
            node, has = _own(reply)
            slots[node] = frozenset(_numbers(has))
            # [93-<-node] arrives from there, [93->-node] goes there.
            moving |= {int(word[1:].partition(b"-")[0]) for word in has if word.startswith(b"[")}


def _own(reply: bytes) -> tuple[bytes, list[bytes]]:
    """The id and the slots of the node that answered: only it knows which of its slots move."""
    lines = [line.split() for line in reply.splitlines()]
    mine = next((line for line in lines if b"myself" in line[2].split(b",")), [b""])
    return mine[0], mine[8:]


def _numbers(words: list[bytes]) -> Iterator[int]:
    for word in words:
        if not word.startswith(b"["):
            first, _, last = word.partition(b"-")
            yield from range(int(first), int(last or first) + 1)


def keys_in(slots: list[int], nodes: int) -> Program[list[bytes]]:
    """The keys of these slots on all nodes. A user who may not list them gets none."""
    names = dict[bytes, None]()
    for _ in range(2):  # the second time, a key that moved during the first is on its new node
        calls: list[Any] = [
            PlainCommand((b"CLUSTER", b"GETKEYSINSLOT", slot, MOST), node=node)
            for node in range(nodes)
            for slot in slots
        ]
        for call, found in zip(calls, (yield calls), strict=True):
            if isinstance(found, ConfigurationError):
                return []
            if isinstance(found, Exception):
                raise found
            if len(found or ()) == MOST:
                raise StoreUnavailableError(
                    f"slot {call.args[2]} moves to another node, and has {MOST:,} keys or more: search again later"
                )
            names |= dict.fromkeys(found or ())
    return list(names)
