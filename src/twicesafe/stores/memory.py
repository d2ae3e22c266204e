"""Memory: records in a dict, for tests and for single processes. They are gone when the process ends.

This store is the reference for the others: it applies `_core.lifecycle` and nothing else. Every
operation takes one lock and constant time. Only a sweep removes records.

Each ``memory://`` is a new store; ``memory://name`` is shared by its name within the process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

from msgspec.structs import replace

from .._core import lifecycle
from .._core.protocol import (
    Ack,
    AuditLog,
    Browse,
    Claimed,
    ClaimRequest,
    Complete,
    Count,
    Discard,
    Filter,
    Forget,
    History,
    Page,
    RaiseFences,
    Read,
    Release,
    Request,
    Resolve,
    Survey,
    Sweep,
)
from .._core.record_filter import matches
from .._forking import RenewedLock
from .._values.clocks import steady_wall_clock
from .._values.records import AuditEntry, Row, State, Stats, SweepReport, moment
from ..errors import ConfigurationError
from ._base import AsyncStore, Capabilities, Finding, Store
from ._memory_runs import MemoryRuns
from ._urls import options_of

__all__ = ["AsyncMemoryStore", "MemoryStore"]

_shared: dict[str, MemoryStore] = {}


class MemoryStore(MemoryRuns, Store):
    """The blocking store. Shared by all threads of the process."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        durable=False, shared=False, server_clock=True, steps=True, copies=True
    )

    recalls: ClassVar[bool] = True

    def __init__(self, now: Callable[[], int] | None = None, url: str = "memory://") -> None:
        self.url = url
        self._rows: dict[bytes, Row] = {}
        self._audit: dict[bytes, list[AuditEntry]] = {}
        self._floor = 0
        self._lock = RenewedLock()
        self._now = now or steady_wall_clock()
        super().__init__()

    @classmethod
    def open(cls, url: str) -> Self:
        options_of(url, {})
        parts = urlsplit(url)
        if parts.path not in ("", "/"):
            raise ConfigurationError("a memory URL must be memory:// or memory://name")
        if not parts.netloc:
            return cls()
        found = _shared.setdefault(parts.netloc, cls(url=url))
        assert isinstance(found, cls)
        return found

    def perform(self, request: Request) -> Any:
        with self._lock.now:
            return getattr(self, request.op)(request)

    def recall(self, id: bytes) -> Claimed | None:  # noqa: A002
        row = self._rows.get(id)  # rows are replaced, never changed: no lock is needed
        return None if row is None else lifecycle.recall(row, self._now())

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers: list[Any] = []
        for request in requests:
            try:
                answers.append(self.perform(request))
            except Exception as error:
                answers.append(error)
        return answers

    def doctor(self) -> list[Finding]:
        several = len(os.sched_getaffinity(0)) > 1 if hasattr(os, "sched_getaffinity") else True
        text = "records are kept in this process only and end with it"
        return [Finding("warn" if several else "ok", text, "use sqlite:/// or a server")]

    def close(self) -> None:
        """Does nothing: the rest of the process may share this store."""

    # -- one method per request ---------------------------------------------------------------

    def claim(self, ask: ClaimRequest) -> Claimed:
        answer, row = lifecycle.claim(self._rows.get(ask.key.id), ask, self._now(), self._floor)
        if row is not None:
            self._rows[row.id] = row
        return answer

    def complete(self, ask: Complete) -> Ack:
        ack, row = lifecycle.complete(self._rows.get(ask.id), ask, self._now())
        if row is not None:
            self._rows[row.id] = row
        return ack

    def _decide(self, ask: Any) -> Ack:
        decision = getattr(lifecycle, ask.op)
        ack, row = decision(self._rows.get(ask.id), ask, self._now())
        if row is not None:
            self._rows[row.id] = row
        return ack  # type: ignore[no-any-return]

    renew = fail = abandon = rewrite = adopt = _decide

    def _operate(self, ask: Release | Resolve | Forget) -> Ack:
        before = self._rows.get(ask.id)
        ack = self._decide(ask)
        if before is not None and self._rows[ask.id] is not before:  # it changed something
            # one reading of the clock for both
            self._keep_trail(ask, self._rows[ask.id].changed_at, before.state)
        return ack

    def _keep_trail(self, ask: Any, at: int, before: State) -> None:
        entry = AuditEntry(
            id=ask.id, at=moment(at), action=ask.op, by=ask.by, why=ask.why, state_before=before
        )
        self._audit.setdefault(ask.id, []).append(entry)

    release = resolve = forget = _operate

    def raise_fences(self, ask: RaiseFences) -> Ack:
        self._floor = max(self._floor, ask.above)
        return Ack.OK

    def discard(self, ask: Discard) -> Ack:
        now = self._now()
        ack, row = lifecycle.discard(self._rows.get(ask.id), ask, now)
        if row is not None:
            self._keep_trail(ask, now, row.state)
        return ack

    def read(self, ask: Read) -> Row | None:
        row = self._rows.get(ask.id)
        return None if row is None or lifecycle.is_expired(row, self._now()) else row

    def history(self, ask: History) -> list[AuditEntry]:
        return list(self._audit.get(ask.id, ()))

    def sweep(self, ask: Sweep) -> tuple[SweepReport, str]:
        now, start = self._now(), int(ask.after or 0)
        part = list(islice(self._rows.values(), start, start + ask.limit))
        due = [row for row in part if lifecycle.is_expired(row, now)]
        gone = due[: ask.most]
        for row in gone:
            self._floor = max(self._floor, row.fence)
            del self._rows[row.id]
            self._audit.pop(row.id, None)
        kept = start + (len(part) - len(gone) if gone == due else 0)
        after = str(kept) if kept < len(self._rows) else ""
        return SweepReport(removed=len(gone), examined=len(part), more=bool(after)), after

    def survey(self, ask: Survey) -> Stats:
        now = self._now()
        rows = self._rows.values()
        running = [row for row in rows if row.state is State.IN_PROGRESS]
        oldest = min((row.changed_at for row in running), default=None)
        by_state: dict[State, int] = {}
        for row in rows:
            by_state[row.state] = by_state.get(row.state, 0) + 1
        return Stats(
            by_state=by_state,
            stuck=sum(row.lease_until <= now for row in running),
            expired=sum(lifecycle.is_expired(row, now) for row in rows),
            oldest_in_progress=None if oldest is None else moment(oldest),
            oldest_expired=min(
                (moment(row.expires_at) for row in rows if lifecycle.is_expired(row, now)),
                default=None,
            ),
        )

    def browse(self, ask: Browse) -> Page:
        # The cursor is how many records are older than the last one, whether they match or not: records that
        # cease to match, or are added, between two pages then hide no other.
        older = int(ask.after) if ask.after else len(self._rows)
        found: list[Row] = []
        after = ""
        for place, row in self._found(ask, older):
            if len(found) == ask.limit:
                return Page(found, after)
            found.append(row)
            after = str(place)
        return Page(found)

    def count(self, ask: Count) -> int:
        return sum(1 for _ in islice(self._found(ask, len(self._rows)), ask.limit))

    def _found(self, ask: Filter, older: int) -> Iterator[tuple[int, Row]]:
        """The records that match, newest first, of the oldest ones; each with how many are older."""
        now = self._now()
        rows = list(islice(self._rows.values(), older))
        for place in range(len(rows) - 1, -1, -1):
            if matches(rows[place], ask, now):
                yield place, rows[place]

    def audit_log(self, ask: AuditLog) -> list[AuditEntry]:
        first = moment(ask.since)
        every = [e for trail in self._audit.values() for e in trail if e.at >= first]
        every.sort(key=attrgetter("at"))
        rows = self._rows
        return [
            replace(entry, scope=rows[entry.id].scope, value=rows[entry.id].value)
            for entry in reversed(every[-ask.limit :])
        ]


class AsyncMemoryStore(AsyncStore):
    """The async version of `MemoryStore`, on the same dict. It never waits, so it needs no thread."""

    capabilities: ClassVar[Capabilities] = MemoryStore.capabilities
    immediate: ClassVar[bool] = True
    recalls: ClassVar[bool] = True

    def __init__(self, store: MemoryStore | None = None) -> None:
        self._store = store or MemoryStore()
        self.url = self._store.url
        self.recall = self._store.recall  # type: ignore[method-assign]

    @classmethod
    def open(cls, url: str) -> Self:
        return cls(MemoryStore.open(url))

    async def perform(self, request: Request) -> Any:
        return self._store.perform(request)

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        return self._store.perform_many(requests)

    async def doctor(self) -> list[Finding]:
        return self._store.doctor()

    def blocking_store(self) -> Store:
        return self._store

    async def close(self) -> None:
        self._store.close()
