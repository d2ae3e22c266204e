"""What a million keys weigh: on disk in SQLite, in memory in the memory store; and their sweep.

Each is measured in a process of its own (``python -m benchmarks.size sqlite 1000000``), which
prints one line of JSON. Stores are filled by their own batch form, with results of 200 bytes and
keys as the other cases use them. The first records are due at once, so that a sweep of a full
table can be timed; its floor is one DELETE per bite on the hand-written table.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .workload import RESULT, Lap, key_of

BATCH = 2_000
RETENTION_MS = 86_400_000


def fill(store: object, count: int, due: int = 0, batch: int = BATCH) -> None:
    """`count` completed records, through the store's own batch form; the first `due` are due."""
    from twicesafe._core.protocol import ClaimRequest, Complete
    from twicesafe._values.codecs import DEFAULT_CODEC
    from twicesafe._values.keys import Key, new_owner

    payload = DEFAULT_CODEC.encode(RESULT)
    for numbers in _chunks(count, batch):
        claims = [ClaimRequest(Key(key_of(n)), new_owner(), 30_000) for n in numbers]
        won = store.perform_many(claims)  # type: ignore[attr-defined]
        kept = (1 if n < due else RETENTION_MS for n in numbers)
        done = [
            Complete(claim.key.id, claim.owner, answer.fence, retention, payload)
            for claim, answer, retention in zip(claims, won, kept, strict=True)
        ]
        store.perform_many(done)  # type: ignore[attr-defined]


def _chunks(count: int, batch: int = BATCH) -> Iterator[list[int]]:
    numbers = iter(range(count))
    while chunk := list(itertools.islice(numbers, batch)):
        yield chunk


def sqlite_size(count: int) -> dict[str, float]:
    from twicesafe import Receiver
    from twicesafe._engines.sqlite import SqliteStore

    from .floors import SqliteFloor

    due = count // 20
    with tempfile.TemporaryDirectory(dir=place()) as folder:
        path = Path(folder) / "ours.db"
        store = SqliteStore(path, synchronous="normal")
        fill(store, count, due)
        store.close()
        _merge_wal(path)
        size = path.stat().st_size
        floor_path = Path(folder) / "floor.db"
        floor = SqliteFloor(floor_path, "normal")
        _fill_floor(floor, count, due)
        _merge_wal(floor_path)
        floor_size = floor_path.stat().st_size
        with Receiver(SqliteStore(path, synchronous="normal")) as receiver:
            ours = timed(lambda: receiver.sweep(limit=due).removed, due)
        theirs = timed(lambda: sum(floor.sweep(500) for _ in range(-(-due // 500))), due)
        floor.close()
    return {
        "bytes_per_key": size / count,
        "floor_bytes_per_key": floor_size / count,
        "sweep_seconds": ours.wall,
        "sweep_processor_seconds": ours.processor,
        "floor_sweep_seconds": theirs.wall,
        "floor_sweep_processor_seconds": theirs.processor,
    }


def timed(sweep: Callable[[], int], due: int) -> Lap:
    """Per removed key."""
    start = Lap.now()
    removed = sweep()
    took = Lap.now().since(start)
    assert removed == due, (removed, due)
    return took.per(due)


def _fill_floor(floor: object, count: int, due: int) -> None:
    from .floors import encode

    payload, db = encode(RESULT), floor._db  # type: ignore[attr-defined]
    kept = time.time_ns() // 1_000_000 + RETENTION_MS
    for numbers in _chunks(count):
        db.execute("BEGIN")
        db.executemany(
            "INSERT INTO keys (key, state, owner, fence, until, result) VALUES (?, 1, ?, 1, ?, ?)",
            [
                (key_of(n), floor.new_owner(), 1 if n < due else kept, payload)  # type: ignore[attr-defined]
                for n in numbers
            ],
        )
        db.execute("COMMIT")


def _merge_wal(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def memory_size(count: int) -> dict[str, float]:
    from twicesafe.stores.memory import MemoryStore

    store = MemoryStore()
    fill(store, 1_000)  # what the code itself needs is not counted
    before = _resident()
    fill(store, count)
    # The peak is what a machine must have; the rest tells what a key costs.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if _in_bytes() else 1024)
    return {"bytes_per_key": (_resident() - before) / count, "peak_bytes": peak}


def _resident() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if _in_bytes() else 1024)
    return pages * os.sysconf("SC_PAGE_SIZE")


def _in_bytes() -> bool:
    return sys.platform == "darwin"


def place() -> Path | None:
    """Beside the code where that is possible: a temporary folder may be no real disk."""
    beside = Path(".dev")
    return beside.absolute() if beside.is_dir() else None


def both(count: int) -> tuple[dict[str, float], dict[str, float]]:
    """Disk and memory, each in a process of its own, at the same time."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.size", what, str(count)], stdout=subprocess.PIPE
        )
        for what in MEASURES
    ]
    disk, memory = (json.loads(process.communicate()[0]) for process in started)
    return disk, memory


MEASURES = {"sqlite": sqlite_size, "memory": memory_size}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.size")
    parser.add_argument("what", choices=MEASURES)
    parser.add_argument("count", type=int)
    asked = parser.parse_args()
    print(json.dumps(MEASURES[asked.what](asked.count)))
