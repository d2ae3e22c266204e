"""Projections: read models that follow an event log and can be replayed from any point.

    totals = Projection(log, "totals", add_up)       # add_up(connection, event) writes its rows
    with connection.transaction():
        totals.advance(connection)                   # events, rows and position commit together

The position is saved in the same transaction as the rows, so an event is applied to them once, however
often the process is killed. Two processes that run one projection take turns. `rewind` sets the
position back; you must clear the rows in the same transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from .._core.handler_kind import expect_done
from .._core.operations import check_limit
from .._transactions import Dialect, async_of, of
from ..errors import StoreError
from ..stores._base import Program
from ._event_log import AsyncEventLog, Event, EventLog, event_of
from ._statements import (
    Place,
    change,
    insert_once,
    name,
    perform,
    perform_async,
    query,
    stored,
)

__all__ = ["AsyncProjection", "Projection"]

Position: TypeAlias = tuple[int, int]

START: Final[Position] = (0, 0)
_HORIZON: Final = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
_REACHED: Final = (
    "greatest(pg_snapshot_xmax(pg_current_snapshot()), pg_current_xact_id())::text::bigint"
)
_AFTER: Final[dict[Dialect, tuple[str, str]]] = {
    "sqlite": ("n > ? ORDER BY n", ""),
    "postgresql": (f"(tick, n) > (?, ?) AND tick < {_HORIZON} ORDER BY tick, n", ""),
    # The lock reads the newest rows, not those of our snapshot.
    "mysql": ("n > ? ORDER BY n", " LOCK IN SHARE MODE"),
}
"""Events after a position, as far as no transaction can still commit an earlier one."""


class _Follower:
    """The programs that the blocking and the async version share."""

    _log: EventLog | AsyncEventLog

    def __init__(self, name_: str, declared: Any) -> None:
        self.name = name(name_, "name")
        self._declared = declared

    def _take(self, place: Place) -> Program[Position]:
        """Lock and return our position. Another process of this projection waits until we commit."""
        table, mine = f"{self._log.table}_positions", stored(place, self.name)
        columns = ["name", "tick", "n"]
        yield from insert_once(place, table, columns, [mine, 0, 0], ["name"])
        yield change(place, f"UPDATE {table} SET n = n WHERE name = ?", [mine])
        rows = yield query(place, f"SELECT tick, n FROM {table} WHERE name = ?", [mine])
        return rows[0][0], rows[0][1]

    def _next(self, place: Place, limit: int) -> Program[list[Event]]:
        check_limit(limit)
        tick, n = yield from self._take(place)
        if place.dialect == "postgresql":
            yield from self._check(place, tick)
        where, more = _AFTER[place.dialect]
        at = [tick, n] if place.dialect == "postgresql" else [n]
        sql = f"{self._log.select} WHERE {where} LIMIT {limit:d}{more}"
        rows = yield query(place, sql, at)
        return [event_of(row, self._declared) for row in rows]

    def _check(self, place: Place, tick: int) -> Program[None]:
        """Raise if the ticks are those of another server, because they are transaction ids."""
        sql = f"SELECT coalesce(max(tick), 0), {_REACHED} FROM {self._log.table}"
        newest, reached = (yield query(place, sql))[0]
        if max(tick, newest) > reached:
            raise StoreError(
                f"{self._log.table} comes from another server, with higher transaction ids: {self.name!r} "
                "could skip new events; set tick = 0 in that table and rewind its projections"
            )

    def _save_position(self, place: Place, to: Position) -> Program[None]:
        sql = f"UPDATE {self._log.table}_positions SET tick = ?, n = ? WHERE name = ?"
        yield change(place, sql, [*to, stored(place, self.name)])

    def _rewind(self, place: Place, to: Position) -> Program[None]:
        yield from self._take(place)
        yield from self._save_position(place, to)

    def _at(self, place: Place) -> Program[Position]:
        sql = f"SELECT tick, n FROM {self._log.table}_positions WHERE name = ?"
        rows = yield query(place, sql, [stored(place, self.name)])
        return (rows[0][0], rows[0][1]) if rows else START


class Projection(_Follower):
    """A projection, for blocking connections."""

    def __init__(
        self,
        log: EventLog,
        name: str,
        apply: Callable[[Any, Event], object],
        *,
        declared: Any = Any,
    ) -> None:
        super().__init__(name, declared)
        self._log, self._apply = log, apply

    def advance(self, connection: Any, limit: int = 100) -> int:
        """Apply the next events, in order; returns how many. If that is fewer than `limit`, it is up to date."""
        mine = of(connection)
        mine.check()
        events = mine.run(self._next(mine, limit))
        for event in events:
            expect_done(self._apply(connection, event), f"the function of projection {self.name!r}")
        if events:
            mine.run(self._save_position(mine, events[-1].position))
        return len(events)

    def rewind(self, connection: Any, to: Position = START) -> None:
        """Apply all events after this position again; by default from the start."""
        perform(connection, self._rewind, to)

    def position(self, connection: Any) -> Position:
        return perform(connection, self._at)


class AsyncProjection(_Follower):
    """The async version of `Projection`."""

    def __init__(
        self,
        log: AsyncEventLog,
        name: str,
        apply: Callable[[Any, Event], Awaitable[object]],
        *,
        declared: Any = Any,
    ) -> None:
        super().__init__(name, declared)
        self._log, self._apply = log, apply

    async def advance(self, connection: Any, limit: int = 100) -> int:
        """Apply the next events, in order; returns how many. If that is fewer than `limit`, it is up to date."""
        mine = async_of(connection)
        await mine.check()
        events = await mine.run(self._next(mine, limit))
        for event in events:
            await self._apply(connection, event)
        if events:
            await mine.run(self._save_position(mine, events[-1].position))
        return len(events)

    async def rewind(self, connection: Any, to: Position = START) -> None:
        """Apply all events after this position again; by default from the start."""
        await perform_async(connection, self._rewind, to)

    async def position(self, connection: Any) -> Position:
        return await perform_async(connection, self._at)
