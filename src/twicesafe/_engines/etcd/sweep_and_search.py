"""Requests about many records: sweep, survey, browse, count, and the audit log. etcd has no index but
the order of its keys, so a search reads all records. It reads a page at a time, all at the revision at
which it began, so a write meanwhile hides no record and repeats none. Large results have separate keys
and are not read; at the end, those of the records to show are fetched. `docs/how-to/etcd.md` says
what that costs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, Final

from msgspec.structs import replace

from ..._core.protocol import AuditLog, Browse, Count, Filter, History, Page, Survey, Sweep
from ..._core.record_filter import matches, readable
from ..._values.records import AuditEntry, Row, State, Stats, SweepReport, moment
from ...stores._base import Program
from .messages import CREATE, EQUAL, message
from .record_layout import Keys, SeenRecord, act_of, effective, row_of
from .routing import EtcdCall

__all__ = ["SweepAndSearch"]

PAGE: Final = 1000
"""Keys of one read."""


class SweepAndSearch:
    """The base class of `EtcdPrograms`."""

    def __init__(self, keys: Keys, clock: Callable[[], int]) -> None:
        self.keys = keys
        self.clock = clock

    # -- searching ------------------------------------------------------------------------------

    def browse(self, ask: Browse) -> Program[Page]:
        """Newest first: by the revision that created the record."""
        before = int(ask.after or 0)
        scan = _Scan(self.keys, ask.digits)
        newest: list[tuple[int, SeenRecord]] = []
        while (found := (yield from scan.step())) is not None:
            now = self.clock()
            newest += [
                (created, seen)
                for created, seen in found
                if (not before or created < before) and matches(_judged(seen, now), ask, now)
            ]
            newest = heapq.nlargest(ask.limit + 1, newest, key=itemgetter(0))
        page = [seen for _, seen in newest[: ask.limit]]
        rows = yield from self._whole(page, scan)
        after = str(newest[ask.limit - 1][0]) if len(newest) > ask.limit else ""
        return Page(rows, after, tuple(scan.unreadable))

    def count(self, ask: Count) -> Program[int]:
        scan = _Scan(self.keys, ask.digits)
        total = 0
        while total < ask.limit and (found := (yield from scan.step())) is not None:
            now = self.clock()
            total += sum(matches(_judged(seen, now), ask, now) for _, seen in found)
        return min(ask.limit, total)

    def survey(self, ask: Survey) -> Program[Stats]:
        scan = _Scan(self.keys)
        by_state: dict[State, int] = {}
        running: list[int] = []
        stuck = 0
        late = Filter(0, stuck=True)
        while (found := (yield from scan.step())) is not None:
            now = self.clock()
            for _, seen in found:
                row = _judged(seen, now)
                by_state[row.state] = by_state.get(row.state, 0) + 1
                if row.state is State.IN_PROGRESS:
                    running.append(row.changed_at)
                    stuck += matches(row, late, now)
        return Stats(
            by_state=by_state,
            unreadable=len(scan.unreadable),
            stuck=stuck,
            expired=0,  # expired records are not counted: they disappear by themselves
            oldest_in_progress=moment(min(running)) if running else None,
        )

    def _whole(self, page: list[SeenRecord], scan: _Scan) -> Program[list[Row]]:
        """The rows with their results. One whose result is missing cannot be read."""
        rows = []
        for row, apart in ((seen.row, seen.apart) for seen in page):
            assert row is not None
            if apart:
                _, _, value = self.keys.of(row.id)
                reply = yield EtcdCall(
                    "Range", message("RangeRequest")(key=value, revision=scan.revision)
                )
                if not reply.kvs:
                    scan.unreadable[row.id.hex()] = None
                    continue
                row.result = reply.kvs[0].value
            rows.append(row)
        return rows

    # -- the audit trail ------------------------------------------------------------------------

    def history(self, ask: History) -> Program[list[AuditEntry]]:
        entries = yield from self._acts(self.keys.trail(ask.id))
        return [replace(entry, id=ask.id) for entry in entries]

    def audit_log(self, ask: AuditLog) -> Program[list[AuditEntry]]:
        entries = yield from self._acts(self.keys.acts)
        first = moment(ask.since)
        recent = [entry for entry in entries if entry.at >= first]
        recent.sort(key=attrgetter("at"))
        shown = []
        for entry in reversed(recent[-ask.limit :]):
            record, _, _ = self.keys.of(entry.id)
            reply = yield EtcdCall("Range", message("RangeRequest")(key=record))
            for row, _ in readable(reply.kvs, partial(row_of, entry.id), _name_of, {}):
                entry = replace(entry, id=row.id, scope=row.scope, value=row.value)  # noqa: PLW2901
            shown.append(entry)
        return shown

    def _acts(self, prefix: bytes) -> Program[list[AuditEntry]]:
        """In the order of their keys: by record, then by time."""
        reading = _Reading(prefix)
        entries: list[AuditEntry] = []
        while (kvs := (yield from reading.step())) is not None:
            entries += [act_of(_id_of(kv.key, self.keys.acts), kv) for kv in kvs]
        return entries

    # -- the sweep ------------------------------------------------------------------------------

    def sweep(self, ask: Sweep) -> Program[tuple[SweepReport, str]]:
        """One step. etcd removes expired records itself; what is left for us are their audit trails."""
        start = self.keys.records + ask.after.encode()
        reading = _Reading(
            self.keys.records, start + b"\0" if ask.after else start, True, ask.limit
        )
        kvs = (yield from reading.step()) or []
        last = kvs[-1].key[len(self.keys.records) :] if kvs else b""
        after = last.decode() if reading.more else ""
        yield from self._sweep_trails(ask.after.encode(), last if reading.more else b"\xff")
        return SweepReport(removed=0, examined=len(kvs), more=bool(after)), after

    def _sweep_trails(self, first: bytes, last: bytes) -> Program[None]:
        """Remove the audit trails without a record, of records after the first and up to the last."""
        acts = self.keys.acts
        reading = _Reading(acts, acts + first, True, end=acts + last + b"0")  # "0" follows "/"
        names: set[bytes] = set()
        while (kvs := (yield from reading.step())) is not None:
            names.update(kv.key[len(acts) :].partition(b"/")[0] for kv in kvs)
        for name in sorted(names):
            none = {"target": CREATE, "result": EQUAL, "key": self.keys.records + name}
            trail = {"key": acts + name + b"/", "range_end": acts + name + b"0"}
            request = message("TxnRequest")(
                compare=[none | {"create_revision": 0}], success=[{"request_delete_range": trail}]
            )
            yield EtcdCall("Txn", request)


class _Reading:
    """All keys with a prefix, a page at a time, as they were at one revision."""

    def __init__(
        self,
        prefix: bytes,
        start: bytes = b"",
        keys_only: bool = False,
        page: int = PAGE,
        end: bytes = b"",
        revision: int = 0,
    ) -> None:
        self._next = start or prefix
        self._end = end or prefix[:-1] + bytes([prefix[-1] + 1])
        self._keys_only, self._page = keys_only, page
        self.revision = revision
        self.more = True

    def step(self) -> Program[Any]:
        """Some of them; None: that was all."""
        if not self.more:
            return None
        request = message("RangeRequest")(
            key=self._next,
            range_end=self._end,
            limit=self._page,
            revision=self.revision,
            keys_only=self._keys_only,
        )
        reply = yield EtcdCall("Range", request)
        self.revision = self.revision or reply.header.revision
        self.more = reply.more
        if reply.kvs:
            self._next = reply.kvs[-1].key + b"\0"
        return reply.kvs


class _Scan:
    """All records with whether their claim is alive, a page at a time, as they were at one revision."""

    def __init__(self, keys: Keys, digits: str = "") -> None:
        self._keys = keys
        only = digits[:32].encode()  # more of the id is not in the key
        self._records = _Reading(
            keys.records, keys.records + only, end=keys.records + only + b"\xff"
        )
        self._alive: dict[bytes, int] | None = None
        self.unreadable: dict[str, None] = {}

    @property
    def revision(self) -> int:
        return self._records.revision

    def step(self) -> Program[list[tuple[int, SeenRecord]] | None]:
        kvs = yield from self._records.step()
        if kvs is None:
            return None
        if self._alive is None:
            self._alive = yield from self._read_alive()
        return readable(kvs, self._seen, _name_of, self.unreadable)

    def _seen(self, kv: Any) -> tuple[int, SeenRecord]:
        assert self._alive is not None
        row, apart = row_of(_id_of(kv.key, self._keys.records), kv)
        alive = self._alive.get(row.id[:16], 0)
        return kv.create_revision, SeenRecord(row, kv.mod_revision, kv.lease, alive, apart)

    def _read_alive(self) -> Program[dict[bytes, int]]:
        """There are as many as claims and back-offs last at this moment."""
        reading = _Reading(self._keys.alive, keys_only=True, revision=self.revision)
        alive: dict[bytes, int] = {}
        while (kvs := (yield from reading.step())) is not None:
            alive |= {_id_of(kv.key, self._keys.alive): kv.lease for kv in kvs}
        return alive


def _judged(seen: SeenRecord, now: int) -> Row:
    """As etcd's leases decide it; what is shown has the times that were written."""
    row = effective(seen, now)
    assert row is not None
    return row


def _name_of(kv: Any) -> str:
    """The key of a record ends with half of its id."""
    return bytes(kv.key[-32:]).decode()


def _id_of(key: bytes, prefix: bytes) -> bytes:
    return bytes.fromhex(key[len(prefix) : len(prefix) + 32].decode())
