"""What a scan looks for in each record: the newest rows, a number, the states, the audit trails.

Nearly all records are decided by their first bytes, in a few operations each: a million of them take a second.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from ..._core import lifecycle
from ..._core.protocol import AuditLog, Browse, Count, Filter, Page, Survey
from ..._core.record_filter import cursor_of, matches, place_in
from ..._values.records import AuditEntry, Row, State, Stats, moment
from ...errors import CorruptRecordError, SchemaVersionError
from ...stores._base import Program
from ..sql.commands import STATES, number_of, scope_prefix
from .error_messages import is_unreadable
from .key_scans import entries_of
from .record_layout import (
    COMPACT,
    ERROR,
    HEAD_BYTES,
    SCOPE,
    SPANS,
    UNREADABLE,
    head_of,
    row_of,
)
from .record_scan import RecordSlice
from .routed_commands import PlainCommand

if TYPE_CHECKING:
    from .key_search import KeySearch

__all__ = ["QUESTIONS", "rows_of"]

TO_VALUE: Final = 308
"""Of a record, so many bytes are read: the value of its key is in them."""
TRAILS: Final = 1000
"""Audit trails that are read in one round trip."""
COMPLETED: Final = COMPACT[1]
ALL: Final = range(256)
KNOWN: Final = range(16, 48)
"""First bytes of records in a layout that we know."""


class _Question:
    """What was found so far."""

    head = HEAD_BYTES
    is_enough = False
    """Whether the rest of the keys can be left out."""
    misses_none = False
    """Whether its answer must have the keys that move to another node meanwhile. It may be shown a key twice."""

    def __init__(self) -> None:
        self.unreadable: dict[str, None] = {}
        """Ids, in hex, of records that cannot be read. The others are found all the same."""

    def take(self, part: RecordSlice) -> list[bytes]:
        return []

    def take_rows(self, rows: list[tuple[int, Row]]) -> None:
        return

    def take_trails(self, names: list[bytes]) -> None:
        return


class _Search(_Question):
    """Records that meet all conditions, as `record_filter.matches` says."""

    def __init__(self, ask: Filter) -> None:
        super().__init__()
        self._ask = ask
        states = ask.states or STATES
        if ask.stuck:
            states = tuple({State.IN_PROGRESS}.intersection(states))
        numbers = {number_of(state) for state in states}
        numbers |= set(range(len(STATES), 16))  # those of damaged records
        self._firsts = frozenset(n for n in ALL if n not in KNOWN or n & 15 in numbers)
        """The first bytes of records that need a closer look. Those of an unknown layout do, to be named."""
        self._flags = frozenset(bytes([flags]) for flags in ALL if self._may_have(flags)) | {b""}
        self._newer, self._older = 0, 1 << 63
        """Only records that were created at these times or between them."""
        self._marked = b""
        if ask.value is not None:
            value = ask.value.encode(errors="surrogatepass")
            self._marked = bytes([len(value) & 255]) + value
            if len(value) > 255:  # no key is that long
                self._firsts = frozenset()
        self._scope = scope_prefix(ask.scope).encode() if ask.scope else b""
        if self._marked or self._scope:
            self.head = TO_VALUE + len(self._scope) + 2

    def _may_have(self, flags: int) -> bool:
        """Whether a record with this second byte may match."""
        ask = self._ask
        return (
            (ask.cause is None or flags & 7 == number_of(ask.cause))
            and (not ask.scope or bool(flags & SCOPE))
            and (not ask.error or bool(flags & ERROR))
        )

    def take(self, part: RecordSlice) -> list[bytes]:
        unsure, matching, digits = list[bytes](), self._matching, self._ask.digits
        for name, text in self._candidates(part):
            try:
                match = matching(name, text, part)
                if match is None or (match and self.found(name, text, part)):
                    unsure.append(name)
            except (*UNREADABLE, CorruptRecordError, SchemaVersionError):
                if _id(name).hex().startswith(digits):
                    self.unreadable[_id(name).hex()] = None
        return unsure

    def found(self, name: bytes, text: bytes, part: RecordSlice) -> bool:
        """This one matches. Whether it has to be read whole."""
        raise NotImplementedError

    def _candidates(self, part: RecordSlice) -> list[tuple[bytes, Any]]:
        """Nearly all that do not match are left out here."""
        firsts, flags = self._firsts, self._flags
        both: Iterable[tuple[bytes, Any]] = zip(part.names, part.texts, strict=True)
        if (needed := self._marked or self._scope) and part.is_whole:
            both = _containing(needed, part)
        if len(flags) < len(ALL):
            return [
                (name, text)
                for name, text in both
                if text and (text[1:2] in flags or text[0] not in KNOWN) and text[0] in firsts
            ]
        if self._newer:
            number, least = int.from_bytes, self._newer * 1000 << 8
            return [
                (name, text)
                for name, text in both
                if text
                and text[0] in firsts
                and (text[0] < COMPACT[0] or number(text[2:10], "little") >= least)
            ]
        return [(name, text) for name, text in both if text and text[0] in firsts]

    def _matching(self, name: bytes, text: bytes, part: RecordSlice) -> bool | None:
        """None: that is further behind in the record."""
        ask = self._ask
        _, created, changed, lease, expires, _, end = head_of(text)
        if text[0] & 15 >= len(STATES):
            raise ValueError("no such state")
        if (
            0 < expires <= part.now
            or not self._newer <= created <= self._older
            or (ask.changed_after is not None and changed < ask.changed_after)
            or (ask.changed_before is not None and changed >= ask.changed_before)
            or (ask.stuck and lease > part.now)
            or (ask.digits and not _id(name).hex().startswith(ask.digits[:64]))
            or (self._marked and not text.startswith(self._marked, end))
            or (self._scope and not text.startswith(self._scope, end + 3 + text[end]))
        ):
            return False
        if not ask.error:
            return True
        return row_of(_id(name), text).error.startswith(ask.error) if part.is_whole else None


class _Rows(_Search):
    """The newest rows that match."""

    misses_none = True

    def __init__(self, ask: Browse) -> None:
        super().__init__(ask)
        self._limit, self._before = ask.limit, place_in(ask.after)
        if self._before is not None:
            self._older = self._before[0]
        self._newest: dict[tuple[int, bytes], Row] = {}
        self._places: list[tuple[int, bytes]] = []
        """A heap of the same places, the oldest first."""

    def found(self, name: bytes, text: bytes, part: RecordSlice) -> bool:
        if part.is_whole:
            self._add(row_of(_id(name), text))
        return not part.is_whole

    def take_rows(self, rows: list[tuple[int, Row]]) -> None:
        for now, row in rows:
            if matches(row, self._ask, now):
                self._add(row)

    def _add(self, row: Row) -> None:
        newest, places, limit = self._newest, self._places, self._limit
        place = (row.created_at, row.id)
        if self._before is not None and place >= self._before:
            return
        if place not in newest:
            heapq.heappush(places, place)
        newest[place] = row
        if len(places) > limit + 1:
            del newest[heapq.heappop(places)]
        if len(places) > limit:
            self._newer = places[0][0]  # nothing older can be on this page now

    def answer(self, programs: KeySearch) -> Program[Page]:
        limit = self._limit
        shown = sorted(self._places, reverse=True)
        page = [self._newest[place] for place in shown[:limit]]
        after = cursor_of(page[-1]) if len(shown) > limit else ""
        ids, replies = yield from programs.read_all(page)
        whole = {row.id: row for _, row in rows_of(ids, replies, self.unreadable)}
        rows = [whole.get(row.id, row) for row in page if row.id.hex() not in self.unreadable]
        return Page(rows, after, tuple(self.unreadable))


class _Number(_Search):
    """How many match, up to a limit."""

    def __init__(self, ask: Count) -> None:
        super().__init__(ask)
        self._total = 0

    @property
    def is_enough(self) -> bool:  # type: ignore[override]
        return self._total >= self._ask.limit

    def found(self, name: bytes, text: bytes, part: RecordSlice) -> bool:
        self._total += 1
        return False

    def take_rows(self, rows: list[tuple[int, Row]]) -> None:
        self._total += sum(matches(row, self._ask, now) for now, row in rows)

    def answer(self, programs: KeySearch) -> Program[int]:
        yield from ()
        return min(self._ask.limit, self._total)


class _Statistics(_Question):
    """How many are in each state, and what is stuck."""

    def __init__(self, ask: Survey) -> None:
        super().__init__()
        self._counts = [0] * len(STATES)
        self._stuck, self._oldest = 0, -1

    def take(self, part: RecordSlice) -> list[bytes]:
        now, spans, completed = part.now, SPANS.unpack_from, 0
        for name, text in zip(part.names, part.texts, strict=True):
            if not text:
                continue
            try:
                if text[0] == COMPLETED:  # nearly all
                    both, after, low, high = spans(text)
                    completed += both // 256_000 + after + low + (high << 32) > now
                    continue
                _, _, changed, lease, expires, _, _ = head_of(text)
                if not 0 < expires <= now:
                    self._count(text[0] & 15, changed, lease <= now)
            except UNREADABLE:
                self.unreadable[_id(name).hex()] = None
        self._counts[number_of(State.COMPLETED)] += completed
        return []

    def take_rows(self, rows: list[tuple[int, Row]]) -> None:
        for now, row in rows:
            self._count(number_of(row.state), row.changed_at, row.lease_until <= now)

    def _count(self, state: int, changed: int, is_over: bool) -> None:
        self._counts[state] += 1
        if STATES[state] is State.IN_PROGRESS:
            self._stuck += is_over
            self._oldest = changed if self._oldest < 0 else min(self._oldest, changed)

    def answer(self, programs: KeySearch) -> Program[Stats]:
        yield from ()
        return Stats(
            by_state={state: n for state, n in zip(STATES, self._counts, strict=True) if n},
            unreadable=len(self.unreadable),
            stuck=self._stuck,
            expired=0,  # expired records are not counted: they disappear by themselves
            oldest_in_progress=None if self._oldest < 0 else moment(self._oldest),
        )


class _Trails(_Question):
    """The last entries of all audit trails: there are as many as keys on which an operator acted."""

    head = 0

    def __init__(self, ask: AuditLog) -> None:
        super().__init__()
        self._ask = ask
        self._names: dict[bytes, None] = {}

    def take_trails(self, names: list[bytes]) -> None:
        self._names |= dict.fromkeys(names)

    def answer(self, programs: KeySearch) -> Program[list[AuditEntry]]:
        first, newest, names = moment(self._ask.since), list[AuditEntry](), list(self._names)
        for start in range(0, len(names), TRAILS):
            some = names[start : start + TRAILS]
            replies = yield [PlainCommand((b"LRANGE", name, 0, -1), name) for name in some]
            for name, reply in zip(some, replies, strict=True):
                entries = entries_of(name[-34:-2], reply)
                newest += [entry for entry in entries if entry.at >= first]
            newest.sort(key=attrgetter("at"))
            del newest[: -self._ask.limit]
        newest.reverse()
        return (yield from programs.with_keys(newest))


QUESTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "browse": _Rows,
    "count": _Number,
    "survey": _Statistics,
    "audit_log": _Trails,
}
"""Requests that one scan can answer together."""


def _id(name: bytes) -> bytes:
    return name[-33:-1]


def _containing(needed: bytes, part: RecordSlice) -> list[tuple[bytes, bytes]]:
    """The records that contain these bytes, and perhaps a few others. One search through all of
    them takes a third of the time of a search in each."""
    texts = [text or b"" for text in part.texts]
    joined, ends, found = b"".join(texts), list[int](), list[tuple[bytes, bytes]]()
    at = joined.find(needed)
    while at >= 0:
        ends = ends or list(accumulate(map(len, texts)))
        number = bisect_right(ends, at)
        found.append((part.names[number], texts[number]))
        at = joined.find(needed, ends[number])
    return found


def rows_of(
    ids: list[bytes], replies: list[Any], others: dict[str, None]
) -> Iterator[tuple[int, Row]]:
    """The rows in replies of `peek` and `read`, each with the time of its node. Missing records are
    left out. The names of those that cannot be read are added to ``others``."""
    for id_, reply in zip(ids, replies, strict=True):
        if isinstance(reply, Exception):
            if not is_unreadable(reply):
                raise reply
            others[id_.hex()] = None
            continue
        if len(reply) == 1:
            continue
        try:
            row = row_of(id_, reply[1])
        except (CorruptRecordError, SchemaVersionError):
            others[id_.hex()] = None
            continue
        if not lifecycle.is_expired(row, reply[0]):
            yield reply[0], row
