"""The programs that search all keys of a Redis store: browse, count, survey, and the audit log.

Redis keeps no order and no index that a claim would not pay for, so each search is one scan over all
keys. `search.lua` decides on the server which records match, and only those are sent: the server is
busy for a few milliseconds at a time. The nodes of a Cluster are searched at the same time. A scan may see a key
twice while the server's table grows; a page shows it once, a count may count it twice.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from ..._core import lifecycle
from ..._core.protocol import AuditLog, Browse, Count, Filter, Page, Survey
from ..._core.record_filter import matches
from ..._values.records import AuditEntry, Row, State, Stats, moment
from ...stores._base import Program
from ..sql.commands import STATES, number_of, scope_prefix
from .key_scans import KeyScans, entries_of
from .record_layout import row_of
from .routing import PlainCommand, ScriptCall

__all__ = ["QUESTIONS", "KeySearch"]

SLICE: Final = 1000
"""Keys that one call of the script examines: the server does nothing else meanwhile."""
TOGETHER: Final = 30
"""Records that the script reads with one command; more take no less time."""
NODES: Final = 16
"""Nodes that are asked before it is known how many there are; a Cluster with more is asked for as many again."""
TRAILS: Final = 1000
"""Audit trails that are read in one round trip."""


class KeySearch(KeyScans):
    """The base class of `RedisPrograms`."""

    def browse(self, ask: Browse) -> Program[Page]:
        return (yield from self.search([ask]))[0]  # type: ignore[no-any-return]

    def count(self, ask: Count) -> Program[int]:
        return (yield from self.search([ask]))[0]  # type: ignore[no-any-return]

    def survey(self, ask: Survey) -> Program[Stats]:
        return (yield from self.search([ask]))[0]  # type: ignore[no-any-return]

    def audit_log(self, ask: AuditLog) -> Program[list[AuditEntry]]:
        return (yield from self.search([ask]))[0]  # type: ignore[no-any-return]

    def search(self, asks: Sequence[Any]) -> Program[list[Any]]:
        """Answer all these questions with one scan."""
        questions = [QUESTIONS[ask.op](ask) for ask in asks]
        scan = _Scan(self, (yield from self._at_once()))
        while answers := (yield from scan.step([one.want for one in questions])):
            others = yield from self._elsewhere(scan.elsewhere)
            for index, one in enumerate(questions):
                for now, some in answers:
                    one.take(now, some[index])
                one.take_rows(others)
            if all(one.is_enough for one in questions):
                break
        found: list[Any] = []
        for one in questions:
            found += [(yield from one.answer(self))]
        return found

    def _at_once(self) -> Program[int]:
        """How many records a script may read with one command. One in a Cluster, also if it has one node: a Valkey 9.1
        that is asked by a script for keys of several slots at once refuses all keys to all scripts from then on."""
        (reply,) = yield [PlainCommand((b"INFO", b"cluster"))]
        return TOGETHER if isinstance(reply, bytes) and b"cluster_enabled:0" in reply else 1

    def _elsewhere(self, ids: list[bytes]) -> Program[list[tuple[int, Row]]]:
        """Records that the node of the scan could not read: their slot moves, or the user may not."""
        if not ids:
            return []
        replies = yield [ScriptCall(self.scripts.peek, (self.key(id_),), ()) for id_ in ids]
        return list(_rows(ids, replies))

    def read_all(self, page: list[Row]) -> Program[tuple[list[bytes], list[Any]]]:
        """Read the rows of the page with their results; the scan reads all rows without."""
        ids = [row.id for row in page if row.result is not None]
        if not ids:
            return [], []
        return ids, (yield [ScriptCall(self.scripts.read, (self.key(id_),), ()) for id_ in ids])

    def with_keys(self, entries: list[AuditEntry]) -> Program[list[AuditEntry]]:
        if not entries:
            return []
        ids = sorted({entry.id for entry in entries})
        replies = yield [ScriptCall(self.scripts.peek, (self.key(id_),), ()) for id_ in ids]
        rows = {row.id: row for _, row in _rows(ids, replies)}
        return [
            replace(entry, scope=rows[entry.id].scope, value=rows[entry.id].value)
            if entry.id in rows
            else entry
            for entry in entries
        ]


class _Scan:
    """All keys: one slice of every node at a time. The nodes decide what matches."""

    def __init__(self, programs: KeyScans, at_once: int) -> None:
        self._programs, self._at_once = programs, at_once
        self._cursors = dict.fromkeys(range(NODES), b"0")
        """Of the nodes that have more, or may exist."""
        self.elsewhere: list[bytes] = []
        """Ids of the last slices that their nodes could not read."""

    def step(self, wants: list[dict[str, Any]]) -> Program[list[tuple[int, list[Any]]]]:
        """The time of each node and its answers; none: that was all."""
        before = self._programs.before
        questions = msgspec.msgpack.encode(wants)
        asked, self._cursors = self._cursors, {}
        calls = []
        for node, cursor in asked.items():
            args = (before + b"*", cursor, SLICE, len(before), self._at_once, questions)
            calls.append(ScriptCall(self._programs.scripts.search, (), args, node=node))
        if not calls:
            return []
        answers: list[tuple[int, list[Any]]] = []
        self.elsewhere = []
        for node, reply in zip(asked, (yield calls), strict=True):
            if isinstance(reply, Exception):
                raise reply
            if reply is None:  # there is no such node
                continue
            now, cursor, elsewhere, *some = reply
            if cursor != b"0":
                self._cursors[node] = cursor
            if (node + 1) % NODES == 0 and asked[node] == b"0":
                self._cursors |= dict.fromkeys(range(node + 1, node + 1 + NODES), b"0")
            self.elsewhere += elsewhere
            answers.append((now, some))
        return answers


class _Question:
    """What is looked for in each record, and what was found so far."""

    is_enough = False
    """Whether the rest of the keys can be left out."""

    def __init__(self, want: dict[str, Any]) -> None:
        self.want = want

    def take(self, now: int, some: Any) -> None:
        """A slice's answer, at this time of its node."""

    def take_rows(self, rows: list[tuple[int, Row]]) -> None:
        """Records that were read one by one, each with the time of its node."""


