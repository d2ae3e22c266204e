"""What an inbox costs: over the bare business transaction, in batches, and in bytes per key.

The business transaction is BEGIN, one INSERT, one UPDATE, COMMIT on one connection of PostgreSQL, with
fsync. The same is then done with `accept` and with `process` around it, in turns, so that a noisy
machine is noisy for all.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import psycopg

from tests.servers import launch
from twicesafe import Inbox

from .case import FLOOR
from .report import OURS, Row, duration, number

SECTION = "Inbox on PostgreSQL, in the caller's transaction"
TARGETS = {"accept": 1.40, "process": 1.75, "repeat": None}

TABLES = (
    "CREATE TABLE payments (id text PRIMARY KEY, amount int NOT NULL)",
    "CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL)",
    "INSERT INTO accounts SELECT n, 0 FROM generate_series(1, 100) n",
)
TURN = 50
"""Transactions of one kind before the next has its turn."""


def measured(seconds: float = 20.0) -> list[Row]:
    with launch("postgres", fsync="on", synchronous_commit="on") as server:
        connection = psycopg.connect(server.url)
        for statement in TABLES:
            connection.execute(statement)
        connection.commit()
        with Inbox.open(server.url, consumer="billing") as inbox:
            rows = _ratios(connection, inbox, seconds)
            rows += _batches(connection, inbox, seconds / 10)
            rows.append(_bytes(connection, inbox))
        connection.close()
    return rows


def _ratios(connection: psycopg.Connection[Any], inbox: Inbox, seconds: float) -> list[Row]:
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
    return [_over_bare(name, times[name], times["bare"]) for name in TARGETS]


def _over_bare(name: str, taken: list[float], bare: list[float]) -> Row:
    """The ratio of each turn to the bare turn beside it, so that both met the same noise."""
    ratios = [mine / base for mine, base in zip(_turns(taken), _turns(bare), strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    target = TARGETS[name]
    return Row(
        f"inbox/{name}",
        SECTION,
        f"`{name}` over the bare transaction" if target else "a repeat, over the bare transaction",
        {
            FLOOR: duration(statistics.median(bare)),
            OURS: f"{number(middle)}× ({number(low)}–{number(high)}), "
            f"{duration(statistics.median(taken))}",
        },
        f"≤ {target:g}×" if target else "",
        middle <= target if target else None,
        raw={"ratio": middle, "p99": sorted(taken)[int(len(taken) * 0.99)], "calls": len(taken)},
    )


def _turns(taken: list[float]) -> list[float]:
    return [statistics.median(taken[at : at + TURN]) for at in range(0, len(taken), TURN)]


def _batches(connection: psycopg.Connection[Any], inbox: Inbox, seconds: float) -> list[Row]:
    rows = []
    for size in (1, 10, 100, 1000):
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            ids = [f"batch-{size}-{count + n}" for n in range(size)]
            assert all(inbox.accept_many(connection, ids))
            connection.commit()
            count += size
        rate = count / (time.perf_counter() - began)
        title = f"`accept_many` of {size:,}, one connection"
        cells = {OURS: f"{rate:,.0f} ids/s"}
        rows.append(Row(f"inbox/many/{size}", SECTION, title, cells, raw={"per_second": rate}))
    return rows


def _bytes(connection: psycopg.Connection[Any], inbox: Inbox) -> Row:
    """Heap and index of 100,000 accepted ids of 36 characters, as they lie on disk."""
    connection.execute("TRUNCATE twicesafe_records")
    connection.commit()
    for start in range(0, 100_000, 1000):
        inbox.accept_many(
            connection,
            [f"{n:08x}-0000-4000-8000-{n:012x}" for n in range(start, start + 1000)],
        )
        connection.commit()
    row = connection.execute(
        "SELECT pg_total_relation_size('twicesafe_records') / 100000.0"
    ).fetchone()
    assert row is not None
    per_key = float(row[0])
    cells, title = {OURS: f"{per_key:.0f} B"}, "bytes per accepted key, with its index"
    return Row("inbox/bytes", SECTION, title, cells, "≤ 180 B", per_key <= 180)
