"""Writers, two relays, and a thread that kills the relays. Run as a script by the tests.

    carnage.py URL FOLDER --rows 10000 --kills 200 --late 100 --seed 1

The writers add messages to a few keys in their own transactions; some hold theirs open for long and
commit late, some roll back. Relays append what they publish to a file and are killed at random. Only
the database knows what is to be published; the parent reads afterwards what was.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.outbox.stage import begin, connect
from twicesafe._core.outbox.requests import Message
from twicesafe.outbox import Outbox, OutboxRelay

BATCH = 20
LEASE = 0.5
KEYS = 12
WRITERS = 3
MEAN_LIFE = 0.05
ANSWER = 0.02
LINE = 128  # a page holds whole lines: SIGKILL can cut a write in two where a page ends


class File:
    """Publishes into a file: one write per call, of which a kill may leave the first lines only."""

    batch = BATCH
    concurrency = 1

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def publish(self, messages: Sequence[Message]) -> list[None]:
        lines = [json.dumps([m.id, m.key, m.body.decode()]) for m in messages]
        os.write(self._file, "".join(f"{line:<{LINE - 1}}\n" for line in lines).encode())
        time.sleep(ANSWER)  # most kills come while the broker has the message and we no answer
        return [None] * len(messages)

    def close(self) -> None:
        os.close(self._file)


def relay(url: str, folder: Path) -> int:
    """A relay in its own process; its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        OutboxRelay.open(url, File(folder / "published"), lease=LEASE, batch=BATCH).run()
    finally:
        os._exit(0)


def write(url: str, folder: Path, rows: int, late: int, seed: int) -> None:
    """All writers, in one process; leaves in a file what was committed, in order per key."""
    outbox = Outbox.open(url)
    orders: dict[str, list[str]] = {f"key {n}": [] for n in range(KEYS)}
    alone: list[str] = []
    dropped: list[str] = []
    lock = threading.Lock()
    longest_pause = 0.01 if url.startswith("sqlite") else 0.3

    def writer(number: int) -> None:
        chance = random.Random(seed * 100 + number)
        connection = connect(url)
        slow = set(chance.sample(range(rows // WRITERS), min(late // WRITERS + 1, rows // WRITERS)))
        for turn in range(rows // WRITERS):
            begin(connection)
            key: Any = chance.choice([None, *orders])
            id_ = outbox.add(connection, topic="t", body=f"{number}:{turn}", key=key)
            if turn in slow:
                time.sleep(chance.uniform(0, longest_pause))
            if chance.random() < 0.05:
                connection.rollback()
                with lock:
                    dropped.append(id_)
                continue
            if key is not None:
                orders[key].append(id_)  # no other writer is behind the gate of this key now
            connection.commit()
            if key is None:
                with lock:
                    alone.append(id_)
        connection.close()

    threads = [threading.Thread(target=writer, args=(n,)) for n in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = {"orders": orders, "alone": alone, "dropped": dropped}
    (folder / "written").write_text(json.dumps(written))
    outbox.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    for name in ("rows", "kills", "late", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    Outbox.open(asked.url).close()  # the tables are there before anyone is killed
    writers = os.fork()
    if not writers:
        try:
            write(asked.url, asked.folder, asked.rows, asked.late, asked.seed)
        finally:
            os._exit(0)
    relays = [relay(asked.url, asked.folder) for _ in range(2)]
    for _ in range(asked.kills):
        time.sleep(chance.expovariate(1 / MEAN_LIFE))
        victim = chance.randrange(2)
        os.kill(relays[victim], signal.SIGKILL)
        os.waitpid(relays[victim], 0)
        relays[victim] = relay(asked.url, asked.folder)
    os.waitpid(writers, 0)
    outbox = Outbox.open(asked.url)
    until = time.monotonic() + 60
    while outbox.depth().pending and time.monotonic() < until:
        time.sleep(0.05)
    depth = outbox.depth()
    for pid in relays:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    print(json.dumps({"pending": depth.pending, "parked": depth.parked}))


if __name__ == "__main__":
    main()
