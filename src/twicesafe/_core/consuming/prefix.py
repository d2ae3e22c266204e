"""The part of a partition that may be committed: all before the first message that is not done.

Kafka keeps one number per partition and group: all messages before it are done. So a message that
is done early waits, uncommitted, until every message before it is done. Only the unsettled offsets
are kept. So a message that is retried for hours holds back the commit, but memory does not grow.

    fetched   5 6 7 8 9
    settled     6 7   9      →  commit nothing: 5 is not done
    settled   5 6 7   9      →  commit 8: 5, 6 and 7 are done

A `Prefix` belongs to one assignment of one partition. When the partition is taken away, or when its log
goes back (an unclean election cut it), the prefix is closed. Settling a message of a closed prefix
changes nothing, so a late worker never commits for a partition that is no longer ours.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

__all__ = ["Prefix", "Prefixes"]


class Prefix:
    """The unsettled offsets of one partition, during one assignment."""

    __slots__ = ("_committed", "_next", "_unsettled", "confirmed", "first", "is_open")

    def __init__(self) -> None:
        self._unsettled: OrderedDict[int, None] = OrderedDict()
        self._next: int | None = None
        """The offset after all that were fetched; None: nothing was fetched."""
        self._committed: int | None = None
        self.first: int | None = None
        """The offset of the first message."""
        self.confirmed: int | None = None
        """The offset that the broker has accepted last."""
        self.is_open = True

    def fetch(self, offset: int) -> bool:
        """A message was fetched; False: the log went back, and this prefix does not apply to it."""
        if self._next is not None and offset < self._next:
            return False
        if self._next is None:
            self._committed = self.first = offset  # the group starts here
        self._next = offset + 1
        self._unsettled[offset] = None
        return True

    def end(self, offset: int) -> None:
        """All messages before this offset were fetched; what comes after the last one are markers of transactions."""
        if self._next is not None:
            self._next = max(self._next, offset)

    def settle(self, offset: int) -> None:
        """Mark this message as done. Doing it twice changes nothing."""
        self._unsettled.pop(offset, None)

    def due(self) -> int | None:
        """The offset to commit: that of the first message that is not done; None: nothing new."""
        if not self.is_open or self._next is None:
            return None
        first = next(iter(self._unsettled), self._next)
        return None if first == self._committed else first

    def commit(self, offset: int) -> None:
        """The broker has accepted this offset."""
        self._committed = self.confirmed = offset

    def has_unsettled(self) -> bool:
        return bool(self._unsettled)

    def close(self) -> None:
        self.is_open = False
        self._unsettled.clear()


class Prefixes:
    """The prefixes of the partitions that are ours now."""

    def __init__(self) -> None:
        self._open: dict[str, Prefix] = {}

    def assign(self, partitions: Iterable[str]) -> None:
        """These partitions are ours, from where the group's commits are."""
        self.revoke(partitions := list(partitions))
        for partition in partitions:
            self._open[partition] = Prefix()

    def revoke(self, partitions: Iterable[str]) -> None:
        """This consumer no longer has these partitions."""
        for partition in partitions:
            if partition in self._open:
                self._open.pop(partition).close()

    def fetch(self, partition: str, offset: int) -> Prefix | None:
        """Where to settle this message later; None: its partition is not ours."""
        prefix = self._open.get(partition)
        if prefix is None or prefix.fetch(offset):
            return prefix
        self.assign([partition])
        return self.fetch(partition, offset)

    def end(self, partition: str, offset: int) -> bool:
        """The log has no more messages before this offset; True: there is something to commit."""
        prefix = self._open.get(partition)
        if prefix is None:
            return False
        prefix.end(offset)
        return prefix.due() is not None

    def due(self, partitions: Iterable[str] | None = None) -> list[tuple[str, Prefix, int]]:
        """What to commit, of these partitions or of all; then call `Prefix.commit` for each."""
        names = self._open if partitions is None else [p for p in partitions if p in self._open]
        found = [(name, self._open[name], self._open[name].due()) for name in names]
        return [(name, prefix, offset) for name, prefix, offset in found if offset is not None]

    def lost(self, offsets: Mapping[str, int]) -> dict[str, int]:
        """Partitions for which the broker has confirmed more than these offsets, and where each continues."""
        return {
            name: max(offsets[name], prefix.first or 0)
            for name, prefix in self._open.items()
            if prefix.confirmed is not None and offsets[name] < prefix.confirmed
        }

    def partitions(self) -> frozenset[str]:
        return frozenset(self._open)

    def has_unsettled(self) -> bool:
        return any(prefix.has_unsettled() for prefix in self._open.values())
