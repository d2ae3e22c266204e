"""Memory that outlives its store object: so that the rules on reopening and sharing meet mutants too.

`Lasting` is right. The others lose, on reopening or in a second object, what a store must keep.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from typing import Any, ClassVar

from twicesafe.stores._base import Capabilities
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore
from twicesafe.testing import FakeClock, Place, StoreConformance

_kept: weakref.WeakKeyDictionary[FakeClock, MemoryStore] = weakref.WeakKeyDictionary()


class LastingStore(MemoryStore):
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(self, now: FakeClock) -> None:
        super().__init__(now)
        self.kept = _kept.setdefault(now, MemoryStore(now))

    def perform(self, request: Any) -> Any:
        return self.kept.perform(request)


class AsyncLastingStore(AsyncMemoryStore):
    capabilities: ClassVar[Capabilities] = LastingStore.capabilities


class Lasting(StoreConformance):
    kind: ClassVar[type[LastingStore]] = LastingStore
    rejected_by: ClassVar[str] = ""

    def open_store(self, place: Place) -> LastingStore:
        return self.kind(place.clock)

    def open_async_store(self, place: Place) -> AsyncLastingStore:
        return AsyncLastingStore(self.open_store(place))


# --- what goes wrong -------------------------------------------------------------------------


class _LosesTheFloor(LastingStore):
    def __init__(self, now: FakeClock) -> None:
        super().__init__(now)
        self.kept._floor = 0


class FenceRestartsOnReopening(Lasting):
    """The highest fence was only in memory."""

    kind = _LosesTheFloor
    rejected_by = "test_fences_keep_increasing_after_a_sweep_and_reopening"


class _LosesTheTrail(LastingStore):
    def __init__(self, now: FakeClock) -> None:
        super().__init__(now)
        self.kept._audit.clear()


class TrailEndsWithTheProcess(Lasting):
    kind = _LosesTheTrail
    rejected_by = "test_the_audit_trail_survives_reopening"


class _LooksBack(LastingStore):
    def __init__(self, now: FakeClock) -> None:
        super().__init__(now)
        self.seen: dict[bytes, Any] = {}

    def perform(self, request: Any) -> Any:
        if request.op != "read":
            return super().perform(request)
        if request.id not in self.seen:
            self.seen[request.id] = super().perform(request)
        return self.seen[request.id]


class AnswersFromAReplica(Lasting):
    """Reads what was true a moment ago."""

    kind = _LooksBack
    rejected_by = "test_the_owner_completes[completed]"


class _LocksOnlyItself(LastingStore):
    """The lock is the object's own, so two objects check and then act."""

    def perform(self, request: Any) -> Any:
        if request.op != "claim":
            return super().perform(request)
        mine = MemoryStore(self.kept._now)
        with self._lock:
            mine._rows = dict(self.kept._rows)
            mine._floor = self.kept._floor
            answer = mine.perform(request)
            if threading.current_thread() is not threading.main_thread():
                time.sleep(0.001)  # long enough for the other object to look
            self.kept._rows |= {request.id: mine._rows[request.id]}
        return answer


class LocksOnlyItself(Lasting):
    kind = _LocksOnlyItself
    rejected_by = "test_a_storm_through_two_store_objects_has_one_winner"


# --- waking ----------------------------------------------------------------------------------


class _WakingStore(LastingStore):
    capabilities: ClassVar[Capabilities] = Capabilities(wake=True)
    conditions: ClassVar[weakref.WeakKeyDictionary[FakeClock, threading.Condition]] = (
        weakref.WeakKeyDictionary()
    )

    def __init__(self, now: FakeClock) -> None:
        super().__init__(now)
        self.changed = self.conditions.setdefault(now, threading.Condition())

    def perform(self, request: Any) -> Any:
        answer = super().perform(request)
        with self.changed:
            self.changed.notify_all()
        return answer

    def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        with self.changed:
            self.changed.wait(seconds)


class _AsyncWakingStore(AsyncLastingStore):
    capabilities: ClassVar[Capabilities] = _WakingStore.capabilities

    async def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        await asyncio.to_thread(self._store.watch, id, seconds)


class Waking(Lasting):
    """Right."""

    kind = _WakingStore

    def open_async_store(self, place: Place) -> AsyncLastingStore:
        return _AsyncWakingStore(self.open_store(place))


class _HearsItselfOnly(_WakingStore):
    def __init__(self, now: FakeClock) -> None:
        super().__init__(now)
        self.changed = threading.Condition()


class HearsItselfOnly(Waking):
    """The wake-up does not leave the object that it happened in."""

    longest_wait = 0.3
    kind = _HearsItselfOnly
    rejected_by = "test_a_watcher_is_woken_at_the_end[complete]"


LOSING = [
    FenceRestartsOnReopening,
    TrailEndsWithTheProcess,
    AnswersFromAReplica,
    LocksOnlyItself,
    HearsItselfOnly,
]
