"""Consumers: messages per second of one process, and memory while many messages are pending.

Per broker, with records on Valkey and on PostgreSQL, all in turns in one run, with a handler that does
nothing and messages of 200 bytes:

- *bare*: a loop on the driver that takes 100 messages and acknowledges them, without any record. It is
  the floor: what the broker and its driver can do.
- *ours*: `Consumer` with ``batch=100`` and ``concurrency=100``.
- *call by call*: the bare loop with `receiver.process` for each message.
- *SETNX by hand*: the bare loop with ``SET key 1 NX`` before and ``SET key done`` after each message, on
  Valkey. It has no lease, no attempts and no fence: a crash in between loses the message.
- *FastStream, SETNX by hand*: the same in a subscriber of FastStream (`faststream_setnx`); it has no SQS.
- *Celery, SETNX by hand*: the same in a task of Celery (`celery_setnx`), on RabbitMQ and Redis.

The clock starts with the first message, because joining a group takes seconds, and ends when the last
acknowledgement has been sent. The processor time is this process's, without the servers': it is what can be compared
on a busy machine. (Kafka's driver has fetched thousands of messages by then: its bare loop
shows what the driver can hand out, not what the broker can send.)

``python -m benchmarks.consumers URL COUNT`` handles so many messages at the URL and prints the largest
size of its process, in bytes.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from twicesafe import Receiver
from twicesafe.consumers import Consumer
from twicesafe.consumers.sources import open_source

from . import engines
from .brokers import BATCH, BROKERS, Broker, Nats, RedisStreams
from .case import CALL_BY_CALL, CELERY, FASTSTREAM, FLOOR, SETNX
from .celery_setnx import consumed_by_celery, runs_on
from .faststream_setnx import consumed_by_faststream, knows
from .rows import OURS, Row, number

SECTION = "Consumers, one process"
STORES = {"Valkey": "valkey", "PostgreSQL": "postgresql"}


class Lap(NamedTuple):
    """Seconds per message."""

    wall: float
    processor: float


class Watch:
    """From the first message to the end."""

    def __init__(self) -> None:
        self.began: Lap | None = None

    def start(self, _: object = None) -> None:
        if self.began is None:
            self.began = Lap(time.perf_counter(), time.process_time())

    def per(self, count: int) -> Lap:
        assert self.began is not None
        wall = time.perf_counter() - self.began.wall
        return Lap(wall / count, (time.process_time() - self.began.processor) / count)


def bare(broker: Broker, count: int) -> Lap:
    watch = Watch()
    broker.loop(watch.start, count)
    return watch.per(count)


def call_by_call(broker: Broker, count: int, receiver: Receiver) -> Lap:
    watch = Watch()

    def work(id_: str) -> None:
        watch.start()
        receiver.process(id_, nothing)

    broker.loop(work, count)
    return watch.per(count)


def by_hand(broker: Broker, count: int, client: Any) -> Lap:
    watch = Watch()

    def work(id_: str) -> None:
        watch.start()
        if client.set(id_, "1", nx=True, ex=86400):
            client.set(id_, "done", ex=86400)

    broker.loop(work, count)
    return watch.per(count)


def by_faststream(broker: Broker, count: int) -> Lap:
    """Until the last handler has ended; its acknowledgement follows."""
    watch = Watch()
    ended = [Lap(0, 0)]

    def told(left: int) -> None:
        watch.start()
        if left == 0:
            ended.append(watch.per(count))

    consumed_by_faststream(broker, count, engines.url("valkey"), told)
    return ended[-1]


def by_celery(broker: Broker, count: int) -> Lap:
    """Until the last task has ended; its acknowledgement follows."""
    return Lap(*consumed_by_celery(broker, count, engines.url("valkey")))


def consumed(url: str, count: int, receiver: Receiver) -> Lap:
    """Until the last acknowledgement: `run` ends up to a second later, with the fetch under way."""
    watch, source, ended = Watch(), open_source(url), [Lap(0, 0)]
    _notice(source, lambda: ended.append(watch.per(count)))
    left, lock = count, threading.Lock()

    def handle(message: object) -> None:
        nonlocal left
        watch.start()
        with lock:
            left -= 1
            if left == 0:
                consumer.stop()

    with Consumer(source, receiver=receiver, batch=BATCH, concurrency=BATCH) as consumer:
        consumer.run(handle)
    return ended[-1]


def _notice(source: Any, acknowledged: Callable[[], None]) -> None:
    """Call this after each acknowledgement."""
    acknowledge = source.acknowledge

    def blocking(receipts: Any) -> None:
        acknowledge(receipts)
        acknowledged()

    async def on_loop(receipts: Any) -> None:
        await acknowledge(receipts)
        acknowledged()

    source.acknowledge = on_loop if inspect.iscoroutinefunction(acknowledge) else blocking


def nothing() -> None:
    return None


KINDS = {f"consumers/{kind.engine}": kind for kind in BROKERS}
MEMORY = {f"consumers/memory/{kind.engine}": kind for kind in (RedisStreams, Nats)}

FEW = 2000
MANY = 20_000
"""How many of the pending messages are handled: memory that grows with them would show."""


def names() -> list[str]:
    return [*KINDS, *MEMORY]


def measured(name: str, count: int = 2000, rounds: int = 3, pending: int = 1_000_000) -> list[Row]:
    stores = {shown: engines.url(engine) for shown, engine in STORES.items()}
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
    broker = (KINDS | MEMORY)[name]()
    with broker.server:
        if name in MEMORY:
            return [_memory(broker, stores["PostgreSQL"], pending)]
        return _compared(broker, stores, count, rounds)


def _compared(broker: Broker, stores: dict[str, str], count: int, rounds: int) -> list[Row]:
    found: dict[tuple[str, str], list[Lap]] = {}

    def lap(store: str, name: str, work: Any, *given: Any) -> None:
        broker.fill(count)
        at = [broker.url] if work is consumed else [broker]
        found.setdefault((store, name), []).append(work(*at, count, *given))

    with contextlib.ExitStack() as stack:
        receivers = {name: stack.enter_context(Receiver.open(url)) for name, url in stores.items()}
        client = stack.enter_context(engines.server("valkey").client())
        for _ in range(rounds):
            lap("", FLOOR, bare)
            lap("", SETNX, by_hand, client)
            if knows(broker):
                lap("", FASTSTREAM, by_faststream)
            if runs_on(broker):
                lap("", CELERY, by_celery)
            for store, receiver in receivers.items():
                lap(store, OURS, consumed, receiver)
                lap(store, CALL_BY_CALL, call_by_call, receiver)
    return [_row(broker.shown, store, found) for store in stores]


def _row(broker: str, store: str, found: dict[tuple[str, str], list[Lap]]) -> Row:
    laps = {name: some for (place, name), some in found.items() if place in ("", store)}
    wall = {name: [lap.wall for lap in some] for name, some in laps.items()}
    processor = {name: [lap.processor for lap in some] for name, some in laps.items()}
    floor, mine, calls = wall[FLOOR], wall[OURS], wall[CALL_BY_CALL]
    cells = {}
    for name, seconds in wall.items():
        share = "" if name == FLOOR else f"{number(_share(floor, seconds))}×: "
        micros = statistics.median(processor[name]) * 1e6
        cells[name] = (
            f"{share}{1 / statistics.median(seconds):,.0f} messages/s, {micros:,.0f} µs of processor"
        )
    rivals = [wall[name] for name in (SETNX, FASTSTREAM, CELERY) if name in wall]
    ahead = all(_share(rival, mine) > 1 for rival in rivals)
    met = _share(floor, mine) >= 0.5 and _share(calls, mine) >= 5 and ahead
    return Row(
        f"consumers/{broker}/{store}",
        SECTION,
        f"{broker}, records on {store}: speed as a share of the bare loop",
        cells,
        f"≥ 0.5×, ≥ 5× of call by call (is {number(_share(calls, mine))}×), ahead of all by hand",
        met,
        raw={**wall, **{f"{name}, processor": some for name, some in processor.items()}},
    )


def _share(one: list[float], other: list[float]) -> float:
    """How many times the speed of `one` the `other` has: the median over the rounds."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def _memory(broker: Broker, store: str, pending: int) -> Row:
    """Few messages, of which all are handled; and many, of which ten times as many are."""
    sizes = []
    for count, handled in ((FEW, FEW), (pending, min(MANY, pending))):
        broker.fill(count)
        command = [sys.executable, "-m", "benchmarks.consumers", broker.url, str(handled), store]
        sizes.append(json.loads(subprocess.check_output(command))["bytes"])
    growth = (sizes[1] - sizes[0]) / 1e6
    return Row(
        f"consumers/memory/{broker.shown}",
        SECTION,
        f"{broker.shown}: memory with {pending:,} messages pending, over that with {FEW:,}",
        {OURS: f"{growth:+.1f} MB of {sizes[0] / 1e6:.0f} MB"},
        "≤ +10 MB",
        growth <= 10,
        raw={"bytes": sizes},
    )


def main(url: str, count: str, store: str) -> None:
    with Receiver.open(store) as receiver:
        consumed(url, int(count), receiver)
    print(json.dumps({"bytes": _largest()}))


def _largest() -> int:
    """The largest size of this process. (`getrusage` begins with that of the process that started it.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
