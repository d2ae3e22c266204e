"""Requests about many records: sweep, survey, browse, count, and the audit log. All of them scan the
whole table, a page at a time, without results. A filter saves network traffic, but no money: DynamoDB
charges for every item that it reads. `matches` decides about each item that passes the filter.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

from ..._core import lifecycle
from ..._core.protocol import AuditLog, Browse, Count, Filter, Page, Survey, Sweep
from ..._core.record_filter import cursor_of, matches, place_in, readable
from ..._values.records import AuditEntry, Row, State, Stats, SweepReport, moment
from ...stores._base import Program
from ..versioned.deciding import VersionedPrograms
from ..versioned.record import Versioned, entries_since, is_removable
from .items import Attributes, BotoCall, ConditionFailed, delete, get, id_of, item_of, names_of

__all__ = ["SweepAndSearch"]

SHOWN: Final = (
    "id", "scope", "value", "state", "fence", "attempt", "owner", "lease_until", "created_at",
    "changed_at", "expires_at", "hold", "cause", "fingerprint", "error", "changes", "revision",
    "layout",
)  # fmt: skip
"""All but results and audit trails."""


class SweepAndSearch(VersionedPrograms):
    """The base class of `DynamodbPrograms`."""

    # -- the sweep ------------------------------------------------------------------------------

    def sweep(self, ask: Sweep) -> Program[tuple[SweepReport, str]]:
        """DynamoDB deletes expired items itself, within days; this is for those who cannot wait."""
        now = self.clock.now() - self.skew
        more: Attributes = {"Limit": max(1, ask.limit)}
        if ask.after:
            more["ExclusiveStartKey"] = {"id": {"B": bytes.fromhex(ask.after)}}
        reply = yield _scan(SHOWN, ["#expires_at <= :now"], {":now": _number(now)}, more)
        items = readable(reply["Items"], item_of, id_of, {})
        due = [item for item in items if is_removable(item.row, now)]
        gone = due[: ask.most]
        replies = (yield [delete(item) for item in gone]) if gone else []
        removed = sum(not isinstance(reply, ConditionFailed) for reply in replies)
        last = reply.get("LastEvaluatedKey")
        after = bytes(last["id"]["B"]).hex() if last else ""
        if len(due) > len(gone):
            after = gone[-1].row.id.hex()
        return SweepReport(removed=removed, examined=reply["ScannedCount"], more=bool(after)), after

    # -- counts -----------------------------------------------------------------------------------

    def survey(self, ask: Survey) -> Program[Stats]:
        now = self.clock.now()
        by_state: dict[State, int] = {}
        stuck, oldest = 0, None
        scan = _Pages(SHOWN, [], {})
        while (items := (yield from scan.next())) is not None:
            for row in (item.row for item in items):
                if lifecycle.is_expired(row, now):
                    continue  # gone for every request; DynamoDB deletes it by itself
                by_state[row.state] = by_state.get(row.state, 0) + 1
                if row.state is State.IN_PROGRESS:
                    stuck += row.lease_until <= now
                    oldest = row.changed_at if oldest is None else min(oldest, row.changed_at)
        return Stats(
            by_state=by_state,
            unreadable=len(scan.unreadable),
            stuck=stuck,
            expired=0,
            oldest_in_progress=None if oldest is None else moment(oldest),
        )

    def count(self, ask: Count) -> Program[int]:
        now, total = self.clock.now(), 0
        scan = _Pages(SHOWN, *_conditions(ask))
        while total < ask.limit and (items := (yield from scan.next())) is not None:
            total += sum(matches(item.row, ask, now) for item in items)
        return min(ask.limit, total)

    # -- pages ------------------------------------------------------------------------------------

    def browse(self, ask: Browse) -> Program[Page]:
        """Newest first. There is no index to read that order from, so each page reads the table."""
        now, before = self.clock.now(), place_in(ask.after)
        newest: list[tuple[tuple[int, bytes], Row]] = []
        scan = _Pages(SHOWN, *_conditions(ask))
        while (items := (yield from scan.next())) is not None:
            rows = (item.row for item in items if matches(item.row, ask, now))
            placed = [((row.created_at, row.id), row) for row in rows]
            placed = [each for each in placed if before is None or each[0] < before]
            newest = heapq.nlargest(ask.limit + 1, [*newest, *placed], key=lambda each: each[0])
        page = [row for _, row in newest[: ask.limit]]
        after = cursor_of(page[-1]) if len(newest) > ask.limit else ""
        whole = yield from self._whole(page, scan.unreadable)
        return Page(whole, after, tuple(scan.unreadable))

    def _whole(self, page: list[Row], unreadable: dict[str, None]) -> Program[list[Row]]:
        """The rows with their results, read one by one; those that ended meanwhile stay as they were."""
        replies = (yield [get(row.id) for row in page]) if page else []
        items = [reply["Item"] for reply in replies if "Item" in reply]
        found = {item.row.id: item.row for item in readable(items, item_of, id_of, unreadable)}
        whole = [(row, found.get(row.id, row)) for row in page if row.id.hex() not in unreadable]
        return [
            new if new.fence == row.fence and new.state is row.state else row for row, new in whole
        ]

    # -- the audit log ------------------------------------------------------------------------------

    def audit_log(self, ask: AuditLog) -> Program[list[AuditEntry]]:
        first = moment(ask.since)
        newest: list[AuditEntry] = []
        scan = _Pages((*SHOWN, "audit"), ["attribute_exists(#audit)"], {})
        while (items := (yield from scan.next())) is not None:
            for item in items:
                newest += entries_since(item, first)
            newest.sort(key=attrgetter("at"))
            del newest[: -ask.limit]
        return newest[::-1]


class _Pages:
    """A scan of the table, one page of at most a megabyte at a time."""

    def __init__(self, shown: Sequence[str], where: list[str], values: Attributes) -> None:
        self._ask = (shown, where, values)
        self._more: Attributes = {"ConsistentRead": True}
        self._ended = False
        self.unreadable: dict[str, None] = {}

    def next(self) -> Program[list[Versioned] | None]:
        """The items of the next page; None: that was all."""
        if self._ended:
            return None
        reply = yield _scan(*self._ask, self._more)
        last = reply.get("LastEvaluatedKey")
        self._ended = not last
        self._more = self._more | {"ExclusiveStartKey": last}
        return readable(reply["Items"], item_of, id_of, self.unreadable)


def _scan(shown: Sequence[str], where: list[str], values: Attributes, more: Attributes) -> BotoCall:
    arguments: Attributes = {
        "ProjectionExpression": ", ".join(f"#{name}" for name in shown),
        "ExpressionAttributeNames": names_of(shown),
        **more,
    }
    if where:
        arguments["FilterExpression"] = " AND ".join(where)
    if values:
        arguments["ExpressionAttributeValues"] = values
    return BotoCall("scan", arguments)


def _conditions(ask: Filter) -> tuple[list[str], Attributes]:
    """What DynamoDB can decide of a search: never less than what `matches` lets pass."""
    found = list(_each_condition(ask))
    return [text for text, _ in found], {k: v for _, values in found for k, v in values.items()}


def _each_condition(ask: Filter) -> Iterator[tuple[str, Attributes]]:
    states = (State.IN_PROGRESS,) if ask.stuck else ask.states
    if states:
        names = {f":state{n}": {"S": state.value} for n, state in enumerate(states)}
        yield f"#state IN ({', '.join(names)})", names
    for n, part in enumerate(ask.scope):
        yield f"#scope[{n}] = :scope{n}", {f":scope{n}": {"S": part}}
    if ask.value is not None:
        yield "#value = :value", {":value": {"S": ask.value}}
    if ask.error:
        yield "begins_with(#error, :error)", {":error": {"S": ask.error}}
    if ask.changed_after is not None:
        yield "#changed_at >= :after", {":after": _number(ask.changed_after)}
    if ask.changed_before is not None:
        yield "#changed_at < :before", {":before": _number(ask.changed_before)}
    if ask.cause is not None:
        yield "#cause = :cause", {":cause": {"S": ask.cause.value}}
    whole = bytes.fromhex(ask.digits[: len(ask.digits) // 2 * 2])
    if whole:
        yield "begins_with(#id, :digits)", {":digits": {"B": whole}}


def _number(value: Any) -> Attributes:
    return {"N": str(value)}
