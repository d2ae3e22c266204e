"""What the dashboard asks a receiver and its store for, awaited, whether the receiver is blocking or async.

A blocking receiver is asked in a worker thread, so that a slow store delays no other page. Counting and
reading a sample take time in a large store, so they happen at a bounded pace, and pages in between show the
last numbers and their age.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from .._core.bulk_actions import ActionReport, act_on_listed
from .._core.commands import Flow
from .._core.consuming.source import SourceStatus
from .._core.health import Health, Thresholds
from .._core.outbox.requests import (
    Backlog,
    Depth,
    ListRelays,
    OutboxRequest,
    ParkedLane,
    ParkedLanes,
    Relays,
    Unpark,
)
from .._core.protocol import Browse, Count, Page, Read
from .._core.searching import MOST, Question
from .._runtime.adapting import for_threads
from .._values.closed import Closed
from .._values.policy import Policy
from .._values.records import AuditEntry, Record, Stats
from .._values.settings import seconds
from ..consumers import DeadLetters, Letter
from ..consumers.sources import open_source
from ..errors import ConfigurationError, SchemaVersionError, TwicesafeError, UsageError
from ..observers._activity import Trouble
from ..receiver import AsyncReceiver, Receiver
from ..receiver._health import Cached
from ..receiver._receiver import check_any_receiver
from ..stores._urls import mask
from ._filters import Filters
from ._metrics import ServiceMetrics
from ._overview import OverviewData, ReceivedCounts

__all__ = ["Backend", "ConsumerStatus"]

T = TypeVar("T")

SAMPLE: Final = 1000
"""How many of the newest records the overview looks at."""
LANES: Final = 200


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """One consumer, and what its broker answered."""

    place: str
    """Its URL, without the password."""
    name: str
    status: SourceStatus | None = None
    problem: str = ""
    """Why there is no answer."""


class Backend:
    """The receiver's side of the dashboard."""

    def __init__(
        self,
        receiver: Receiver | AsyncReceiver,
        thresholds: Thresholds,
        letters: str | None,
        metrics: ServiceMetrics | None = None,
        consumers: Sequence[str] = (),
    ) -> None:
        check_any_receiver(receiver, "dashboard")
        self._receiver: Any = receiver
        self._is_async = isinstance(receiver, AsyncReceiver)
        self._cached = Cached(receiver, thresholds, SAMPLE)
        if receiver._activity is not None:
            receiver._activity.wake()  # its page shows a course from the start
        self._counted_at = datetime.now(UTC)
        self.letters_url = letters
        self.consumer_urls = tuple(consumers)
        self._metrics = metrics
        self._looking = asyncio.Lock()

    @property
    def receiver(self) -> Any:
        return self._receiver

    @property
    def is_closed(self) -> bool:
        return isinstance(self._receiver._runtime.store, Closed)

    @property
    def place(self) -> str:
        """The store's URL, without its password."""
        url: str = self._receiver.store.url
        return url

    @property
    def window(self) -> float:
        policy: Policy = self._receiver.policy
        return seconds(policy.retention)

    # -- reading ------------------------------------------------------------------------------

    async def look(self) -> OverviewData:
        """Everything that the overview shows."""
        before = self._cached.stats
        health = await self._health()
        if self._cached.stats is not before:
            self._counted_at = datetime.now(UTC)
        return OverviewData(
            now=datetime.now(UTC),
            health=health,
            stats=self._cached.stats,
            counted_at=self._counted_at,
            newest=self._cached.newest,
            window=self.window,
            seen=self._seen(),
            problem="" if self._metrics is None else self._metrics.problem,
            depth=await self.depth() if health["store"].status == "ok" else None,
        )

    def _seen(self) -> ReceivedCounts | None:
        activity, metrics = self._receiver._activity, self._metrics
        if activity is not None:
            return ReceivedCounts.of(activity)
        return None if metrics is None else ReceivedCounts.read(metrics)

    async def stats(self) -> Stats | None:
        """The last count, at the pace of the overview."""
        await self._health()
        return self._cached.stats

    async def _health(self) -> Health:
        if self._is_async:
            return await self._cached.health_async()
        return await asyncio.to_thread(self._cached.health)

    async def page(self, filters: Filters, limit: int, after: str = "") -> tuple[list[Record], str]:
        found: tuple[list[Record], str] = await self._ask(
            "records_page", limit=limit, after=after, **filters.arguments()
        )
        return found

    async def counted_page(
        self, filters: Filters, limit: int, after: str, up_to: int
    ) -> tuple[Page, int]:
        """A page, and how many match, counted up to this number."""
        asked = self._receiver._asked(filters.arguments())
        with self._cached.joined() as count:
            page, matched, *counted = await self._together(
                Browse(limit, **asked, after=after), Count(up_to, **asked), *count
            )
            if counted:
                self._cached.counted(*counted)
                self._counted_at = datetime.now(UTC)
        return page, matched

    async def counts(
        self, several: Sequence[Filters], shown: Filters, limit: int
    ) -> tuple[list[int], list[Record]]:
        """How many match each of these filters, and the newest records that match the last one."""
        asked = [self._receiver._asked(filters.arguments()) for filters in (*several, shown)]
        *counts, newest = await self._together(
            *(Count(MOST, **conditions) for conditions in asked[:-1]), Browse(limit, **asked[-1])
        )
        return counts, newest.view()

    async def _together(self, *asks: Question) -> list[Any]:
        found: list[Any] = await self._run(self._receiver._together(*asks))
        return found

    async def record(self, id_: bytes) -> Record | None:
        """The record with this identity: 32 bytes, or 16 if it is forgotten."""
        found = await self._run(_by_id(id_))
        if found is None and len(id_) > 16:
            found = await self._run(_by_id(id_[:16]))
        return found

    async def with_steps(self, record: Record) -> Record:
        """The same record with the steps of its run, if it is one."""
        if record.key is None:
            return record
        found: Record | None = await self._ask("record", record.key)
        return found or record

    async def audit(self, record: Record) -> list[AuditEntry]:
        if record.key is None:
            return []  # only the hash of a forgotten key is left
        trail: list[AuditEntry] = await self._ask("audit", record.key)
        return trail

    async def audit_log(self, limit: int, since: str | None = None) -> list[AuditEntry]:
        log: list[AuditEntry] = await self._ask("audit_log", limit=limit, since=since)
        return log

    @property
    def trouble(self) -> list[Trouble]:
        """What this process saw; empty without observers."""
        activity = self._receiver._activity
        return [] if activity is None else list(activity.trouble)

    # -- acting -------------------------------------------------------------------------------

    async def act(self, request: Flow[Any]) -> Any:
        return await self._run(request)

    async def act_on_listed(self, record: Record, request: Flow[None] | None) -> ActionReport:
        return await self._run(act_on_listed(record, request))

    def release(
        self, record: Record, by: str, why: str, force: bool = False, unless_running: bool = False
    ) -> Flow[None]:
        found: Flow[None] = self._receiver._release(
            record.key, by, why, force, record.fence, unless_running
        )
        return found

    def resolve(
        self,
        record: Record,
        value: Any,
        by: str,
        why: str,
        codec: Any,
        unless_running: bool = False,
    ) -> Flow[None]:
        """``codec``: that of the answer; None: the receiver's own."""
        policy: Policy = self._receiver.policy
        receiver = (
            self._receiver
            if codec is None
            else self._receiver.options(policy=policy.replace(codec=codec))
        )
        found: Flow[None] = receiver._resolve(
            record.key, value, by, why, Any, record.fence, unless_running
        )
        return found

    def forget(self, record: Record, by: str, why: str) -> Flow[None]:
        found: Flow[None] = self._receiver._forget(record.key, by, why)
        return found

    def signal(self, record: Record, name: str, value: Any, by: str, why: str) -> Flow[bool]:
        """False: there is a value already, or the run is over."""
        found: Flow[bool] = self._receiver._signal(record.key, name, value, Any, by, why)
        return found

    def skip(self, record: Record, step: str, value: Any, by: str, why: str) -> Flow[None]:
        found: Flow[None] = self._receiver._skip(
            record.key, step, value, by, why, Any, record.fence
        )
        return found

    def restart(self, record: Record, by: str, why: str, force: bool) -> Flow[None]:
        found: Flow[None] = self._receiver._restart(record.key, by, why, force, record.fence)
        return found

    # -- outbox and dead letters --------------------------------------------------------------

    @property
    def has_outbox(self) -> bool:
        """Whether the store can have one."""
        return bool(self._receiver.store.capabilities.outbox)

    async def depth(self) -> Depth | None:
        """The backlog; None: there is no outbox in this store."""
        return await self._outbox(Backlog())

    async def lanes(self) -> list[ParkedLane]:
        return await self._outbox(ParkedLanes(LANES)) or []

    async def unpark(
        self, lane: str, skip: bool, by: str, why: str, since: int | None = None
    ) -> bool:
        """False: it was not parked, or not since then (milliseconds), and nothing was changed."""
        try:
            name = bytes.fromhex(lane)
        except ValueError:
            raise UsageError("a lane is named by its 32 hex digits") from None
        return bool(await self._outbox(Unpark(name, skip, by, why, since)))

    async def _outbox(self, request: OutboxRequest[T]) -> T | None:
        if not self.has_outbox:
            return None
        try:
            # Not through `Outbox`: that would create the tables, and looking must change nothing.
            found: T = await self._call(self._receiver.store.outbox.perform, request)
        except SchemaVersionError:
            return None
        return found

    async def letters(self, most: int) -> list[Letter]:
        """The oldest dead letters. They stay where they are."""
        url = self.letters_url
        assert url is not None

        def look() -> list[Letter]:
            with DeadLetters.open(url) as dead:
                try:
                    return dead.look(most)
                except ConfigurationError:  # no stream: no letter has created it yet
                    return []

        return await self.alone(look)

    async def alone(self, work: Callable[[], T]) -> T:
        """Run this in a worker thread, one at a time: a letter that one look holds is not seen by another."""
        async with self._looking:
            return await asyncio.to_thread(work)

    # -- who is running -----------------------------------------------------------------------

    async def relays(self) -> Relays | None:
        """None: there is no outbox in this store."""
        return await self._outbox(ListRelays())

    async def consumers(self) -> tuple[ConsumerStatus, ...]:
        """What the brokers say of each consumer, asked all at once."""
        asked = (asyncio.to_thread(_status_of, url) for url in self.consumer_urls)
        return tuple(await asyncio.gather(*asked))

    # -- how ----------------------------------------------------------------------------------

    async def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return await self._call(getattr(self._receiver, method), *args, **kwargs)

    async def _run(self, flow: Flow[T]) -> T:
        found: T = await self._call(self._receiver._runtime.run, flow)
        return found

    async def _call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_async:
            return await method(*args, **kwargs)
        return await asyncio.to_thread(method, *args, **kwargs)


def _status_of(url: str) -> ConsumerStatus:
    place = mask(url)
    try:
        source = for_threads(open_source(url), "fetch")
        try:
            if not hasattr(source, "status"):
                return ConsumerStatus(
                    place, source.name, problem="this source does not say how far it is"
                )
            return ConsumerStatus(place, source.name, source.status())
        finally:
            source.close()
    except TwicesafeError as error:
        return ConsumerStatus(place, place, problem=str(error))


def _by_id(id_: bytes) -> Flow[Record | None]:
    row = yield Read(id_)
    return None if row is None else row.view()
