"""What an inbox costs: over the bare business transaction, in batches, and in bytes per key.

The business transaction is BEGIN, one INSERT, one UPDATE, COMMIT on one connection of PostgreSQL, with
fsync. It is the floor; ours is the same with `accept` or `process` around it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from twicesafe import Inbox

from . import engines
from .case import FLOOR, OTHER_CLOCK, Case, Target
from .rows import OURS, Row, duration
from .workload import Contestant, Lap

SECTION = "Inbox on PostgreSQL, in the caller's transaction"

TABLES = """
CREATE TABLE IF NOT EXISTS payments (id bigint PRIMARY KEY, amount int NOT NULL);
CREATE TABLE IF NOT EXISTS accounts (id int PRIMARY KEY, balance int NOT NULL);
INSERT INTO accounts SELECT n, 0 FROM generate_series(1, 100) n ON CONFLICT DO NOTHING;
"""

Connection = psycopg.Connection[Any]
Pay = Callable[[], None]


def inbox_cases() -> Iterator[Case]:
    for name, way, fresh, target in (
        ("accept", _accept, True, Target(1.40)),
        ("process", _process, True, Target(1.75)),
        ("repeat", _accept, False, None),
    ):
        yield Case(
            f"inbox/{name}",
            SECTION,
            f"`{name}` over the bare transaction"
            if target
            else "a repeat, over the bare transaction",
            partial(_transactions, FLOOR, None),
            partial(_transactions, OURS, way),
            fresh=fresh,
            target=target,
            lap=0.05,
            quick=False,
            engine="postgresql",
        )


def _accept(inbox: Inbox, connection: Connection, key: str, pay: Pay) -> None:
    if inbox.accept(connection, key):
        pay()


def _process(inbox: Inbox, connection: Connection, key: str, pay: Pay) -> None:
    inbox.process(connection, key, pay)


def _transactions(
    name: str, way: Callable[[Inbox, Connection, str, Pay], None] | None, folder: Path
) -> Contestant:
    """One business transaction per call, with an inbox around it or bare."""
    url = engines.url("postgresql")
    connection = psycopg.connect(url)
    connection.execute(TABLES)
    connection.commit()
    inbox = None if way is None else Inbox.open(url, consumer="billing")
    numbers = itertools.count(time.time_ns())  # no two contestants pay the same id

    def pay() -> None:
        number = next(numbers)
        connection.execute("INSERT INTO payments VALUES (%s, 5)", (number,))
        connection.execute(
            "UPDATE accounts SET balance = balance + 5 WHERE id = %s", (number % 100 + 1,)
        )

    def call(key: str) -> None:
        if way is None or inbox is None:
            pay()
        else:
            way(inbox, connection, key, pay)
        connection.commit()

    def close() -> None:
        connection.close()
        if inbox is not None:
            inbox.close()

    return Contestant(name, call, close)


def measured(seconds: float = 2.0) -> list[Row]:
    """What is no call: batches, and bytes per key."""
    url = engines.url("postgresql")
    with psycopg.connect(url) as connection, Inbox.open(url, consumer="batches") as inbox:
        return [*_batches(connection, inbox, seconds), _bytes(connection, inbox)]


def _batches(connection: Connection, inbox: Inbox, seconds: float) -> list[Row]:
    rows = []
    for size in (1, 10, 100, 1000):
        count, began, took = 0, Lap.now(), Lap(0.0, 0.0)
        while took.wall < seconds:
            ids = [f"batch-{size}-{count + n}" for n in range(size)]
            assert all(inbox.accept_many(connection, ids))
            connection.commit()
            count += size
            took = Lap.now().since(began)
        rate, each = count / took.wall, took.per(count)
        title = f"`accept_many` of {size:,}, one connection"
        cells = {OURS: f"{rate:,.0f} ids/s", OTHER_CLOCK: f"processor {duration(each.processor)}"}
        raw = {"per_second": rate, "processor_seconds": each.processor}
        rows.append(Row(f"inbox/many/{size}", SECTION, title, cells, raw=raw))
    return rows


def _bytes(connection: Connection, inbox: Inbox) -> Row:
    """Heap and index of 100,000 accepted ids of 36 characters, as they lie on disk."""
    connection.execute("TRUNCATE twicesafe_keys")
    connection.commit()
    for start in range(0, 100_000, 1000):
        inbox.accept_many(
            connection,
            [f"{n:08x}-0000-4000-8000-{n:012x}" for n in range(start, start + 1000)],
        )
        connection.commit()
    row = connection.execute(
        "SELECT pg_total_relation_size('twicesafe_keys') / 100000.0"
    ).fetchone()
    assert row is not None
    per_key = float(row[0])
    cells, title = {OURS: f"{per_key:.0f} B"}, "bytes per accepted key, with its index"
    return Row(
        "inbox/bytes",
        SECTION,
        title,
        cells,
        "≤ 180 B",
        per_key <= 180,
        raw={"bytes_per_key": per_key},
    )
