"""The relay: rows per second, the age of the oldest row under a steady load, and when it is over-driven.

    python -m benchmarks.outbox [rows] [seconds]        servers of the tests, fsync on where they have it

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
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.outbox.stage import begin, connect
from tests.servers import NoServerError, launch
from twicesafe import Outbox, OutboxRelay

BODY = "x" * 200
BATCH = 1000


class Null:
    """Takes everything."""

    batch = BATCH
    concurrency = 1

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


def drain(url: str, rows: int) -> float:
    """Rows per second."""
    fill(url, rows)
    relay = OutboxRelay(url, Null(), batch=BATCH)
    began = time.perf_counter()
    done = relay.drain()
    seconds = time.perf_counter() - began
    relay.close()
    assert done == rows
    return rows / seconds


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
    relay = OutboxRelay(url, publisher, batch=BATCH).start()
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

    @broker.subscriber("orders", **settings)
    async def handle(body: str) -> None:
        nonlocal handled
        handled += 1
        if handled == rows:
            done.set()

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


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 10.0
    found: dict[str, Any] = {}
    folder = tempfile.TemporaryDirectory()
    places = {"sqlite": f"sqlite:///{Path(folder.name) / 'outbox.db'}"}
    for engine, settings in (("postgres", {"fsync": "on"}), ("mariadb", {})):
        try:
            places[engine] = launch(engine, **settings).url
        except NoServerError as reason:
            print(f"{engine}: {reason}", file=sys.stderr)
    for turn in range(3):
        for engine, url in places.items():
            found.setdefault(f"drain {engine}", []).append(round(drain(url, rows)))
        if "postgres" in places:
            for name, settings in (
                ("defaults", {"max_workers": 4}),
                (
                    "largest batches",
                    {
                        "max_workers": 16,
                        "fetch_batch_size": 500,
                        "terminal_flush_batch_size": 500,
                        "min_fetch_interval": 0.01,
                    },
                ),
            ):
                count = min(rows, 2000 if name == "defaults" else 10_000)
                speed = asyncio.run(faststream(places["postgres"], count, **settings))
                found.setdefault(f"drain faststream-outbox, {name}", []).append(round(speed))
        print(f"turn {turn + 1} of 3", file=sys.stderr)
    for engine, url in places.items():
        found[f"steady 5,000/s {engine}"] = driven(url, 5000, 1, seconds, Null())
        found[f"over-driven {engine}"] = driven(url, 0, 2, seconds, Slow())
    print(json.dumps(found, indent=2))
    folder.cleanup()


if __name__ == "__main__":
    main()
