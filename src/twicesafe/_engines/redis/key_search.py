"""The programs that search all keys of a Redis store: browse, count, survey, and the audit log.

Redis keeps no order and no index that a claim would not pay for, so each search is one scan over all
keys. `search.lua` decides on the server which records match, and only those are sent: the server is
busy for a few milliseconds at a time. The nodes of a Cluster are searched at the same time. A scan may see a key
twice while the server's table grows; a page shows it once, a count may count it twice.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
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

__all__ = ["KeySearch"]

SLICE: Final = 1000
"""Keys that one call of the script examines: the server does nothing else meanwhile."""
NODES: Final = 16
"""Nodes that are asked before it is known how many there are; a Cluster with more is asked for as many again."""
TRAILS: Final = 10_000
"""Keys examined in one SCAN for audit trails: few of them are trails, and only those are sent."""


class KeySearch(KeyScans):
    """The base class of `RedisPrograms`."""

    def browse(self, ask: Browse) -> Program[Page]:
        before = _place(ask.after)
        want = _conditions(ask)
        if before is not None:
            want["older"] = before[0]
        newest: dict[tuple[int, bytes], Row] = {}
        scan = _Scan(self, b"rows", ask.digits)
        while slices := (yield from scan.step(want)):
            some = yield from self._elsewhere(scan.elsewhere)
            for now, found in slices:
                some += _rows(found[::2], [(now, text) for text in found[1::2]])
            for at, row in some:
                place = (row.created_at, row.id)
                if (before is None or place < before) and matches(row, ask, at):
                    newest[place] = row
            if len(newest) > ask.limit:
                newest = dict(heapq.nlargest(ask.limit + 1, newest.items(), key=_by_place))
                want["newer"] = min(newest)[0]  # nothing older can be on this page any more
        shown = heapq.nlargest(ask.limit + 1, newest.items(), key=_by_place)
        page = [row for _, row in shown[: ask.limit]]
        after = f"{page[-1].created_at}.{page[-1].id.hex()}" if len(shown) > ask.limit else ""
        whole = {row.id: row for _, row in _rows(*(yield from self._read_all(page)))}
        return Page([whole.get(row.id, row) for row in page], after)

    def count(self, ask: Count) -> Program[int]:
        want, total = _conditions(ask), 0
        scan = _Scan(self, b"count", ask.digits)
        while total < ask.limit and (slices := (yield from scan.step(want))):
            others = yield from self._elsewhere(scan.elsewhere)
            total += sum(matched for _, matched in slices)
            total += sum(matches(row, ask, now) for now, row in others)
        return min(ask.limit, total)

    def survey(self, ask: Survey) -> Program[Stats]:
        counts = [0] * len(STATES)
        stuck, oldest = 0, -1
        scan = _Scan(self, b"survey")
        while slices := (yield from scan.step({})):
            running: list[int] = []
            for _, (*some, late, first) in slices:
                counts = [a + b for a, b in zip(counts, some[: len(counts)], strict=True)]
                stuck += late
                running += [first] if first >= 0 else []
            for now, row in (yield from self._elsewhere(scan.elsewhere)):
                counts[number_of(row.state)] += 1
                if row.state is State.IN_PROGRESS:
                    stuck += row.lease_until <= now
                    running.append(row.changed_at)
            oldest = min([*running, *([oldest] if oldest >= 0 else [])], default=-1)
        return Stats(
            by_state={state: n for state, n in zip(STATES, counts, strict=True) if n},
            stuck=stuck,
            expired=0,  # expired records are not counted: they disappear by themselves
            oldest_in_progress=None if oldest < 0 else moment(oldest),
        )

    def _elsewhere(self, ids: list[bytes]) -> Program[list[tuple[int, Row]]]:
        """Records that the node of the scan could not read: their slot moves, or the user may not."""
        if not ids:
            return []
        replies = yield [ScriptCall(self.scripts.peek, (self.key(id_),), ()) for id_ in ids]
        return list(_rows(ids, replies))

    def _read_all(self, page: list[Row]) -> Program[tuple[list[bytes], list[Any]]]:
        """Read the rows of the page with their results; the scan reads all rows without."""
        ids = [row.id for row in page if row.result is not None]
        if not ids:
            return [], []
        return ids, (yield [ScriptCall(self.scripts.read, (self.key(id_),), ()) for id_ in ids])

    # -- the audit log ------------------------------------------------------------------------

    def audit_log(self, ask: AuditLog) -> Program[list[AuditEntry]]:
        """All trails, found by a scan: there are as many as keys on which an operator acted."""
        first = moment(ask.since)
        newest: list[AuditEntry] = []
        node = cursor = 0
        seen: set[bytes] = set()
        while (found := (yield from self._scan(node, cursor, TRAILS, b"}a"))) is not None:
            cursor, ids = found
            node += not cursor
            ids = [id_ for id_ in ids if id_ not in seen]
            if ids:
                seen.update(ids)
                trails = [self.trail(id_) for id_ in ids]
                replies = yield [PlainCommand((b"LRANGE", key, 0, -1), key) for key in trails]
                for id_, reply in zip(ids, replies, strict=True):
                    newest += [entry for entry in entries_of(id_, reply) if entry.at >= first]
                newest.sort(key=attrgetter("at"))
                del newest[: -ask.limit]
        newest.reverse()
        return (yield from self._with_keys(newest))

    def _with_keys(self, entries: list[AuditEntry]) -> Program[list[AuditEntry]]:
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

    def __init__(self, programs: KeyScans, what: bytes, digits: str = "") -> None:
        self._programs, self._what = programs, what
        self._first = bytes.fromhex(digits[: len(digits) // 2 * 2])
        self._cursors = dict.fromkeys(range(NODES), b"0")
        """Of the nodes that have more, or may exist."""
        self.elsewhere: list[bytes] = []
        """Ids of the last slices that their nodes could not read."""

    def step(self, want: dict[str, Any]) -> Program[list[tuple[int, Any]]]:
        """The time of each node and its answer; none: that was all."""
        before = self._programs.before
        conditions = msgspec.msgpack.encode(want)
        asked, self._cursors = self._cursors, {}
        calls = []
        for node, cursor in asked.items():
            args = (before + b"*", cursor, SLICE, len(before), self._what, conditions, self._first)
            calls.append(ScriptCall(self._programs.scripts.search, (), args, node=node))
        if not calls:
            return []
        answers: list[tuple[int, Any]] = []
        self.elsewhere = []
        for node, reply in zip(asked, (yield calls), strict=True):
            if isinstance(reply, Exception):
                raise reply
            if reply is None:  # there is no such node
                continue
            now, cursor, elsewhere, answer = reply
            if cursor != b"0":
                self._cursors[node] = cursor
            if (node + 1) % NODES == 0 and asked[node] == b"0":
                self._cursors |= dict.fromkeys(range(node + 1, node + 1 + NODES), b"0")
            self.elsewhere += elsewhere
            answers.append((now, answer))
        return answers


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
    }
    if len(ask.digits) % 2:  # half of the byte that follows the whole ones
        want["half"] = int(ask.digits[-1], 16)
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


def _by_place(item: tuple[tuple[int, bytes], Row]) -> tuple[int, bytes]:
    return item[0]


def _place(after: str) -> tuple[int, bytes] | None:
    if not after:
        return None
    created, _, id_ = after.partition(".")
    return int(created), bytes.fromhex(id_)
