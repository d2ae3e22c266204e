"""Reads all records of a Redis store: SCAN names a slice of them, MGET reads it.

The server only looks up and sends; `scan_questions` decides here which records match. While the
server works on a slice, this process examines the one before (`ScanStep`). Every node is asked for
a slice at a time, all of them at the same time.

Results never travel with large records. The first records are measured, and only their heads are
read. If all records together have `SMALL` bytes on average, they are read whole: one MGET takes a
third of what as many GETRANGEs take. Otherwise, or if a server refuses MGET, the heads are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ..._values.records import Row
from ...stores._base import Program
from .key_scans import KeyScans
from .routed_commands import PlainCommand, ScanStep, ScriptCall
from .servers import Packed, slot_of
from .settings import Address

__all__ = ["NODES", "SLICE", "RecordScan", "RecordSlice", "ScanQuestion"]

FIRST: Final = 100
"""Keys in the first slice, of which the sizes are measured."""
SLICE: Final = 1000
"""Keys that are read at once: the server does nothing else meanwhile, for one or two milliseconds."""
TOGETHER: Final = 16
"""Records in one MGET. Valkey 9 loads this many keys of a command into the cache at once
(`prefetch-batch-max-size`). With 50 records in one MGET it takes a sixth more time, with 1,000 a third."""
SHARED: Final = 0.1
"""If more than this part of the names in a slice are not ours, the server leaves them out from then
on. Comparing every name with a pattern takes the server a fifth of the time of a SCAN."""
SMALL: Final = 1024
"""Bytes of a record: with larger ones, results would be most of what travels."""
ALLOWED: Final = 262_144
"""Bytes beside that: one large result among the first records says nothing about the rest."""
NODES: Final = 16
"""Nodes that are asked before it is known how many there are; a Cluster with more is asked for as many again."""


class RecordSlice(NamedTuple):
    """Some records as they were at this time of their node. A text is empty or None if the record is gone."""

    now: int
    names: Sequence[bytes]
    texts: Sequence[bytes | None]
    is_whole: bool
    """Else the texts are only as long as the questions need."""


class ScanQuestion(Protocol):
    """What is looked for in the records (`scan_questions`)."""

    head: int
    """How many bytes of each record it needs; 0: none."""

    unreadable: dict[str, None]
    """Ids, in hex, of records that cannot be read."""

    def take(self, part: RecordSlice) -> list[bytes]:
        """Examine these; the names of those that it has to see whole."""

    def take_rows(self, rows: list[tuple[int, Row]]) -> None:
        """Records that were read one by one, each with the time of its node."""

    def take_trails(self, names: list[bytes]) -> None:
        """Audit trails that were found."""


class _Node:
    """How far a node was read."""

    __slots__ = ("cursor", "is_listed", "names")

    def __init__(self) -> None:
        self.cursor, self.is_listed = b"0", False
        self.names: list[bytes] = []
        """Not read yet."""


class RecordScan:
    """One scan of all nodes, for some questions."""

    def __init__(self, programs: KeyScans, questions: Sequence[ScanQuestion]) -> None:
        self._programs, self._questions = programs, questions
        self._head = max(one.head for one in questions)
        self._nodes = {number: _Node() for number in range(NODES)}
        self._servers: dict[int, Address] = {}
        self._arrived: list[RecordSlice] = []
        self._measured = self._bytes = 0
        self._is_refused = self._is_shared = False
        self.unsure: list[tuple[Sequence[ScanQuestion], list[bytes]]] = []
        """Records that are to be read one by one, and for which questions."""

    def step(self) -> Program[bool]:
        """Read what the last step listed, and list more. False: that was all."""
        is_whole, asked = self._is_whole(), []
        calls = ScanStep(self._examine, self._servers)
        for number, node in self._nodes.items():
            groups, reads = self._reads(number, node.names, is_whole)
            asked.append((number, node, groups))
            calls += reads
            if not node.is_listed:
                pattern = (b"MATCH", self._programs.before + b"*") if self._is_shared else ()
                count = FIRST if node.cursor == b"0" else SLICE
                line = (b"SCAN", node.cursor, *pattern, b"COUNT", count)
                calls.append(PlainCommand(line, node=number))
        replies = iter((yield calls) if calls else ())
        self._examine()  # if that was not done meanwhile
        self._nodes = {}
        for number, node, groups in asked:
            node.names = self._received(groups, replies, is_whole) if groups else []
            if not node.is_listed and not self._listed(number, node, _checked(next(replies))):
                continue
            if node.names or not node.is_listed:
                self._nodes[number] = node
        return bool(self._nodes or self._arrived)

    def _is_whole(self) -> bool:
        limit = SMALL * self._measured + ALLOWED
        return bool(self._measured) and not self._is_refused and self._bytes <= limit

    def _reads(
        self, number: int, names: list[bytes], is_whole: bool
    ) -> tuple[list[list[bytes]], list[Any]]:
        """Names that are read with one command, and the commands."""
        if not names or not self._head:
            return [], []
        # The time first: a lease that is over then was over when it was read.
        now = ScriptCall(self._programs.scripts.now, (), (), node=number)
        groups = [names]
        if is_whole:
            groups = _groups(_by_slot(names) if self._programs.apart else groups)
            packed = Packed(b"".join(map(_together, groups)), len(groups))
        else:
            packed = Packed(_each(b"GETRANGE", names, b"0", b"%d" % (self._head - 1)), len(names))
            if not self._measured:
                packed = Packed(packed.data + _each(b"STRLEN", names), 2 * len(names))
        return groups, [now, PlainCommand(packed, node=number)]

    def _received(
        self, groups: list[list[bytes]], replies: Iterator[Any], is_whole: bool
    ) -> list[bytes]:
        """Keep what came; the names that are to be read again, in the other way."""
        now, answers, again = _checked(next(replies)), _checked(next(replies)), list[bytes]()
        if not is_whole:
            self._take_heads(now, groups[0], answers)
            return again
        read, texts = list[bytes](), list[bytes | None]()
        for names, some in zip(groups, answers, strict=True):
            if isinstance(some, Exception):
                self._is_refused = True  # by the server, for this user, or because a slot moves
                again += names
            else:
                read += names
                texts += some
        self._measure(len(read), map(len, filter(None, texts)))
        self._arrived.append(RecordSlice(now, read, texts, True))
        return again

    def _take_heads(self, now: int, names: list[bytes], texts: list[Any]) -> None:
        if len(texts) > len(names):
            sizes = texts[len(names) :]
            self._is_refused = any(isinstance(size, Exception) for size in sizes)
            self._measure(len(names), (size for size in sizes if isinstance(size, int)))
            del texts[len(names) :]
        failed = [name for name, t in zip(names, texts, strict=True) if isinstance(t, Exception)]
        if failed:  # their slot moves, or this user may not: ask for them as for one key
            self.unsure.append((self._questions, failed))
            texts = [None if isinstance(text, Exception) else text for text in texts]
        self._arrived.append(RecordSlice(now, names, texts, False))

    def _measure(self, count: int, sizes: Iterator[int]) -> None:
        self._measured += count
        self._bytes += sum(sizes)

    def _listed(self, number: int, node: _Node, reply: Any) -> bool:
        """Take the reply to SCAN. False: the server has no node of this number."""
        if reply is None:
            return False
        if (number + 1) % NODES == 0 and node.cursor == b"0":
            self._nodes |= {other: _Node() for other in range(number + 1, number + 1 + NODES)}
        node.cursor, found = reply
        node.is_listed = node.cursor == b"0"
        names = self._programs.records_among(found)
        before = self._programs.before
        length = len(before) + 33
        if len(names) < len(found):
            found = [name for name in found if name.startswith(before)]
            self._is_shared |= len(found) < (1 - SHARED) * len(reply[1])
            trails = [name for name in found if len(name) == length + 1 and name.endswith(b"}a")]
            for one in self._questions:
                one.take_trails(trails)
        node.names += names if self._head else []
        return True

    def _examine(self) -> None:
        """Called while the server works on the next slices."""
        arrived, self._arrived = self._arrived, []
        for part in arrived:
            for one in self._questions:
                if names := one.take(part):
                    self.unsure.append(([one], names))


def _by_slot(names: list[bytes]) -> list[list[bytes]]:
    """A Cluster refuses an MGET of several slots. Its SCAN lists one slot after the other."""
    groups: dict[int, list[bytes]] = {}
    for name in names:
        groups.setdefault(slot_of(name), []).append(name)
    return list(groups.values())


def _groups(parts: list[list[bytes]]) -> list[list[bytes]]:
    return [part[at : at + TOGETHER] for part in parts for at in range(0, len(part), TOGETHER)]


def _together(names: list[bytes]) -> bytes:
    """One MGET, as the server reads it. All names have the same length."""
    size = b"\r\n$%d\r\n" % len(names[0])
    return b"*%d\r\n$4\r\nMGET" % (1 + len(names)) + size + size.join(names) + b"\r\n"


def _each(command: bytes, names: list[bytes], *args: bytes) -> bytes:
    """This command for each name."""
    begin = b"*%d\r\n$%d\r\n%b\r\n" % (2 + len(args), len(command), command)
    begin += b"$%d\r\n" % len(names[0])
    end = b"\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(arg), arg) for arg in args)
    return begin + (end + begin).join(names) + end


def _checked(reply: Any) -> Any:
    if isinstance(reply, Exception):
        raise reply
    return reply
