"""The stage of the crash sweep: a world that outlives its processes, and processes in two modes.

A `World` holds what survives a death: the store's data, its clock, and the effects in the outside
world. A `Worker` is one process on it: a receiver of either mode behind one blocking face, so
that every scenario is written once.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from twicesafe import AsyncReceiver, Cause, Key, Outcome, Policy, Receiver, current_claim
from twicesafe._core.protocol import History, Read
from twicesafe._engines.sqlite import AsyncSqliteStore, SqliteStore
from twicesafe._values.records import AuditEntry, Row
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore
from twicesafe.testing._clock import FakeClock
from twicesafe.testing._crash import Life

LEASE = 30
RETENTION = 3600


class Effect(NamedTuple):
    key: str
    fence: int
    attempt: int
    cause: Cause | None


class World:
    """What a crash cannot take away."""

    def __init__(
        self, template: Path | None, folder: Path, memory: type[MemoryStore] = MemoryStore
    ) -> None:
        self.clock = FakeClock()
        self.effects: list[Effect] = []
        self.values: dict[str, set[object]] = {}
        """Everything that any caller was ever given, by key."""
        self._memory = memory(now=self.clock)
        self._path: Path | None = None
        if template is not None:
            self._path = folder / f"{len(list(folder.iterdir()))}.db"
            shutil.copyfile(template, self._path)

    def store(self) -> MemoryStore | SqliteStore:
        if self._path is None:
            return self._memory
        return SqliteStore(self._path, synchronous="normal", now=self.clock)

    def perform(self, request: Any) -> Any:
        """A look, or a deed, from outside of any life."""
        store = self.store()
        try:
            return store.perform(request)
        finally:
            store.close()

    def row(self, key: str) -> Row | None:
        return self.perform(Read(Key(key).id))

    def audit(self, key: str) -> list[AuditEntry]:
        return self.perform(History(Key(key).id))

    def effects_of(self, key: str) -> list[Effect]:
        return [effect for effect in self.effects if effect.key == key]

    @contextmanager
    def worker(self, mode: str, life: Life | None = None, **policy: Any) -> Iterator[Worker]:
        """A process. Its end closes what the operating system would close, and says nothing."""
        policy = {"lease": LEASE, "retention": RETENTION, "wait": 0, **policy}
        worker = (BlockingWorker if mode == "sync" else AsyncWorker)(
            self, life or Life(), Policy(**policy)
        )
        try:
            yield worker
        finally:
            worker.end()


class Worker:
    def __init__(self, world: World, life: Life) -> None:
        self._world, self._life = world, life

    def charge(self, key: str = "k", fails: Exception | None = None) -> str:
        """The handler: one effect in the outside world, or a failure before it."""
        claim = current_claim()
        assert claim is not None
        assert claim.key.value == key
        self._life.reach("handler starts")
        if fails is not None:
            raise fails
        self._world.effects.append(Effect(key, claim.fence, claim.attempt, claim.cause))
        self._life.reach("effect done")
        return f"receipt {claim.fence}"

    def deliver(self, key: str = "k", fails: Exception | None = None) -> Outcome[str]:
        return self._got(self.process(key, fails))

    def _got(self, outcome: Any) -> Any:
        self._world.values.setdefault(outcome.key.value, set()).add(outcome.value)
        return outcome

    def process(self, key: str, fails: Exception | None) -> Outcome[str]:
        raise NotImplementedError


class BlockingWorker(Worker):
    def __init__(self, world: World, life: Life, policy: Policy) -> None:
        super().__init__(world, life)
        self.receiver = Receiver(life.bind(world.store()), policy=policy)

    def process(self, key: str, fails: Exception | None) -> Outcome[str]:
        return self.receiver.process(key, self.charge, key, fails)

    def process_many(self, keys: list[str]) -> list[Any]:
        answers = self.receiver.process_many(keys, self.charge, key=lambda key: key)
        return [self._got(answer) if answer.ok else answer for answer in answers]

    def by_hand(self, key: str) -> None:
        with self.receiver.claim(key) as claim:
            if claim.is_new:
                claim.complete(self.charge(key))
        self._world.values.setdefault(key, set()).add(claim.result)

    def operate(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.receiver, name)(*args, **kwargs)

    def end(self) -> None:
        self.receiver.close()


class AsyncWorker(Worker):
    """The async version, on its own event loop."""

    def __init__(self, world: World, life: Life, policy: Policy) -> None:
        super().__init__(world, life)
        self._loop = asyncio.new_event_loop()
        inner = world.store()
        if isinstance(inner, MemoryStore):
            store: Any = AsyncMemoryStore(inner)
        else:
            store = AsyncSqliteStore(lambda: inner, inner.url)
        self.receiver = AsyncReceiver(life.bind(store), policy=policy)
        self._await: Callable[[Any], Any] = self._loop.run_until_complete

    async def _charge(self, key: str, fails: Exception | None = None) -> str:
        await asyncio.sleep(0)
        return self.charge(key, fails)

    def process(self, key: str, fails: Exception | None) -> Outcome[str]:
        return self._await(self.receiver.process(key, self._charge, key, fails))

    def process_many(self, keys: list[str]) -> list[Any]:
        many = self.receiver.process_many(keys, self._charge, key=lambda key: key)
        return [self._got(answer) if answer.ok else answer for answer in self._await(many)]

    def by_hand(self, key: str) -> None:
        async def work() -> object:
            async with self.receiver.claim(key) as claim:
                if claim.is_new:
                    await claim.complete(await self._charge(key))
            return claim.result

        self._world.values.setdefault(key, set()).add(self._await(work()))

    def operate(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._await(getattr(self.receiver, name)(*args, **kwargs))

    def end(self) -> None:
        self._await(self.receiver.close())
        self._await(self._loop.shutdown_default_executor())
        self._loop.close()
