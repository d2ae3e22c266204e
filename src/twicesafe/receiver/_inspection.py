"""What operators read from a receiver: its records, counts, audit trail, health and settings.

    receiver.record("tx-123").state                     one key
    for record in receiver.records(state=State.HELD):   many, a page at a time
        print(record.key, record.error)

`AsyncInspection` is the async version of `Inspection`. Both are part of the receiver.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Unpack, cast

from .._core import operations, searching
from .._core.protocol import Browse, Survey
from .._core.searching import Conditions, When
from .._core.secret_check import problem_with_secret
from .._values.clocks import wall_clock
from .._values.keys import KeyLike
from .._values.records import AuditEntry, Record, Stats
from ..stores._base import Finding
from ._operator_flows import OperatorFlows, about_secret, unread, unswept, warn_of_unreadable

if TYPE_CHECKING:
    from .._core.health import Health, Thresholds
    from .._runtime.blocking import BlockingRuntime
    from .._runtime.event_loop import EventLoopRuntime
    from ._receiver import AsyncReceiver, Receiver

__all__ = ["AsyncInspection", "Inspection"]

LOOKED_AT = 1000
"""How many of the newest records `doctor` looks at."""


class Inspection(OperatorFlows):
    """The methods of `Receiver` that only read."""

    _runtime: BlockingRuntime

    def record(self, key: KeyLike) -> Record | None:
        """The record of a key, or None."""
        return self._runtime.run(operations.read(self.key(key), self._keeps_steps))

    def stats(self) -> Stats:
        """The number of records in each state."""
        return self._runtime.run(operations.survey())

    def sample(self) -> Stats:
        """Count the records like `stats`, and pass the numbers to observers, for their gauges.
        `maintain` does this every round.

        It counts all records, so call it every minute or so, not with every request.
        """
        return self._tell_sample(self.stats())

    def records(
        self, *, limit: int | None = None, **conditions: Unpack[Conditions]
    ) -> Iterator[Record]:
        """An iterator over the records, newest first; it reads a page at a time.

        ``state``: in this state, or in one of several. ``scope``: the full scope starts with these parts.
        ``value``: the key's value, in any scope. ``error``: the recorded error starts with this text.
        ``since``, ``older_than``: when the record last changed (``"2h"``, or a datetime).
        ``stuck``: in progress, but the lease has expired. ``cause``: why the handler was last
        started again. ``id``: the first hex digits of the key's id. ``limit``: at most this many.
        Records that cannot be read are left out: a warning of the logger ``twicesafe`` names them,
        and `stats` counts them.
        """
        query = searching.Browsing(self._asked(conditions), limit, warn_of_unreadable)
        return self._each(query)

    def _each(self, query: searching.Browsing) -> Iterator[Record]:
        while query.left:
            yield from query.took(self._runtime.run(query.page()))

    def records_page(
        self, *, limit: int = 100, after: str = "", **conditions: Unpack[Conditions]
    ) -> tuple[list[Record], str]:
        """A page of `records`, and the cursor of the next page (empty: last page)."""
        page = searching.browse(self._asked(conditions), limit, after, warn_of_unreadable)
        return self._runtime.run(page)

    def count(self, *, up_to: int | None = None, **conditions: Unpack[Conditions]) -> int:
        """How many records meet the conditions of `records`.

        ``up_to``: stop counting at this number, which is much faster on a large store.
        """
        return self._runtime.run(searching.count(self._asked(conditions), up_to))

    def audit(self, key: KeyLike) -> list[AuditEntry]:
        """The operator actions on this key."""
        return self._runtime.run(operations.audit(self.key(key)))

    def audit_log(self, *, limit: int = 100, since: When | None = None) -> list[AuditEntry]:
        """The last operator actions on all keys and outbox lanes, newest first.

        An action is kept as long as its record. ``since``: only those within this time (``"2h"``), or
        since this datetime.
        """
        return self._runtime.run(searching.audit_log(limit, since, wall_clock()))

    def health(self, thresholds: Thresholds | None = None) -> Health:
        """Compare the store and the last minutes with thresholds; each check says what to do next.

        It counts all records. For probes that ask often, mount `twicesafe.health.health_app`.
        """
        from ._health import judge_now  # most programs never ask

        return judge_now(cast("Receiver", self), thresholds)

    def doctor(self) -> list[Finding]:
        """Check the settings that the guarantees depend on, the sweep, and the newest records."""
        from ..planning import measured_from
        from ._health import about_fallback, fallback_answers

        answers = fallback_answers(cast("Receiver", self))
        stats, newest = self._runtime.run(self._together(Survey(), Browse(LOOKED_AT)))
        return [
            *self._runtime.store.doctor(),
            *about_secret(self._runtime.run(problem_with_secret(self._hidden))),
            *unread(stats),
            *unswept(stats),
            *about_fallback(self._fallback, answers),
            *measured_from(newest.view()).findings(),
        ]


class AsyncInspection(OperatorFlows):
    """The methods of `AsyncReceiver` that only read."""

    _runtime: EventLoopRuntime

    async def record(self, key: KeyLike) -> Record | None:
        """The record of a key, or None."""
        return await self._runtime.run(operations.read(self.key(key), self._keeps_steps))

    async def stats(self) -> Stats:
        """The number of records in each state."""
        return await self._runtime.run(operations.survey())

    async def sample(self) -> Stats:
        """Count the records like `stats`, and pass the numbers to observers, for their gauges.
        `maintain` does this every round.

        It counts all records, so call it every minute or so, not with every request.
        """
        return self._tell_sample(await self.stats())

    def records(
        self, *, limit: int | None = None, **conditions: Unpack[Conditions]
    ) -> AsyncIterator[Record]:
        """An async iterator over the records, newest first; it reads a page at a time.

        ``state``: in this state, or in one of several. ``scope``: the full scope starts with these parts.
        ``value``: the key's value, in any scope. ``error``: the recorded error starts with this text.
        ``since``, ``older_than``: when the record last changed (``"2h"``, or a datetime).
        ``stuck``: in progress, but the lease has expired. ``cause``: why the handler was last
        started again. ``id``: the first hex digits of the key's id. ``limit``: at most this many.
        Records that cannot be read are left out: a warning of the logger ``twicesafe`` names them,
        and `stats` counts them.
        """
        query = searching.Browsing(self._asked(conditions), limit, warn_of_unreadable)
        return self._each(query)

    async def _each(self, query: searching.Browsing) -> AsyncIterator[Record]:
        while query.left:
            for record in query.took(await self._runtime.run(query.page())):
                yield record

    async def records_page(
        self, *, limit: int = 100, after: str = "", **conditions: Unpack[Conditions]
    ) -> tuple[list[Record], str]:
        """A page of `records`, and the cursor of the next page (empty: last page)."""
        page = searching.browse(self._asked(conditions), limit, after, warn_of_unreadable)
        return await self._runtime.run(page)

    async def count(self, *, up_to: int | None = None, **conditions: Unpack[Conditions]) -> int:
        """How many records meet the conditions of `records`.

        ``up_to``: stop counting at this number, which is much faster on a large store.
        """
        return await self._runtime.run(searching.count(self._asked(conditions), up_to))

    async def audit(self, key: KeyLike) -> list[AuditEntry]:
        """The operator actions on this key."""
        return await self._runtime.run(operations.audit(self.key(key)))

    async def audit_log(self, *, limit: int = 100, since: When | None = None) -> list[AuditEntry]:
        """The last operator actions on all keys and outbox lanes, newest first.

        An action is kept as long as its record. ``since``: only those within this time (``"2h"``), or
        since this datetime.
        """
        return await self._runtime.run(searching.audit_log(limit, since, wall_clock()))

    async def health(self, thresholds: Thresholds | None = None) -> Health:
        """Compare the store and the last minutes with thresholds; each check says what to do next.

        It counts all records. For probes that ask often, mount `twicesafe.health.health_app`.
        """
        from ._health import judge_now_async

        return await judge_now_async(cast("AsyncReceiver", self), thresholds)

    async def doctor(self) -> list[Finding]:
        """Check the settings that the guarantees depend on, the sweep, and the newest records."""
        from ..planning import measured_from
        from ._health import about_fallback, fallback_answers_async

        answers = await fallback_answers_async(cast("AsyncReceiver", self))
        stats, newest = await self._runtime.run(self._together(Survey(), Browse(LOOKED_AT)))
        return [
            *await self._runtime.store.doctor(),
            *about_secret(await self._runtime.run(problem_with_secret(self._hidden))),
            *unread(stats),
            *unswept(stats),
            *about_fallback(self._fallback, answers),
            *measured_from(newest.view()).findings(),
        ]
