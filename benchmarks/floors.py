"""The floors: the least code on the raw driver that still keeps the whole protocol.

Each has an atomic claim with an owner token and a fence, takes over a claim whose lease ran out,
completes only as the owner at its fence, keeps the result as bytes and reads before it writes.
None has waiting, renewal, policies, batches, errors that explain, or a second store. That is what
a careful programmer would write in an afternoon, so a ratio to it is the price of the rest.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from .workload import RESULT, Contestant, nothing

LEASE, RETENTION = 30.0, 86_400.0
RUNNING, DONE = 0, 1

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


class BusyError(Exception):
    """Another owner's claim is alive."""


class LostError(Exception):
    """The completion came from a worker that no longer owns the key."""


class MemoryFloor:
    """A dict and a lock."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, int, int, float, bytes]] = {}
        self._lock = threading.Lock()
        self._owners = itertools.count(1)

    def claim(self, key: str) -> tuple[int, int, bytes | None]:
        now, owner, fence = time.monotonic(), next(self._owners), 1
        with self._lock:
            row = self._rows.get(key)
            if row is not None:
                state, _, fence, until, payload = row
                if until > now:
                    if state == DONE:
                        return 0, fence, payload
                    raise BusyError
                fence += 1
            self._rows[key] = (RUNNING, owner, fence, now + LEASE, b"")
        return owner, fence, None

    def complete(self, key: str, owner: int, fence: int, payload: bytes) -> None:
        until = time.monotonic() + RETENTION
        with self._lock:
            row = self._rows.get(key)
            if row is None or row[1] != owner or row[2] != fence:
                raise LostError
            self._rows[key] = (DONE, owner, fence, until, payload)


class SqliteFloor:
    """One connection and a lock; every statement commits by itself."""

    def __init__(self, path: Path, synchronous: str) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA synchronous={synchronous}")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS keys (n INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE,"
            " state INTEGER NOT NULL, owner BLOB NOT NULL, fence INTEGER NOT NULL,"
            " until INTEGER NOT NULL, result BLOB) STRICT"
        )
        self._lock = threading.Lock()
        self._owners = itertools.count(1)

    def new_owner(self) -> bytes:
        return b"0123456789" + next(self._owners).to_bytes(6, "big")

    # One statement each, so that the async floors can hop to their thread where they like.

    def select(self, key: str, now: int) -> bytes | None:
        row = self._db.execute(
            "SELECT state, until, result FROM keys WHERE key = ?", (key,)
        ).fetchone()
        if row is None or row[1] <= now:
            return None
        if row[0] == DONE:
            return bytes(row[2])
        raise BusyError

    def insert(self, key: str, owner: bytes, now: int) -> int:
        rows = self._db.execute(
            "INSERT INTO keys (key, state, owner, fence, until) VALUES (?1, 0, ?2, 1, ?3)"
            " ON CONFLICT (key) DO UPDATE SET state = 0, owner = ?2, fence = fence + 1, until = ?3"
            " WHERE until <= ?4 RETURNING fence",
            (key, owner, now + 30_000, now),
        ).fetchall()
        if not rows:
            raise BusyError
        return int(rows[0][0])

    def update(self, key: str, owner: bytes, fence: int, payload: bytes) -> None:
        until = time.time_ns() // 1_000_000 + 86_400_000
        changed = self._db.execute(
            "UPDATE keys SET state = 1, until = ?, result = ? WHERE key = ? AND owner = ?"
            " AND fence = ? AND state = 0",
            (until, payload, key, owner, fence),
        ).rowcount
        if not changed:
            raise LostError

    def claim(self, key: str) -> tuple[bytes, int, bytes | None]:
        now = time.time_ns() // 1_000_000
        with self._lock:
            payload = self.select(key, now)
            if payload is not None:
                return b"", 0, payload
            owner = self.new_owner()
            return owner, self.insert(key, owner, now), None

    def complete(self, key: str, owner: bytes, fence: int, payload: bytes) -> None:
        with self._lock:
            self.update(key, owner, fence, payload)

    def sweep(self, limit: int) -> int:
        with self._lock:
            return self._db.execute(
                "DELETE FROM keys WHERE n IN (SELECT n FROM keys WHERE until <= ? LIMIT ?)",
                (time.time_ns() // 1_000_000, limit),
            ).rowcount

    def close(self) -> None:
        self._db.close()


def blocking(floor: Any, handler: Callable[[str], Any], name: str) -> Contestant:
    """The call around a floor, in the caller's thread."""

    def call(key: str) -> Any:
        owner, fence, payload = floor.claim(key)
        if payload is not None:
            return decode(payload)
        value = handler(key)
        floor.complete(key, owner, fence, encode(value))
        return value

    return Contestant(name, call, getattr(floor, "close", nothing))