class _Rows(_Question):
    """The newest rows that match."""

    def __init__(self, ask: Browse) -> None:
        super().__init__({"what": "rows", **_conditions(ask)})
        self._ask, self._before = ask, _place(ask.after)
        if self._before is not None:
            self.want["older"] = self._before[0]
        self._newest: dict[tuple[int, bytes], Row] = {}
        self._places: list[tuple[int, bytes]] = []
        """A heap of the same places, the oldest first."""

    def take(self, now: int, some: Any) -> None:
        self.take_rows(list(_rows(some[::2], [(now, text) for text in some[1::2]])))

    def take_rows(self, rows: list[tuple[int, Row]]) -> None:
        newest, places, before, limit = self._newest, self._places, self._before, self._ask.limit
        for now, row in rows:
            place = (row.created_at, row.id)
            if (before is None or place < before) and matches(row, self._ask, now):
                if place not in newest:
                    heapq.heappush(places, place)
                newest[place] = row
                if len(places) > limit + 1:
                    del newest[heapq.heappop(places)]
        if len(places) > limit:
            self.want["newer"] = places[0][0]  # nothing older can be on this page any more

    def answer(self, programs: KeySearch) -> Program[Page]:
        limit = self._ask.limit
        shown = sorted(self._places, reverse=True)
        page = [self._newest[place] for place in shown[:limit]]
        after = f"{page[-1].created_at}.{page[-1].id.hex()}" if len(shown) > limit else ""
        whole = {row.id: row for _, row in _rows(*(yield from programs.read_all(page)))}
        return Page([whole.get(row.id, row) for row in page], after)


