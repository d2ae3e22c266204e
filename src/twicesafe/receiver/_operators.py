"""What operators do with a receiver: read, release, resolve, forget, sweep and check its records.

    receiver.record("tx-123").state                     one key
    for record in receiver.records(state=State.HELD):   many, a page at a time
        receiver.release(record.key, by="ann", why="looked at the bank's ledger")

`AsyncOperators` is the async version of `Operators`. Both are part of the receiver.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Unpack, cast

from .. import events
from .._core import operations, searching
from .._core.archiving import Archiving
from .._core.health import Health, Thresholds, judge
from .._core.searching import Conditions, When
from .._values.clocks import wall_clock
from .._values.closed import require_open
from .._values.keys import KeyLike
from .._values.records import (
    ArchiveReport,
    AuditEntry,
    Record,
    ReencryptReport,
    Stats,
    SweepReport,
)
from .._values.settings import Duration
from ..stores._base import Finding
from ._health import take_signs, take_signs_async
from ._maintenance import AsyncMaintenance, Maintenance
from ._operator_flows import OperatorFlows, unswept

if TYPE_CHECKING:
    from .._runtime.blocking import BlockingRuntime
    from .._runtime.event_loop import EventLoopRuntime
    from ..archive import Archive
    from ..stores._base import AsyncStore, Store
    from ._receiver import AsyncReceiver, Receiver

__all__ = ["AsyncOperators", "Operators"]

LOOKED_AT = 1000
"""How many of the newest records `doctor` looks at."""


def opened_archive(to: Archive | str) -> Archive:
    from ..archive import Archive

    return Archive.open(to) if isinstance(to, str) else to


class Operators(OperatorFlows):
    """The operators' methods of `Receiver`."""

    _runtime: BlockingRuntime
    store: Store
    _upkeep: list[Maintenance]

    def record(self, key: KeyLike) -> Record | None:
        """The record of a key, or None."""
        return self._runtime.run(operations.read(self.key(key), self._keeps_steps))

    def release(
        self,
        key: KeyLike,
        *,
        by: str,
        why: str = "",
        force: bool = False,
        fence: int | None = None,
    ) -> None:
        """Let the next delivery run. ``force``: even if the work is done; it will run again.

        ``fence``: only if the record still has the fence that you saw (`Record.fence`).
        """
        self._runtime.run(self._release(self.key(key), by, why, force, fence))

    def resolve(
        self,
        key: KeyLike,
        value: object,
        *,
        by: str,
        why: str = "",
        returns: Any = Any,
        fence: int | None = None,
    ) -> None:
        """Record this value as the answer. ``returns``: its type, if it is not plain data.

        Kept for this receiver's retention from now, and never shorter than before. ``fence``: only if
        the record still has the fence that you saw (`Record.fence`).
        """
        self._runtime.run(self._resolve(self.key(key), value, by, why, returns, fence))

    def forget(self, key: KeyLike, *, by: str = "forget", why: str = "") -> None:
        """Erase the result and the key text; a late duplicate still does not run again.

        The record is kept for this receiver's retention from now, and never shorter than before.
        """
        self._runtime.run(self._forget(self.key(key), by, why))

    def sweep(self, limit: int | None = None) -> SweepReport:
        """Remove records past their retention, in small batches; at most ``limit`` records."""
        report = self._runtime.run(operations.sweep(limit))
        if self._keeps_steps:
            self._runtime.run(operations.tidy_runs())
        self._notify(events.Swept(report.removed, report.examined))
        return report

    def reencrypt(self, *, limit: int | None = None, after: str = "") -> ReencryptReport:
        """Encrypt recorded answers with the first key of the policy's key ring, newest first, and the arguments,
        steps and signals of durable runs that no worker has now.

        ``limit``: examine at most this many records. ``after``: the report's ``after`` of the last call,
        to continue. It may run beside deliveries: an answer that changes meanwhile is left alone.
        """
        flow = operations.reencrypt(self.policy.encryption, limit, after, self._keeps_steps)
        return self._runtime.run(flow)

    def archive(
        self,
        to: Archive | str,
        *,
        older_than: Duration,
        limit: int | None = None,
        after: str = "",
    ) -> ArchiveReport:
        """Move answers that were recorded longer ago than this from the store to an archive.

        ``to``: a directory, or ``s3://bucket/prefix``. An answer is erased in the store when it is durable in the
        archive. Its record stays until its retention ends: a late duplicate does not run, and gets
        `ResultUnavailableError`. ``limit``, ``after``: as in `reencrypt`. Killed at any point, it loses nothing.
        """
        archive = opened_archive(to)
        job = Archiving(self._recorded_before(older_than), limit, after, self._keeps_steps)
        while not job.is_over:
            rows = self._runtime.run(job.page())
            archive.write(rows)
            self._runtime.run(job.erase(rows))
        return job.report()

    def park_stuck(self, older_than: Duration = 7 * 86400) -> list[Record]:
        """Park work whose lease ended this long ago without a redelivery; returns the records."""
        flow = operations.park_stuck(self._before(older_than), self._resolved.retention_ms)
        return self._tell_parked(self._runtime.run(flow))

    def maintain(
        self,
        *,
        every: Duration = 300,
        limit: int | None = None,
        park_after: Duration | None = 7 * 86400,
    ) -> Maintenance:
        """Sweep every ``every`` seconds until `close`; one node per interval runs it.

        ``limit``: remove at most this many records per round. ``park_after``: every twelfth round
        also parks work that has been stuck this long (`park_stuck`); None: never.
        """
        require_open(self._runtime.store)
        upkeep = Maintenance(cast("Receiver", self), every, limit, park_after)
        self._upkeep.append(upkeep)
        return upkeep

    def stats(self) -> Stats:
        """The number of records in each state."""
        return self._runtime.run(operations.survey())

    def sample(self) -> Stats:
        """`stats`, and observers get the numbers: their gauges. `maintain` does it every round.

        It counts all records, so call it every minute or so, not with every request.
        """
        return self._tell_sample(self.stats())

    def records(
        self, *, limit: int | None = None, **conditions: Unpack[Conditions]
    ) -> Iterator[Record]:
        """An iterator over the records, newest first; it reads a page at a time.

        ``state``: in this state, or in one of several. ``scope``: the full scope starts with these parts.
        ``value``: the key's value, in any scope. ``error``: the recorded error starts with this text.
        ``since``, ``older_than``: when the record last changed (``"2h"``, or a datetime). ``stuck``: in
        progress, and the lease is over. ``cause``: why the handler was last started again. ``id``: the first
        hex digits of the key's id. ``limit``: at most this many.
        """
        query = searching.Browsing(self._asked(conditions), limit)
        return self._each(query)

    def _each(self, query: searching.Browsing) -> Iterator[Record]:
        while query.left:
            yield from query.took(self._runtime.run(query.page()))

    def records_page(
        self, *, limit: int = 100, after: str = "", **conditions: Unpack[Conditions]
    ) -> tuple[list[Record], str]:
        """A page of `records`, and the cursor of the next page (empty: last page)."""
        return self._runtime.run(searching.browse(self._asked(conditions), limit, after))

    def count(self, *, up_to: int | None = None, **conditions: Unpack[Conditions]) -> int:
        """How many records meet the conditions of `records`.

        ``up_to``: stop counting there; on a large store that is much quicker than counting all.
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
        return judge(take_signs(cast("Receiver", self)), thresholds or Thresholds())

    def doctor(self) -> list[Finding]:
        """Check the settings that the guarantees depend on, the sweep, and the newest records."""
        from ..planning import measured_from

        found, _ = self.records_page(limit=LOOKED_AT)
        return [
            *self._runtime.store.doctor(),
            *unswept(self.stats()),
            *measured_from(found).findings(),
        ]


class AsyncOperators(OperatorFlows):
    """The operators' methods of `AsyncReceiver`."""

    _runtime: EventLoopRuntime
    store: AsyncStore
    _upkeep: list[AsyncMaintenance]

    async def record(self, key: KeyLike) -> Record | None:
        """The record of a key, or None."""
        return await self._runtime.run(operations.read(self.key(key), self._keeps_steps))

    async def release(
        self,
        key: KeyLike,
        *,
        by: str,
        why: str = "",
        force: bool = False,
        fence: int | None = None,
    ) -> None:
        """Let the next delivery run. ``force``: even if the work is done; it will run again.

        ``fence``: only if the record still has the fence that you saw (`Record.fence`).
        """
        await self._runtime.run(self._release(self.key(key), by, why, force, fence))

    async def resolve(
        self,
        key: KeyLike,
        value: object,
        *,
        by: str,
        why: str = "",
        returns: Any = Any,
        fence: int | None = None,
    ) -> None:
        """Record this value as the answer. ``returns``: its type, if it is not plain data.

        Kept for this receiver's retention from now, and never shorter than before. ``fence``: only if
        the record still has the fence that you saw (`Record.fence`).
        """
        await self._runtime.run(self._resolve(self.key(key), value, by, why, returns, fence))

    async def forget(self, key: KeyLike, *, by: str = "forget", why: str = "") -> None:
        """Erase the result and the key text; a late duplicate still does not run again.

        The record is kept for this receiver's retention from now, and never shorter than before.
        """
        await self._runtime.run(self._forget(self.key(key), by, why))

    async def sweep(self, limit: int | None = None) -> SweepReport:
        """Remove records past their retention, in small batches; at most ``limit`` records."""
        report = await self._runtime.run(operations.sweep(limit))
        if self._keeps_steps:
            await self._runtime.run(operations.tidy_runs())
        self._notify(events.Swept(report.removed, report.examined))
        return report

    async def reencrypt(self, *, limit: int | None = None, after: str = "") -> ReencryptReport:
        """Encrypt recorded answers with the first key of the policy's key ring, newest first, and the arguments,
        steps and signals of durable runs that no worker has now.

        ``limit``: examine at most this many records. ``after``: the report's ``after`` of the last call,
        to continue. It may run beside deliveries: an answer that changes meanwhile is left alone.
        """
        flow = operations.reencrypt(self.policy.encryption, limit, after, self._keeps_steps)
        return await self._runtime.run(flow)

    async def archive(
        self,
        to: Archive | str,
        *,
        older_than: Duration,
        limit: int | None = None,
        after: str = "",
    ) -> ArchiveReport:
        """Move answers that were recorded longer ago than this from the store to an archive.

        ``to``: a directory, or ``s3://bucket/prefix``. An answer is erased in the store when it is durable in the
        archive. Its record stays until its retention ends: a late duplicate does not run, and gets
        `ResultUnavailableError`. ``limit``, ``after``: as in `reencrypt`. Killed at any point, it loses nothing.
        """
        import asyncio

        archive = await asyncio.to_thread(opened_archive, to)
        job = Archiving(self._recorded_before(older_than), limit, after, self._keeps_steps)
        while not job.is_over:
            rows = await self._runtime.run(job.page())
            await asyncio.to_thread(archive.write, rows)
            await self._runtime.run(job.erase(rows))
        return job.report()

    async def park_stuck(self, older_than: Duration = 7 * 86400) -> list[Record]:
        """Park work whose lease ended this long ago without a redelivery; returns the records."""
        flow = operations.park_stuck(self._before(older_than), self._resolved.retention_ms)
        return self._tell_parked(await self._runtime.run(flow))

    def maintain(
        self,
        *,
        every: Duration = 300,
        limit: int | None = None,
        park_after: Duration | None = 7 * 86400,
    ) -> AsyncMaintenance:
        """Sweep every ``every`` seconds until `close`; one node per interval runs it.

        ``limit``: remove at most this many records per round. ``park_after``: every twelfth round
        also parks work that has been stuck this long (`park_stuck`); None: never.
        """
        require_open(self._runtime.store)
        upkeep = AsyncMaintenance(cast("AsyncReceiver", self), every, limit, park_after)
        self._upkeep.append(upkeep)
        return upkeep

    async def stats(self) -> Stats:
        """The number of records in each state."""
        return await self._runtime.run(operations.survey())

    async def sample(self) -> Stats:
        """`stats`, and observers get the numbers: their gauges. `maintain` does it every round.

        It counts all records, so call it every minute or so, not with every request.
        """
        return self._tell_sample(await self.stats())

    def records(
        self, *, limit: int | None = None, **conditions: Unpack[Conditions]
    ) -> AsyncIterator[Record]:
        """An async iterator over the records, newest first; it reads a page at a time.

        ``state``: in this state, or in one of several. ``scope``: the full scope starts with these parts.
        ``value``: the key's value, in any scope. ``error``: the recorded error starts with this text.
        ``since``, ``older_than``: when the record last changed (``"2h"``, or a datetime). ``stuck``: in
        progress, and the lease is over. ``cause``: why the handler was last started again. ``id``: the first
        hex digits of the key's id. ``limit``: at most this many.
        """
        query = searching.Browsing(self._asked(conditions), limit)
        return self._each(query)

    async def _each(self, query: searching.Browsing) -> AsyncIterator[Record]:
        while query.left:
            for record in query.took(await self._runtime.run(query.page())):
                yield record

    async def records_page(
        self, *, limit: int = 100, after: str = "", **conditions: Unpack[Conditions]
    ) -> tuple[list[Record], str]:
        """A page of `records`, and the cursor of the next page (empty: last page)."""
        return await self._runtime.run(searching.browse(self._asked(conditions), limit, after))

    async def count(self, *, up_to: int | None = None, **conditions: Unpack[Conditions]) -> int:
        """How many records meet the conditions of `records`.

        ``up_to``: stop counting there; on a large store that is much quicker than counting all.
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
        signs = await take_signs_async(cast("AsyncReceiver", self))
        return judge(signs, thresholds or Thresholds())

    async def doctor(self) -> list[Finding]:
        """Check the settings that the guarantees depend on, the sweep, and the newest records."""
        from ..planning import measured_from

        found, _ = await self.records_page(limit=LOOKED_AT)
        return [
            *await self._runtime.store.doctor(),
            *unswept(await self.stats()),
            *measured_from(found).findings(),
        ]