def awaited(floor: MemoryFloor, handler: Callable[[str], Any], name: str) -> Contestant:
    """The same in a coroutine: memory never waits, so it needs no thread."""

    async def call(key: str) -> Any:
        owner, fence, payload = floor.claim(key)
        if payload is not None:
            return decode(payload)
        value = await handler(key)
        floor.complete(key, owner, fence, encode(value))
        return value

    return Contestant(name, call)


def over_the_wire(floor: Any, handler: Callable[[str], Any], name: str) -> Contestant:
    """The call around the floor of an async driver: each phase is awaited."""

    async def call(key: str) -> Any:
        owner, fence, payload = await floor.claim(key)
        if payload is not None:
            return decode(payload)
        value = await handler(key)
        await floor.complete(key, owner, fence, encode(value))
        return value

    return Contestant(name, call, floor.close)


def batched(floor: Any, name: str) -> Contestant:
    """The floor's own batch: two round trips, and the handler's result encoded once per key."""

    def many(keys: Sequence[str]) -> None:
        floor.batch(keys, [encode(RESULT) for _ in keys])

    return Contestant(name, close=floor.close, many=many)


def batched_async(floor: Any, name: str) -> Contestant:
    async def many(keys: Sequence[str]) -> None:
        await floor.batch(keys, [encode(RESULT) for _ in keys])

    return Contestant(name, close=floor.close, many=many)


# --- SQLite under an event loop: where to hop to the thread? ------------------------------------


class Worker:
    """One thread that runs what it is given, as aiosqlite has one per connection."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def run(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._jobs.put((function, args, loop, future))
        return future

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, args, loop, future = job
            try:
                answer = function(*args)
            except Exception as error:
                loop.call_soon_threadsafe(future.set_exception, error)
            else:
                loop.call_soon_threadsafe(future.set_result, answer)

    def then(self, close: Callable[[], None]) -> Callable[[], None]:
        """Stops the thread, then closes what it worked on."""

        def stop() -> None:
            self._jobs.put(None)
            self._thread.join()
            close()

        return stop


def hop_per_phase(floor: SqliteFloor, handler: Callable[[str], Any], name: str) -> Contestant:
    """A whole claim, or a whole completion, in one hop to the thread."""
    worker = Worker()

    async def call(key: str) -> Any:
        owner, fence, payload = await worker.run(floor.claim, key)
        if payload is not None:
            return decode(payload)
        value = await handler(key)
        await worker.run(floor.complete, key, owner, fence, encode(value))
        return value

    return Contestant(name, call, worker.then(floor.close))


def hop_per_statement(floor: SqliteFloor, handler: Callable[[str], Any], name: str) -> Contestant:
    """One hop per statement, as code written on aiosqlite has (its best: execute_fetchall)."""
    worker = Worker()

    async def call(key: str) -> Any:
        now = time.time_ns() // 1_000_000
        payload = await worker.run(floor.select, key, now)
        if payload is not None:
            return decode(payload)
        owner = floor.new_owner()
        fence = await worker.run(floor.insert, key, owner, now)
        value = await handler(key)
        await worker.run(floor.update, key, owner, fence, encode(value))
        return value

    return Contestant(name, call, worker.then(floor.close))


# --- floors of single questions -----------------------------------------------------------------


def cached(name: str) -> Contestant:
    """A replay cache: bytes in a dict with their end, decoded for every caller."""
    kept: dict[str, tuple[float, bytes]] = {}

    def call(key: str) -> Any:
        found = kept.get(key)
        if found is not None and found[0] > time.monotonic():
            return decode(found[1])
        kept[key] = (time.monotonic() + RETENTION, encode(RESULT))
        return RESULT

    return Contestant(name, call)


def single_flight(handler: Callable[[str], Any], name: str) -> Contestant:
    """Equal keys of one process: the first runs, the others wait for its future."""
    flights: dict[str, Future[Any]] = {}

    def call(key: str) -> Any:
        mine: Future[Any] = Future()
        flight = flights.setdefault(key, mine)
        if flight is not mine:
            return flight.result()
        value = handler(key)
        mine.set_result(value)
        return value

    return Contestant(name, call)


def single_flight_async(handler: Callable[[str], Any], name: str) -> Contestant:
    flights: dict[str, asyncio.Future[Any]] = {}

    async def call(key: str) -> Any:
        flight = flights.get(key)
        if flight is None:
            flight = flights[key] = asyncio.ensure_future(handler(key))
        return await asyncio.shield(flight)

    return Contestant(name, call)
