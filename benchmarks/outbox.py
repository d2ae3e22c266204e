"""The relay: rows per second, the age of the oldest row under a steady load, and when it is over-driven.

- *drain*: a full outbox, 200-byte bodies, 100 keys, a publisher that does nothing; one process. Beside
  us faststream-outbox on the same server in the same run, with its defaults and with its largest
  batches. (It keeps no order per key. DBOS has queues of workflows, no outbox to relay from.)
- *steady*: another process adds 5,000 rows per second in transactions of 50, while the relay runs.
  The age of the oldest waiting row is asked for ten times a second.
- *over-driven*: two writers without a pause, and a broker that takes 1,000 rows per second at most. The
  backlog grows; what counts is that the relay goes on at the broker's rate, in the second half as in
  the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.outbox.stage import begin, connect
from tests.servers import NoServerError, launch
from twicesafe import Outbox, OutboxRelay

from .case import OTHER_CLOCK
from .peers import FASTSTREAM_OUTBOX
from .rows import OURS, Row, duration
from .workload import Lap

SECTION = "Outbox relay, one process"
DEFAULTS = {"max_workers": 4}
NEIGHBOUR: dict[str, dict[str, Any]] = {
    "defaults": {},
    "largest batches": {
        "max_workers": 16,
        "fetch_batch_size": 500,
        "terminal_flush_batch_size": 500,
        "min_fetch_interval": 0.01,
    },
}

BODY = "x" * 200
BATCH = 1000


class Null:
    """Takes everything."""

    batch = BATCH
    concurrency = 1
    keeps_order = True

    def publish(self, messages: Sequence[Any]) -> list[None]:
        return [None] * len(messages)

    def close(self) -> None:
        pass


class Slow(Null):
    """Takes 1,000 rows per second."""

    batch = 100

    def publish(self, messages: Sequence[Any]) -> list[None]:
        time.sleep(len(messages) / 1000)
        return [None] * len(messages)


def fill(url: str, rows: int) -> None:
    with Outbox.open(url) as outbox:
        connection = connect(url)
        for start in range(0, rows, BATCH):
            begin(connection)
            outbox.add_many(connection, _messages(start, BATCH))
            connection.commit()
        connection.close()


def _messages(start: int, count: int) -> list[dict[str, Any]]:
    return [
        {"topic": "orders", "body": BODY, "key": f"k{n % 100}"} for n in range(start, start + count)
    ]


def drain(url: str, rows: int) -> Lap:
    """Seconds per row."""
    fill(url, rows)
    relay = OutboxRelay.open(url, Null(), batch=BATCH)
    began = Lap.now()
    done = relay.drain()
    took = Lap.now().since(began)
    relay.close()
    assert done == rows
    return took.per(rows)


def writer(url: str, rate: float, seconds: float, added: Any) -> None:
    """Adds 50 rows per transaction, `rate` rows per second; 0: as fast as it can."""
    outbox = Outbox.open(url)
    connection = connect(url)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        begin(connection)
        outbox.add_many(connection, _messages(count, 50))
        connection.commit()
        count += 50
        if rate:
            time.sleep(max(0.0, began + count / rate - time.perf_counter()))
    connection.close()
    with added.get_lock():
        added.value += count


def driven(url: str, rate: float, writers: int, seconds: float, publisher: Any) -> dict[str, float]:
    outbox = Outbox.open(url)
    added = multiprocessing.get_context("spawn").Value("q", 0)
    crowd = [
        multiprocessing.get_context("spawn").Process(
            target=writer, args=(url, rate, seconds, added)
        )
        for _ in range(writers)
    ]
    relay = OutboxRelay.open(url, publisher, batch=BATCH).start()
    for process in crowd:
        process.start()
    ages: list[float] = []
    seen: list[tuple[float, int]] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            ages.append(outbox.depth().oldest_age)
            seen.append((time.perf_counter(), relay.published))

    eye = threading.Thread(target=look)
    eye.start()
    for process in crowd:
        process.join()
    backlog = outbox.depth().pending
    over.set()
    eye.join()
    relay.close()
    outbox.close()
    ages.sort()
    started = [(at, count) for at, count in seen if count]
    half = started[len(started) // 2]
    return {
        "added_per_second": round(added.value / seconds),
        "age_p50": ages[len(ages) // 2],
        "age_p99": ages[min(len(ages) - 1, int(len(ages) * 0.99))],
        "backlog_at_end": backlog,
        "published_per_second_first_half": round(_rate(started[0], half)),
        "published_per_second_second_half": round(_rate(half, started[-1])),
    }


def _rate(one: tuple[float, int], other: tuple[float, int]) -> float:
    return (other[1] - one[1]) / max(other[0] - one[0], 1e-9)


async def faststream(url: str, rows: int, **settings: Any) -> float:
    """Rows per second of faststream-outbox, to a handler that does nothing."""
    from faststream_outbox import OutboxBroker, make_outbox_table
    from sqlalchemy import MetaData, text
    from sqlalchemy.ext.asyncio import create_async_engine

    metadata = MetaData()
    table = make_outbox_table(metadata, table_name="neighbour")
    engine = create_async_engine(
        url.replace("postgresql://", "postgresql+asyncpg://"), pool_size=20
    )
    broker = OutboxBroker(engine, outbox_table=table, logger=None)  # it logs every message
    handled = 0
    done = asyncio.Event()

    async def handle(body: str) -> None:
        nonlocal handled
        handled += 1
        if handled == rows:
            done.set()

    broker.subscriber("orders", **settings)(handle)

    async with engine.begin() as connection:
        await connection.execute(text("DROP TABLE IF EXISTS neighbour CASCADE"))
        await connection.run_sync(metadata.create_all)
    for _ in range(0, rows, BATCH):
        async with engine.begin() as connection:
            await broker.publish_batch(*[BODY] * BATCH, queue="orders", session=connection)
    began = time.perf_counter()
    await broker.start()
    await done.wait()
    seconds = time.perf_counter() - began
    await broker.stop()
    await engine.dispose()
    return rows / seconds


def measured(rows: int = 20_000, seconds: float = 8.0) -> list[Row]:
    found: dict[str, list[float]] = {}
    spent: dict[str, list[float]] = {}
    results: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        places = {"SQLite": f"sqlite:///{Path(folder) / 'outbox.db'}"}
        for shown, engine, settings in (
            ("PostgreSQL", "postgres", {"fsync": "on"}),
            ("MariaDB", "mariadb", {}),
        ):
            with contextlib.suppress(NoServerError):
                places[shown] = servers.enter_context(launch(engine, **settings)).url
        for _ in range(3):
            for shown, url in places.items():
                each = drain(url, rows)
                found.setdefault(shown, []).append(1 / each.wall)
                spent.setdefault(shown, []).append(each.processor)
            if "PostgreSQL" in places:
                for column, settings in NEIGHBOUR.items():
                    count = min(rows, 10_000 if settings else 2000)
                    work = faststream(places["PostgreSQL"], count, **(settings or DEFAULTS))
                    found.setdefault(column, []).append(asyncio.run(work))
        for shown, url in places.items():
            results += [
                _drained(shown, found, spent[shown]),
                _steady(shown, driven(url, 5000, 1, seconds, Null())),
                _over_driven(shown, driven(url, 0, 2, seconds, Slow())),
            ]
    return results


def _drained(shown: str, found: dict[str, list[float]], spent: list[float]) -> Row:
    processor = f"processor {duration(statistics.median(spent))} per row"
    cells = {OURS: _speed(found[shown]), OTHER_CLOCK: processor}
    if shown == "PostgreSQL":
        cells |= {
            FASTSTREAM_OUTBOX: "; ".join(f"{name}: {_speed(found[name])}" for name in NEIGHBOUR)
        }
    title = f"{shown}: a full outbox, null publisher"
    met = statistics.median(found[shown]) >= 10_000
    return Row(f"outbox/drain/{shown}", SECTION, title, cells, "≥ 10,000 rows/s", met, raw=found)


def _steady(shown: str, seen: dict[str, float]) -> Row:
    """A target only where the writer came up to the load it was asked for."""
    title = f"{shown}: oldest age at 5,000 rows/s"
    cells = {
        OURS: f"p50 {seen['age_p50']:.2f} s, p99 {seen['age_p99']:.2f} s "
        f"({seen['added_per_second']:,} rows/s were added)"
    }
    reached = seen["added_per_second"] >= 4500
    met = seen["age_p99"] <= 0.35 if reached else None
    target = "p99 ≤ 0.35 s" if reached else "p99 ≤ 0.35 s: the load was not reached"
    return Row(f"outbox/steady/{shown}", SECTION, title, cells, target, met, raw=seen)


def _over_driven(shown: str, seen: dict[str, float]) -> Row:
    first, second = (seen[f"published_per_second_{half}_half"] for half in ("first", "second"))
    title = f"{shown}: over-driven, a broker that takes 1,000 rows/s"
    cells = {OURS: f"{first:,.0f}, then {second:,.0f} rows/s"}
    met = second >= 0.8 * first
    return Row(f"outbox/driven/{shown}", SECTION, title, cells, "no collapse", met, raw=seen)


def _speed(found: list[float]) -> str:
    return f"{statistics.median(found):,.0f} rows/s ({min(found):,.0f}–{max(found):,.0f})"
