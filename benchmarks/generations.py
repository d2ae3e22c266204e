"""Millions of expired records: one by one (sweep), or with their generation (DROP).

    python -m benchmarks.generations [records]          PostgreSQL 18 of the tests, fsync on

Two stores on one server get the same records, all past their retention. While a sweep removes them,
two workers claim and complete new keys; their claims are timed, and those of a quiet period before
are the yardstick. Then the cost of a first call and of a duplicate, with and without generations.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import threading
import time
from typing import Any, Self

from tests.servers import launch
from twicesafe import Key, Receiver
from twicesafe._core.protocol import ClaimRequest, Complete, Sweep
from twicesafe._engines.postgresql import PostgresStore
from twicesafe._engines.postgresql.generations import GenerationPrograms

FILL = """
INSERT INTO {table} (fence, lease_until, created_at, changed_at, expires_at, attempt, state, cause,
    hold, id, owner, scope, value, error, result{column})
SELECT 1, 0, 1000, 1000, 1000 + n, 1, 1, 0, false, sha256(int8send(n)), 'owner-of-16-byte', 'shop',
    convert_to('order-' || n, 'utf8'), '', convert_to(repeat('x', 200), 'utf8'){value}
FROM generate_series(1, {records}) n"""


class Load:
    """Workers that claim and complete new keys; how long each claim took."""

    def __init__(self, store: PostgresStore, workers: int = 2) -> None:
        self._store = store
        self.times: list[float] = []
        self.began: list[float] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work) for _ in range(workers)]

    def _work(self) -> None:
        numbers = itertools.count()
        while not self._stop.is_set():
            key = Key(f"{threading.get_ident()}-{next(numbers)}-{time.monotonic_ns()}")
            owner = os.urandom(16)
            began = time.perf_counter()
            won = self._store.perform(ClaimRequest(key, owner, 30_000))
            self.times.append(time.perf_counter() - began)
            self.began.append(began)
            self._store.perform(Complete(key.id, owner, won.fence, 86_400_000, b"x" * 200))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def worst_between(self, start: float, end: float) -> tuple[int, float]:
        """Of the claims that were under way in this time: how many, and the slowest."""
        met = [
            took
            for began, took in zip(self.began, self.times, strict=True)
            if began < end and began + took > start
        ]
        return len(met), max(met, default=0.0)

    def told(self) -> str:
        cuts = statistics.quantiles(self.times, n=1000)
        return (
            f"{len(self.times):6} claims, ms: p50 {cuts[499] * 1e3:.2f}  p99 {cuts[989] * 1e3:.2f}"
            f"  p99.9 {cuts[998] * 1e3:.2f}  worst {max(self.times) * 1e3:.1f}"
        )


class Locks:
    """How long a lock that claims wait for was held before COMMIT, and how long COMMIT took.

    COMMIT lets go of the lock first and deletes files afterwards: what claims felt is in `Load`.
    """

    def __init__(self, store: PostgresStore) -> None:
        self.spans: dict[str, float] = {}
        self.moments: dict[str, tuple[float, float]] = {}
        self._since: tuple[str, float] | None = None
        store._tap = self._heard

    def _heard(self, when: str, command: Any) -> None:
        if when == "after" and "LOCK TABLE" in command.sql and self._since is None:
            self._since = "drop" if "ACCESS" in command.sql else "turn", time.perf_counter()
        elif command.sql == "COMMIT" and self._since is not None:
            name, began = self._since
            held = time.perf_counter() - began
            if when == "before":
                self.spans[name] = held
                self.moments[name] = began, began + held + 0.1
            else:
                self.spans[f"COMMIT of the {name}"] = held - self.spans[name]
                self._since = None


def swept(store: PostgresStore) -> tuple[int, float, float]:
    """Removed; seconds in all; seconds of the longest request."""
    removed, after, longest, began = 0, "", 0.0, time.perf_counter()
    while True:
        start = time.perf_counter()
        report, after = store.perform(Sweep(500, after))
        longest = max(longest, time.perf_counter() - start)
        removed += report.removed
        if not after:
            return removed, time.perf_counter() - began, longest


def costs_with(closed: int) -> None:
    """Without fsync, which would hide the difference; with so many older generations."""
    with launch("postgres") as server, server.fresh() as url:
        urls = {"plain": f"{url}?table=plain", "generations": f"{url}?table=parted&generations=6h"}
        store = PostgresStore.open(urls["generations"])
        programs = store.programs
        assert isinstance(programs, GenerationPrograms)
        programs.period = 0
        for _ in range(closed):
            for _ in range(200):
                store.perform(ClaimRequest(Key(os.urandom(8).hex()), b"o" * 16, 30_000))
            store._run(programs._when_free(programs.turn()))
        store.close()
        print(f"{closed} older generations, fsync off")
        costs(urls)


def costs(urls: dict[str, str], calls: int = 1500) -> None:
    """Medians per call, taken in turns, so that both meet the same machine."""
    times: dict[tuple[str, str], list[float]] = {}
    receivers = {name: Receiver.open(url) for name, url in urls.items()}
    for number in range(calls):
        for name, receiver in receivers.items():
            for kind in ("first", "duplicate"):
                began = time.perf_counter()
                receiver.options(policy=receiver.policy).process(f"c-{number}", lambda: "x" * 200)
                times.setdefault((kind, name), []).append(time.perf_counter() - began)
    for kind in ("first", "duplicate"):
        on, off = (statistics.median(times[kind, name]) for name in ("generations", "plain"))
        print(f"{kind:9} plain {off * 1e6:.0f} µs, generations {on * 1e6:.0f} µs: {on / off:.2f}x")
    for receiver in receivers.values():
        receiver.close()


def main(records: int, names: tuple[str, ...] = ("plain", "generations")) -> None:
    server = launch(
        "postgres", fsync="on", shared_buffers="1GB", max_wal_size="8GB", checkpoint_timeout="30min"
    )
    with server, server.fresh() as url:
        urls = {"plain": f"{url}?table=plain", "generations": f"{url}?table=parted&generations=6h"}
        stores = {name: PostgresStore.open(each) for name, each in urls.items()}
        fill(url, records, names)
        for name in names:
            store = stores[name]
            with Load(store) as before:
                time.sleep(6)
            sweeper = PostgresStore.open(urls[name])
            locks = Locks(sweeper)
            with Load(store) as during:
                removed, seconds, longest = swept(sweeper)
                time.sleep(max(0.0, 6 - seconds))
            sweeper.close()
            for what, held in locks.spans.items():
                print(f"{name}: {what} {held * 1e3:.1f} ms")
            for what, (start, end) in locks.moments.items():
                met, worst = during.worst_between(start, end)
                print(f"{name}: {met} claims met the {what}, the slowest took {worst * 1e3:.1f} ms")
            print(
                f"{name}: removed {removed:,} in {seconds:.2f} s, longest request {longest:.3f} s"
            )
            print(f"  quiet  {before.told()}\n  during {during.told()}", flush=True)
        for store in stores.values():
            store.close()


def fill(url: str, records: int, names: tuple[str, ...]) -> None:
    import psycopg

    tables: dict[str, dict[str, Any]] = {
        "plain": {"table": "plain_keys", "column": "", "value": ""},
        "generations": {"table": "parted_g1", "column": ", generation", "value": ", 1"},
    }
    began = time.perf_counter()
    with psycopg.connect(url, autocommit=True) as connection:
        for each in (tables[name] for name in names):
            connection.execute(FILL.format(records=records, **each))
            connection.execute(f"VACUUM ANALYZE {each['table']}")
        connection.execute("CHECKPOINT")
    print(f"{records:,} records in each store, filled in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    costs_with(1)
    costs_with(5)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000)