class _Number(_Question):
    """How many match, up to a limit."""

    def __init__(self, ask: Count) -> None:
        super().__init__({"what": "count", **_conditions(ask)})
        self._ask, self._total = ask, 0

    @property
    def is_enough(self) -> bool:  # type: ignore[override]
        return self._total >= self._ask.limit

    def take(self, now: int, some: Any) -> None:
        self._total += some

    def take_rows(self, rows: list[tuple[int, Row]]) -> None:
        self._total += sum(matches(row, self._ask, now) for now, row in rows)

    def answer(self, programs: KeySearch) -> Program[int]:
        yield from ()
        return min(self._ask.limit, self._total)


class _Statistics(_Question):
    """How many are in each state, and what is stuck."""

    def __init__(self, ask: Survey) -> None:
        super().__init__({"what": "survey"})
        self._counts = [0] * len(STATES)
        self._stuck, self._oldest = 0, -1

    def take(self, now: int, some: Any) -> None:
        *counts, late, first = some
        self._counts = [a + b for a, b in zip(self._counts, counts[: len(STATES)], strict=True)]
        self._stuck += late
        self._started(first)

    def take_rows(self, rows: list[tuple[int, Row]]) -> None:
        for now, row in rows:
            self._counts[number_of(row.state)] += 1
            if row.state is State.IN_PROGRESS:
                self._stuck += row.lease_until <= now
                self._started(row.changed_at)

    def _started(self, at: int) -> None:
        if at >= 0:
            self._oldest = at if self._oldest < 0 else min(self._oldest, at)

    def answer(self, programs: KeySearch) -> Program[Stats]:
        yield from ()
        return Stats(
            by_state={state: n for state, n in zip(STATES, self._counts, strict=True) if n},
            stuck=self._stuck,
            expired=0,  # expired records are not counted: they disappear by themselves
            oldest_in_progress=None if self._oldest < 0 else moment(self._oldest),
        )


class _Trails(_Question):
    """The last entries of all audit trails: there are as many as keys on which an operator acted."""

    def __init__(self, ask: AuditLog) -> None:
        super().__init__({"what": "trails"})
        self._ask = ask
        self._ids: dict[bytes, None] = {}

    def take(self, now: int, some: Any) -> None:
        self._ids |= dict.fromkeys(some)

    def answer(self, programs: KeySearch) -> Program[list[AuditEntry]]:
        first, newest, ids = moment(self._ask.since), list[AuditEntry](), list(self._ids)
        for start in range(0, len(ids), TRAILS):
            some = ids[start : start + TRAILS]
            trails = [programs.trail(id_) for id_ in some]
            replies = yield [PlainCommand((b"LRANGE", key, 0, -1), key) for key in trails]
            for id_, reply in zip(some, replies, strict=True):
                newest += [entry for entry in entries_of(id_, reply) if entry.at >= first]
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


def _conditions(ask: Filter) -> dict[str, Any]:
    """As `search.lua` reads them; those that are not given are left out."""
    want: dict[str, Any] = {
        "states": "".join("01"[state in ask.states] for state in STATES) if ask.states else None,
        "stuck": ask.stuck or None,
        "cause": None if ask.cause is None else number_of(ask.cause),
        "after": ask.changed_after,
        "before": ask.changed_before,
        "value": ask.value,
        "scope": scope_prefix(ask.scope) if ask.scope else None,
        "error": ask.error or None,
        "digits": ask.digits or None,
    }
    return {name: value for name, value in want.items() if value is not None}


def _rows(ids: list[bytes], replies: list[Any]) -> Iterator[tuple[int, Row]]:
    for id_, reply in zip(ids, replies, strict=True):
        if isinstance(reply, Exception):
            raise reply
        if len(reply) == 1:
            continue
        row = row_of(id_, reply[1])
        if not lifecycle.is_expired(row, reply[0]):
            yield reply[0], row


def _place(after: str) -> tuple[int, bytes] | None:
    if not after:
        return None
    created, _, id_ = after.partition(".")
    return int(created), bytes.fromhex(id_)
