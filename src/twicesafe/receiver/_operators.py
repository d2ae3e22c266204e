"""What operators do with a receiver: read, release, resolve, forget, sweep and check its records.

    receiver.record("tx-123").state                     one key
    for record in receiver.records(state=State.HELD):   many, a page at a time
        receiver.release(record.key, by="ann", why="looked at the bank's ledger")

`AsyncOperators` is the async version of `Operators`. Both are part of the receiver.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from .. import events
from .._core import operations
from .._values.closed import require_open
from .._values.keys import KeyLike
from .._values.records import AuditEntry, Record, State, Stats, SweepReport
from .._values.settings import Duration
from ..stores._base import Finding
from ._base import ReceiverBase, unswept
from ._maintenance import AsyncMaintenance, Maintenance

if TYPE_CHECKING:
    from .._runtime.blocking import BlockingRuntime
    from .._runtime.event_loop import EventLoopRuntime
    from ..stores._base import AsyncStore, Store
    from ._receiver import AsyncReceiver, Receiver

__all__ = ["AsyncOperators", "Operators"]


class Operators(ReceiverBase):
    """The operators' methods of `Receiver`."""

    _runtime: BlockingRuntime
    store: Store
    _upkeep: list[Maintenance]

    def record(self, key: KeyLike) -> Record | None:
        """The record of a key, or None."""
        return self._runtime.run(operations.read(self.key(key)))

    def release(self, key: KeyLike, *, by: str, why: str = "", force: bool = False) -> None:
        """Let the next delivery run. ``force``: even if the work is done; it will run again."""
        self._runtime.run(self._release(self.key(key), by, why, force))

    def resolve(
        self, key: KeyLike, value: object, *, by: str, why: str = "", returns: Any = Any
    ) -> None:
        """Record this value as the answer. ``returns``: its type, if it is not plain data.

        Kept for this receiver's retention from now, and never shorter than before.
        """
        self._runtime.run(self._resolve(self.key(key), value, by, why, returns))

    def forget(self, key: KeyLike, *, by: str = "forget", why: str = "") -> None:
        """Erase the result and the key text; a late duplicate still does not run again.

        The record is kept for this receiver's retention from now, and never shorter than before.
        """
        self._runtime.run(self._forget(self.key(key), by, why))

    def sweep(self, limit: int | None = None) -> SweepReport:
        """Remove records past their retention, in small batches; at most ``limit`` records."""
        report = self._runtime.run(operations.sweep(limit))
        self._notify(events.Swept(report.removed, report.examined))
        return report

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

    def records(
        self,
        *,
        state: State | None = None,
        scope: Iterable[str] = (),
        limit: int | None = None,
    ) -> Iterator[Record]:
        """An iterator over the records, newest first; it reads a page at a time.

        ``state``: only records in this state. ``scope``: only keys whose full scope starts with these
        parts. ``limit``: at most this many.
        """
        query = operations.Browsing(state, scope, limit)
        return self._each(query)

    def _each(self, query: operations.Browsing) -> Iterator[Record]:
        while query.left:
            yield from query.took(self._runtime.run(query.page()))

    def records_page(
        self,
        *,
        state: State | None = None,
        scope: Iterable[str] = (),
        limit: int = 100,
        after: str = "",
    ) -> tuple[list[Record], str]:
        """A page of records, newest first, and the cursor of the next page (empty: last page)."""
        return self._runtime.run(operations.browse(state, tuple(scope), limit, after))

    def audit(self, key: KeyLike) -> list[AuditEntry]:
        """The operator actions on this key."""
        return self._runtime.run(operations.audit(self.key(key)))

    def doctor(self) -> list[Finding]:
        """Check the settings that the guarantees depend on, and whether records are swept."""
        return [*self._runtime.store.doctor(), *unswept(self.stats())]


class AsyncOperators(ReceiverBase):
    """The operators' methods of `AsyncReceiver`."""

    _runtime: EventLoopRuntime
    store: AsyncStore
    _upkeep: list[AsyncMaintenance]

    async def record(self, key: KeyLike) -> Record | None:
        """The record of a key, or None."""
        return await self._runtime.run(operations.read(self.key(key)))

    async def release(self, key: KeyLike, *, by: str, why: str = "", force: bool = False) -> None:
        """Let the next delivery run. ``force``: even if the work is done; it will run again."""
        await self._runtime.run(self._release(self.key(key), by, why, force))

    async def resolve(
        self, key: KeyLike, value: object, *, by: str, why: str = "", returns: Any = Any
    ) -> None:
        """Record this value as the answer. ``returns``: its type, if it is not plain data.

        Kept for this receiver's retention from now, and never shorter than before.
        """
        await self._runtime.run(self._resolve(self.key(key), value, by, why, returns))

    async def forget(self, key: KeyLike, *, by: str = "forget", why: str = "") -> None:
        """Erase the result and the key text; a late duplicate still does not run again.

        The record is kept for this receiver's retention from now, and never shorter than before.
        """
        await self._runtime.run(self._forget(self.key(key), by, why))

    async def sweep(self, limit: int | None = None) -> SweepReport:
        """Remove records past their retention, in small batches; at most ``limit`` records."""
        report = await self._runtime.run(operations.sweep(limit))
        self._notify(events.Swept(report.removed, report.examined))
        return report

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

    def records(
        self,
        *,
        state: State | None = None,
        scope: Iterable[str] = (),
        limit: int | None = None,
    ) -> AsyncIterator[Record]:
        """An async iterator over the records, newest first; it reads a page at a time.

        ``state``: only records in this state. ``scope``: only keys whose full scope starts with these
        parts. ``limit``: at most this many.
        """
        query = operations.Browsing(state, scope, limit)
        return self._each(query)

    async def _each(self, query: operations.Browsing) -> AsyncIterator[Record]:
        while query.left:
            for record in query.took(await self._runtime.run(query.page())):
                yield record

    async def records_page(
        self,
        *,
        state: State | None = None,
        scope: Iterable[str] = (),
        limit: int = 100,
        after: str = "",
    ) -> tuple[list[Record], str]:
        """A page of records, newest first, and the cursor of the next page (empty: last page)."""
        return await self._runtime.run(operations.browse(state, tuple(scope), limit, after))

    async def audit(self, key: KeyLike) -> list[AuditEntry]:
        """The operator actions on this key."""
        return await self._runtime.run(operations.audit(self.key(key)))

    async def doctor(self) -> list[Finding]:
        """Check the settings that the guarantees depend on, and whether records are swept."""
        return [*await self._runtime.store.doctor(), *unswept(await self.stats())]
