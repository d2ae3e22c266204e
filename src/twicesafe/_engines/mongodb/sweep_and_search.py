"""Requests about many records: sweep, survey, browse, count, and the audit log.

MongoDB selects and sorts, and `matches` decides about each document. Only the ids and ``ttl`` have an
index, so a search reads the whole collection.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import attrgetter
from typing import Final

from ..._core.protocol import AuditLog, Browse, Count, Filter, Page, Survey, Sweep
from ..._core.record_filter import cursor_of, matches, readable
from ..._values.records import AuditEntry, Row, State, Stats, SweepReport, moment
from ...stores._base import Program
from ..versioned.deciding import VersionedPrograms
from ..versioned.record import entries_since, is_removable
from .documents import Document, DriverCall, bulk, delete_of, find, record_of, time_to_live

__all__ = ["SweepAndSearch"]

PAGE: Final = 500
"""Documents that are read at once."""

_LATEST: Final = 1 << 62
"""Later than the time of any record."""
_STATES: Final = frozenset(State)
_LEAN: Final = {"result": 0, "audit": 0}
_NEWEST: Final = [("created_at", -1), ("_id", -1)]
_BY_ID: Final = [("_id", 1)]


class SweepAndSearch(VersionedPrograms):
    """The base class of `MongodbPrograms`."""

    # -- the sweep ------------------------------------------------------------------------------

    def sweep(self, ask: Sweep) -> Program[tuple[SweepReport, str]]:
        """MongoDB deletes expired documents itself, an hour later; this is for those who cannot wait."""
        now = self.clock.now() - self.skew
        limit = max(1, ask.limit)
        where: Document = {"_id": {"$gt": ask.after}} if ask.after else {}
        found = yield find(where, projection=_LEAN, sort=_BY_ID, limit=limit)
        records = readable(found, record_of, _id_of, {})
        due = [record for record in records if is_removable(record.row, now)]
        gone = due[: ask.most]
        removed = 0
        if gone:
            removed = (yield bulk([delete_of(record) for record in gone]))["nRemoved"]
        after = found[-1]["_id"] if len(found) == limit else ""
        if len(due) > len(gone):
            after = gone[-1].row.id.hex() if gone else ask.after
        return SweepReport(removed=removed, examined=len(found), more=bool(after)), after

    # -- counts -----------------------------------------------------------------------------------

    def survey(self, ask: Survey) -> Program[Stats]:
        now = self.clock.now()
        groups = yield DriverCall(
            "aggregate",
            ([{"$match": _alive(now)}, {"$group": {"_id": "$state", "count": {"$sum": 1}}}],),
        )
        running = State.IN_PROGRESS.value
        stuck = {"state": running, "lease_until": {"$lte": now}}
        oldest = yield find(
            {"state": running, "changed_at": {"$gt": 0}},
            projection={"changed_at": 1},
            sort=[("changed_at", 1)],
            limit=1,
        )
        known = {each["_id"]: each["count"] for each in groups if str(each["_id"]) in _STATES}
        return Stats(
            by_state={State(name): count for name, count in known.items()},
            unreadable=sum(each["count"] for each in groups) - sum(known.values()),
            stuck=(yield DriverCall("count_documents", (stuck,))),
            expired=0,
            oldest_in_progress=moment(oldest[0]["changed_at"]) if oldest else None,
        )

    def count(self, ask: Count) -> Program[int]:
        now, total, after = self.clock.now(), 0, ""
        while total < ask.limit:
            place = {"_id": {"$gt": after}} if after else {}
            where = {"$and": [place, *_conditions(ask, now)]}
            found = yield find(where, projection=_LEAN, sort=_BY_ID, limit=PAGE)
            records = readable(found, record_of, _id_of, {})
            total += sum(matches(record.row, ask, now) for record in records)
            if len(found) < PAGE:
                break
            after = found[-1]["_id"]
        return min(ask.limit, total)

    # -- pages ------------------------------------------------------------------------------------

    def browse(self, ask: Browse) -> Program[Page]:
        """Newest first."""
        now, after = self.clock.now(), ask.after
        rows: list[Row] = []
        unreadable: dict[str, None] = {}
        while True:
            where = {"$and": [_before(after), *_conditions(ask, now)]}
            found = yield find(
                where, projection={"audit": 0}, sort=_NEWEST, limit=min(PAGE, ask.limit + 1)
            )
            records = readable(found, record_of, _id_of, unreadable)
            rows += [each.row for each in records if matches(each.row, ask, now)]
            ended = len(found) < min(PAGE, ask.limit + 1)
            if len(rows) > ask.limit:
                rows = rows[: ask.limit]
                return Page(rows, cursor_of(rows[-1]), tuple(unreadable))
            if ended:
                return Page(rows, "", tuple(unreadable))
            after = _place_of(found[-1])

    # -- the audit log ------------------------------------------------------------------------------

    def audit_log(self, ask: AuditLog) -> Program[list[AuditEntry]]:
        first, newest, after = moment(ask.since), list[AuditEntry](), ""
        while True:
            place = {"_id": {"$gt": after}} if after else {}
            where = {"$and": [place, {"audit": {"$exists": True}}]}
            found = yield find(where, projection={"result": 0}, sort=_BY_ID, limit=PAGE)
            for record in readable(found, record_of, _id_of, {}):
                newest += entries_since(record, first)
            newest.sort(key=attrgetter("at"))
            del newest[: -ask.limit]
            if len(found) < PAGE:
                return newest[::-1]
            after = found[-1]["_id"]


def _id_of(found: Document) -> str:
    return str(found["_id"])


def _alive(now: int) -> Document:
    """Records within their retention, and those that have none."""
    return {"$or": [{"ttl": {"$exists": False}}, {"ttl": {"$gt": time_to_live(now)}}]}


def _conditions(ask: Filter, now: int) -> Iterator[Document]:
    """What MongoDB can decide of a search: never less than what `matches` lets pass."""
    yield _alive(now)
    states = (State.IN_PROGRESS,) if ask.stuck else ask.states
    if states:
        yield {"state": {"$in": [state.value for state in states]}}
    for place, part in enumerate(ask.scope):
        yield {f"scope.{place}": part}
    if ask.value:
        yield {"value": ask.value}
    if ask.error:
        start = ask.error[:200].partition("\0")[0]  # which no regex may contain
        yield {"error": {"$regex": f"^{re.escape(start)}"}}
    if ask.changed_after is not None:
        yield {"changed_at": {"$gte": ask.changed_after}}
    if ask.changed_before is not None:
        yield {"changed_at": {"$lt": ask.changed_before}}
    if ask.cause is not None:
        yield {"cause": ask.cause.value}
    if ask.digits:
        yield {"_id": {"$gte": ask.digits[:64], "$lt": f"{ask.digits[:64]}g"}}


def _place_of(found: Document) -> str:
    """`cursor_of` for a document that may be damaged. The server sorts one without a time behind
    all others, and one whose time is no number before them. (To a shell, numbers have a
    fraction.)"""
    created, time = found.get("created_at"), _LATEST
    if str(created) in ("None", "nan"):
        time = 0
    elif isinstance(created, int | float):
        time = int(max(-_LATEST, min(created, _LATEST)))
    return f"{time}.{found['_id']}"


def _before(after: str) -> Document:
    if not after:
        return {}
    created, _, id_ = after.partition(".")
    earlier = {"created_at": {"$lt": int(created)}}
    return {"$or": [earlier, {"created_at": int(created), "_id": {"$lt": id_}}]}
