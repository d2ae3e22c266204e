"""What operators do with a receiver: release, resolve, forget, sweep, re-encrypt and archive its records.

    record = receiver.record("tx-123")
    receiver.release(record.key, by="ann", why="looked at the bank's ledger", fence=record.fence)

`AsyncOperators` is the async version of `Operators`. Both are part of the receiver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from .. import events
from .._core import operations
from .._core.archiving import Archiving
from .._values.closed import require_open
from .._values.keys import KeyLike
from .._values.records import ArchiveReport, Record, ReencryptReport, SweepReport
from .._values.settings import Duration
from ._maintenance import AsyncMaintenance, Maintenance
from ._operator_flows import OperatorFlows

if TYPE_CHECKING:
    from .._runtime.blocking import BlockingRuntime
    from .._runtime.event_loop import EventLoopRuntime
    from ..archive import Archive
    from ..stores._base import AsyncStore, Store
    from ._receiver import AsyncReceiver, Receiver

__all__ = ["AsyncOperators", "Operators"]


def opened_archive(to: Archive | str) -> Archive:
    from ..archive import Archive

    return Archive.open(to) if isinstance(to, str) else to


class Operators(OperatorFlows):
    """The operators' methods of `Receiver`."""

    _runtime: BlockingRuntime
    store: Store
    _upkeep: list[Maintenance]

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

        The record is kept for this receiver's retention, counted from now, and never shorter than
        before. ``fence``: only if the record still has the fence that you saw (`Record.fence`).
        """
        self._runtime.run(self._resolve(self.key(key), value, by, why, returns, fence))

    def forget(self, key: KeyLike, *, by: str = "forget", why: str = "") -> None:
        """Erase the result and the key text; a late duplicate still does not run again.

        The record is kept for this receiver's retention, counted from now, and never shorter than before.
        """
        self._runtime.run(self._forget(self.key(key), by, why))

    def sweep(self, limit: int | None = None) -> SweepReport:
        """Remove records past their retention, in small batches; at most ``limit`` records."""
        report = self._runtime.run(operations.sweep(limit))
        if self._keeps_steps:
            self._runtime.run(operations.tidy_runs())
        self._notify(events.Swept(report.removed, report.examined))
        return report

    def reencrypt(
        self,
        *,
        limit: int | None = None,
        after: str = "",
        by: str | None = None,
        why: str = "",
    ) -> ReencryptReport:
        """Encrypt recorded answers with the first key of the policy's key ring, newest first, and
        the arguments, steps and signals of durable runs that no worker is running.

        ``limit``: examine at most this many records. ``after``: the report's ``after`` of the last
        call, to continue. ``by``, ``why``: the audit log gets one entry before the first answer is
        rewritten, and one at the end, with the numbers. It may run during deliveries: an answer
        that changes meanwhile is left alone.
        """
        return self._runtime.run(self._reencrypt(limit, after, by, why))

    def archive(
        self,
        to: Archive | str,
        *,
        older_than: Duration,
        limit: int | None = None,
        after: str = "",
        by: str = "archive",
        why: str = "its answer is in the archive",
    ) -> ArchiveReport:
        """Move answers that were recorded longer ago than this from the store to an archive.

        ``to``: a directory, or ``s3://bucket/prefix``. An answer is erased in the store when it is
        durable in the archive. Its record stays until its retention ends: a late duplicate does not
        run, and gets `ResultUnavailableError`. ``limit``, ``after``: as in `reencrypt`. ``by``,
        ``why``: for the audit trail of each key. If the process is killed, no answer is lost.
        Records that cannot be read stay, and the report names them.
        """
        archive = opened_archive(to)
        before = self._recorded_before(older_than)
        job = Archiving(before, limit, after, by, why, self._keeps_steps)
        while not job.is_over:
            rows = self._runtime.run(job.page())
            archive.write(rows)
            self._runtime.run(self._erase(job, rows))
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


class AsyncOperators(OperatorFlows):
    """The operators' methods of `AsyncReceiver`."""

    _runtime: EventLoopRuntime
    store: AsyncStore
    _upkeep: list[AsyncMaintenance]

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

        The record is kept for this receiver's retention, counted from now, and never shorter than
        before. ``fence``: only if the record still has the fence that you saw (`Record.fence`).
        """
        await self._runtime.run(self._resolve(self.key(key), value, by, why, returns, fence))

    async def forget(self, key: KeyLike, *, by: str = "forget", why: str = "") -> None:
        """Erase the result and the key text; a late duplicate still does not run again.

        The record is kept for this receiver's retention, counted from now, and never shorter than before.
        """
        await self._runtime.run(self._forget(self.key(key), by, why))

    async def sweep(self, limit: int | None = None) -> SweepReport:
        """Remove records past their retention, in small batches; at most ``limit`` records."""
        report = await self._runtime.run(operations.sweep(limit))
        if self._keeps_steps:
            await self._runtime.run(operations.tidy_runs())
        self._notify(events.Swept(report.removed, report.examined))
        return report

    async def reencrypt(
        self,
        *,
        limit: int | None = None,
        after: str = "",
        by: str | None = None,
        why: str = "",
    ) -> ReencryptReport:
        """Encrypt recorded answers with the first key of the policy's key ring, newest first, and
        the arguments, steps and signals of durable runs that no worker is running.

        ``limit``: examine at most this many records. ``after``: the report's ``after`` of the last
        call, to continue. ``by``, ``why``: the audit log gets one entry before the first answer is
        rewritten, and one at the end, with the numbers. It may run during deliveries: an answer
        that changes meanwhile is left alone.
        """
        return await self._runtime.run(self._reencrypt(limit, after, by, why))

    async def archive(
        self,
        to: Archive | str,
        *,
        older_than: Duration,
        limit: int | None = None,
        after: str = "",
        by: str = "archive",
        why: str = "its answer is in the archive",
    ) -> ArchiveReport:
        """Move answers that were recorded longer ago than this from the store to an archive.

        ``to``: a directory, or ``s3://bucket/prefix``. An answer is erased in the store when it is
        durable in the archive. Its record stays until its retention ends: a late duplicate does not
        run, and gets `ResultUnavailableError`. ``limit``, ``after``: as in `reencrypt`. ``by``,
        ``why``: for the audit trail of each key. If the process is killed, no answer is lost.
        Records that cannot be read stay, and the report names them.
        """
        import asyncio

        archive = await asyncio.to_thread(opened_archive, to)
        before = self._recorded_before(older_than)
        job = Archiving(before, limit, after, by, why, self._keeps_steps)
        while not job.is_over:
            rows = await self._runtime.run(job.page())
            await asyncio.to_thread(archive.write, rows)
            await self._runtime.run(self._erase(job, rows))
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
