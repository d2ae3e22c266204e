"""The names of keys, and the programs that go over all of them: browse, survey, sweep.

They use SCAN, never KEYS. A page of `browse` costs one scan over all records, because Redis keeps no
order, and every claim would have to pay for an index.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from ..._core import lifecycle
from ..._core.protocol import Browse, History, Page, Survey, Sweep
from ..._values.records import AuditEntry, Row, State, Stats, SweepReport, moment
from ...stores._base import Program
from ..sql.commands import STATES
from .record_layout import row_of
from .routing import PlainCommand, ScriptCall
from .scripts import Scripts

__all__ = ["KeyScans"]

STEP: Final = 500
"""Keys asked for in one SCAN."""
STEPS: Final = 100
"""SCANs in one step of a sweep at most: most keys of the server may be another application's."""


class KeyScans:
    """The base class of `RedisPrograms`."""

    def __init__(self, prefix: str, scripts: Scripts) -> None:
        self.scripts = scripts
        # A hash tag, so that a record, its audit trail and its channel are in one slot. The dot keeps
        # the tag from being empty when an id begins with "}".
        self._before = f"{prefix}:{{.".encode()

    def key(self, id: bytes) -> bytes:  # noqa: A002
        return self._before + id + b"}"

    def trail(self, id: bytes) -> bytes:  # noqa: A002
        return self._before + id + b"}a"

    def history(self, ask: History) -> Program[list[AuditEntry]]:
        key = self.trail(ask.id)
        (reply,) = yield [PlainCommand((b"LRANGE", key, 0, -1), key)]
        if isinstance(reply, Exception):
            raise reply
        entries = (msgspec.msgpack.decode(entry) for entry in reply)
        return [
            AuditEntry(
                id=ask.id, at=moment(at), action=what, by=by, why=why, state_before=STATES[state]
            )
            for at, what, by, why, state in entries
        ]

    def _scan(self, node: int, cursor: int, count: int) -> Program[tuple[int, list[bytes]] | None]:
        """One SCAN of a node: the next cursor (0: the end) and the ids; None: no such node."""
        pattern = self._before + b"*}"
        (reply,) = yield [
            PlainCommand((b"SCAN", cursor, b"MATCH", pattern, b"COUNT", count), node=node)
        ]
        if isinstance(reply, Exception):
            raise reply
        if reply is None:
            return None
        start, length = len(self._before), len(self._before) + 33
        ids = [key[start:-1] for key in reply[1] if len(key) == length]
        return int(reply[0]), ids

    def survey(self, ask: Survey) -> Program[Stats]:
        by_state: dict[State, int] = {}
        stuck = 0
        oldest: int | None = None
        seen: set[bytes] = set()
        scan = _FullScan(self)
        while (step := (yield from scan.step())) is not None:
            for now, row in step:
                if row.id in seen:
                    continue
                seen.add(row.id)
                by_state[row.state] = by_state.get(row.state, 0) + 1
                if row.state is State.IN_PROGRESS:
                    stuck += row.lease_until <= now
                    oldest = row.changed_at if oldest is None else min(oldest, row.changed_at)
        return Stats(
            by_state=by_state,
            stuck=stuck,
            expired=0,  # expired records are not counted: they disappear by themselves
            oldest_in_progress=None if oldest is None else moment(oldest),
        )

    def browse(self, ask: Browse) -> Program[Page]:
        before = _place(ask.after)
        newest: dict[tuple[int, bytes], Row] = {}
        scan = _FullScan(self)
        while (step := (yield from scan.step())) is not None:
            for _, row in step:
                place = (row.created_at, row.id)
                if (
                    (before is None or place < before)
                    and (ask.state is None or row.state is ask.state)
                    and row.scope[: len(ask.scope)] == ask.scope
                ):
                    newest[place] = row
            if len(newest) > 2 * (ask.limit + 1):
                newest = dict(heapq.nlargest(ask.limit + 1, newest.items(), key=_by_place))
        shown = heapq.nlargest(ask.limit + 1, newest.items(), key=_by_place)
        page = [row for _, row in shown[: ask.limit]]
        after = f"{page[-1].created_at}.{page[-1].id.hex()}" if len(shown) > ask.limit else ""
        whole = {row.id: row for _, row in _rows(*(yield from self._read_all(page)))}
        return Page([whole.get(row.id, row) for row in page], after)

    def _read_all(self, page: list[Row]) -> Program[tuple[list[bytes], list[Any]]]:
        """Read the rows of the page with their results; the scan reads all rows without."""
        ids = [row.id for row in page if row.result is not None]
        if not ids:
            return [], []
        return ids, (yield [ScriptCall(self.scripts.read, (self.key(id_),), ()) for id_ in ids])

    def sweep(self, ask: Sweep) -> Program[tuple[SweepReport, str]]:
        """One step: remove what a TTL should have removed. ``after``: node, cursor, keys to skip."""
        node, cursor, skip = (int(part) for part in (ask.after or "0.0.0").split("."))
        removed = examined = 0
        after = ""
        for _ in range(STEPS):
            found = yield from self._scan(node, cursor, STEP)
            if found is None:
                after = ""
                break
            following, ids = found
            part = ids[skip : skip + ask.limit - examined]
            due, left = part, ask.most - removed
            if len(part) > left:  # look first, so as not to remove too many
                replies = yield [self._swept(id_, b"look") for id_ in part]
                due = [id_ for id_, reply in zip(part, replies, strict=True) if reply == 1]
            gone = 0
            if due[:left]:
                swept = yield [self._swept(id_) for id_ in due[:left]]
                gone = sum(reply == 1 for reply in swept)
            examined += len(part)
            removed += gone
            if len(due) > left:
                after = f"{node}.{cursor}.{skip}"
                break
            if skip + len(part) < len(ids):
                after = f"{node}.{cursor}.{skip + len(part) - gone}"
                break
            node, cursor, skip = (node, following, 0) if following else (node + 1, 0, 0)
            after = f"{node}.{cursor}.0"
        return SweepReport(removed=removed, examined=examined, more=bool(after)), after

    def _swept(self, id_: bytes, how: bytes = b"") -> ScriptCall:
        return ScriptCall(self.scripts.sweep, (self.key(id_), self.trail(id_)), (how,))


class _FullScan:
    """All unexpired rows without their results, one SCAN at a time."""

    def __init__(self, programs: KeyScans) -> None:
        self._programs = programs
        self._node = self._cursor = 0

    def step(self) -> Program[list[tuple[int, Row]] | None]:
        programs = self._programs
        found = yield from programs._scan(self._node, self._cursor, STEP)
        if found is None:
            return None
        self._cursor, ids = found
        if not self._cursor:
            self._node += 1
        if not ids:
            return []
        replies = yield [ScriptCall(programs.scripts.peek, (programs.key(id_),), ()) for id_ in ids]
        return list(_rows(ids, replies))


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
