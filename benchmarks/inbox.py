"""What an inbox costs: over the bare business transaction, in batches, and in bytes per key.

    python -m benchmarks.inbox [seconds]          PostgreSQL 18 of the tests, fsync on

The business transaction is BEGIN, one INSERT, one UPDATE, COMMIT on one connection. The same is then
done with `accept` and with `process` around it, in turns, so that a noisy machine is noisy for all.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import psycopg

from tests.servers import launch
from twicesafe import Inbox

TABLES = (
    "CREATE TABLE payments (id text PRIMARY KEY, amount int NOT NULL)",
    "CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL)",
    "INSERT INTO accounts SELECT n, 0 FROM generate_series(1, 100) n",
)
TURN = 50
"""Transactions of one kind before the next has its turn."""


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    with launch("postgres", fsync="on", synchronous_commit="on") as server:
        connection = psycopg.connect(server.url)
        for statement in TABLES:
            connection.execute(statement)
        connection.commit()
        with Inbox.open(server.url, consumer="billing") as inbox:
            _ratios(connection, inbox, seconds)
            _batches(connection, inbox)
            _bytes(connection, inbox)
        connection.close()


def _ratios(connection: psycopg.Connection[Any], inbox: Inbox, seconds: float) -> None:
    numbers = itertools.count()

    def pay() -> int:
        number = next(numbers)
        connection.execute("INSERT INTO payments VALUES (%s, 5)", (f"p-{number}",))
        connection.execute(
            "UPDATE accounts SET balance = balance + 5 WHERE id = %s", (number % 100 + 1,)
        )
        return number

    def bare() -> None:
        pay()

    def accepted() -> None:
        assert inbox.accept(connection, f"a-{next(numbers)}")
        pay()

    def processed() -> None:
        inbox.process(connection, f"b-{next(numbers)}", pay)

    def repeated() -> None:
        assert not inbox.accept(connection, "a-repeat")

    inbox.accept(connection, "a-repeat")
    connection.commit()
    kinds: dict[str, Callable[[], None]] = {
        "bare": bare,
        "accept": accepted,
        "process": processed,
        "repeat": repeated,
    }
    times: dict[str, list[float]] = {name: [] for name in kinds}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for name, work in kinds.items():
            for _ in range(TURN):
                began = time.perf_counter()
                work()
                connection.commit()
                times[name].append(time.perf_counter() - began)
    base = statistics.median(times["bare"])
    for name, taken in times.items():
        middle = statistics.median(taken)
        print(
            f"{name:8} p50 {middle * 1e3:6.2f} ms   p99 {_p99(taken) * 1e3:6.2f} ms"
            f"   {middle / base:4.2f} of bare   ({len(taken)})"
        )


def _batches(connection: psycopg.Connection[Any], inbox: Inbox) -> None:
    for size in (1, 10, 100, 1000):
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < 2:
            ids = [f"batch-{size}-{count + n}" for n in range(size)]
            assert all(inbox.accept_many(connection, ids))
            connection.commit()
            count += size
        rate = count / (time.perf_counter() - began)
        print(f"accept_many of {size:4}: {rate:8.0f} ids/s on one connection")


def _bytes(connection: psycopg.Connection[Any], inbox: Inbox) -> None:
    """Heap and index of 100,000 accepted ids of 36 characters, as they lie on disk."""
    connection.execute("TRUNCATE twicesafe_records")
    connection.commit()
    for start in range(0, 100_000, 1000):
        inbox.accept_many(
            connection,
            [f"{n:08x}-0000-4000-8000-{n:012x}" for n in range(start, start + 1000)],
        )
        connection.commit()
    connection.execute("ANALYZE twicesafe_records")
    for what in ("pg_relation_size", "pg_indexes_size", "pg_total_relation_size"):
        row = connection.execute(f"SELECT {what}('twicesafe_records') / 100000.0").fetchone()
        assert row is not None
        print(f"{what:24} {float(row[0]):6.1f} bytes per accepted key")


def _p99(taken: list[float]) -> float:
    return sorted(taken)[int(len(taken) * 0.99)]


if __name__ == "__main__":
    main()
