"""Several processes on one store: how throughput grows from one process to two and four.

Each process is a worker as people run them: its own receiver, one blocking caller, the same store. All get
the order for a lap at the same moment. A lap counts as long as the slowest of them takes.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict

from . import engines
from .case import FLOOR, OTHER_CLOCK
from .rows import OURS, Row, duration, number
from .side import Side
from .size import place
from .spread import Spread
from .workload import Lap

SECTION = "Several processes on one store: throughput, against one process"
COUNTS = (1, 2, 4)
LAP = 0.1
"""Seconds that one lap should last: an order takes a ten-thousandth of a second to arrive."""
STORES = {
    "sqlite-full/blocking": "SQLite FULL",
    "sqlite-normal/blocking": "SQLite NORMAL",
    "postgresql/psycopg": "PostgreSQL",
    "valkey/blocking": "Valkey",
    "mariadb/blocking": "MariaDB",
}


def names() -> list[str]:
    return [f"processes/{store}/{what}" for store in STORES for what in ("first", "duplicate")]


def measured(name: str, rounds: int, lap: float = LAP) -> list[Row]:
    """The rows of one of `names`: one for each number of processes above one."""
    _, engine, driver, what = name.split("/")
    urls = {engine: engines.url(engine)} if engine in engines.ENGINES else {}
    laps: dict[int, list[Lap]] = {count: [] for count in COUNTS}
    with tempfile.TemporaryDirectory(dir=place()) as folder, ExitStack() as stack:
        sides = [stack.enter_context(Side()) for _ in range(max(COUNTS))]
        size = 0
        for side in sides:
            opened = side.ask(
                open=f"{engine}/{driver}/{what}/1", folder=folder, engines=urls, lap=lap
            )
            if "absent" in opened:
                raise RuntimeError(opened["absent"])
            size = size or opened["size"]
        for turn in range(rounds):
            for count in COUNTS if turn % 2 else reversed(COUNTS):
                laps[count].append(together(sides[:count], size))
        for side in sides:
            side.ask(close=True)
    shown = f"{STORES[f'{engine}/{driver}']}, {what}"
    return [_row(name, shown, count, laps[1], laps[count]) for count in COUNTS[1:]]


def together(sides: list[Side], size: int) -> Lap:
    """Seconds per key of all together, and processor time per key."""
    start = time.perf_counter()
    for side in sides:
        side.order(lap=size)
    spent = [Lap(**side.answer()).processor for side in sides]
    wall = time.perf_counter() - start
    return Lap(wall / (size * len(sides)), sum(spent) / len(spent))


def _row(name: str, shown: str, count: int, one: list[Lap], several: list[Lap]) -> Row:
    """A gain: how many times the throughput of one process."""
    gain = Spread.of([a.wall / b.wall for a, b in zip(one, several, strict=True)])
    spent = Spread.of([b.processor / a.processor for a, b in zip(one, several, strict=True)])
    seconds = {1: [lap.wall for lap in one], count: [lap.wall for lap in several]}
    processor = Spread.of([lap.processor for lap in several])
    rates = {key: 1 / Spread.of(values).median for key, values in seconds.items()}
    return Row(
        f"{name}/{count}",
        SECTION,
        f"{shown}: {count} processes",
        {
            FLOOR: f"{rates[1]:,.0f} calls/s",
            OURS: f"{number(gain.median)}× ({number(gain.low)}–{number(gain.high)}), "
            f"{rates[count]:,.0f} calls/s",
            OTHER_CLOCK: f"processor {number(spent.median)}×, {duration(processor.median)}",
        },
        raw={"gain": asdict(gain), "per_second": rates[count], "processor": asdict(processor)},
    )
