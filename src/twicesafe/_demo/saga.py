"""The second act: checkouts of three steps, whose workers are killed between a step's effect and its record.

    charge (undo: refund)  →  reserve (undo: give back)  →  ship, which the shop refuses for some orders

Orders are submitted, and completers in worker processes run them: ``python -m twicesafe._demo.saga``. A
worker kills itself with SIGKILL where the plan says so, and the next one continues. The bank knows keys: it
keeps one entry per key, and every step and every undo sends its own (`current_key`).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from .. import Policy, Receiver, State, Steps, current_key
from .storm import TIME_LIMIT, StormError

__all__ = ["Saga", "play_saga"]

ORDERS: Final = 24
KILLS: Final = 8
WORKERS: Final = 2
STAGES: Final = ("charge", "reserve", "ship", "refund", "give back")
OVER: Final = (State.COMPLETED, State.FAILED)


@dataclass(frozen=True, slots=True)
class Saga:
    """What came of the checkouts; ``--json`` prints these field names."""

    orders: int
    kills: int
    shipped: int
    undone: int
    unfinished: int
    entries: int
    """Charges, reservations, shipments and their undos in the books."""
    repeats: int
    """Calls that the books answered with an existing entry: the worker had died before its record."""
    wrong: int
    """Orders that were charged and not shipped, shipped and not charged, or charged twice."""
    seconds: float

    @property
    def problems(self) -> list[str]:
        found = [(self.wrong, "half done"), (self.unfinished, "not finished")]
        return [f"saga: {number} checkouts {what}" for number, what in found if number]


class _Setting(msgspec.Struct):
    folder: str
    url: str
    scope: tuple[str, ...]
    strikes: dict[str, str]
    """Per order: the stage after whose effect its worker is killed, once."""


class _Books:
    """Durable before it answers, like a bank: one entry per key."""

    def __init__(self, folder: str) -> None:
        import sqlite3

        self._database = sqlite3.connect(
            Path(folder) / "books.db", timeout=30, isolation_level=None, check_same_thread=False
        )
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, parcel TEXT NOT NULL,"
            " what TEXT NOT NULL, repeats INTEGER NOT NULL DEFAULT 0) STRICT"
        )

    def enter(self, order: str, what: str) -> None:
        key = current_key()
        assert key is not None
        self._database.execute(
            "INSERT INTO entries (key, parcel, what) VALUES (?, ?, ?)"
            " ON CONFLICT (key) DO UPDATE SET repeats = repeats + 1",
            (key.id.hex(), order, what),
        )

    def entries(self) -> list[tuple[str, str, int]]:
        return list(self._database.execute("SELECT parcel, what, repeats FROM entries"))

    def close(self) -> None:
        self._database.close()


def _checkout(receiver: Receiver, setting: _Setting, books: _Books) -> Any:
    def act(what: str, order: str) -> str:
        books.enter(order, what)
        mark = Path(setting.folder) / f"killed-{order}"
        if setting.strikes.get(order) == what and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return order

    @receiver.durable(key="order", name="demo checkout", scope=())
    def checkout(steps: Steps, order: str, in_stock: bool) -> str:
        steps.run("charge", act, "charge", order, undo=lambda sent: act("refund", sent))
        steps.run("reserve", act, "reserve", order, undo=lambda sent: act("give back", sent))
        if not in_stock:
            steps.abort("out of stock")
        return steps.run("ship", act, "ship", order)

    return checkout


def _opened(setting: _Setting) -> Receiver:
    policy = Policy(lease=0.6, wait=0, retention=3600, max_attempts=1000)
    return Receiver.open(setting.url, policy=policy, scope=setting.scope)


def play_saga(
    seed: int, url: str, scope: tuple[str, ...], folder: Path, *, orders: int, kills: bool
) -> Saga:
    """Submit the checkouts, and keep workers running until all are over."""
    began = time.monotonic()
    folder.mkdir()
    chance = random.Random(seed)
    names = [f"order-{number:03d}" for number in range(1, min(orders, ORDERS) + 1)]
    refused = {name for name in names if chance.random() < 0.35}
    struck = chance.sample(names, min(KILLS, len(names) // 2) if kills else 0)
    strikes = {
        name: chance.choice(STAGES[:2] + (STAGES[3:] if name in refused else STAGES[2:3]))
        for name in struck
    }
    setting = _Setting(str(folder), url, scope, strikes)
    with _opened(setting) as receiver, closing(_Books(setting.folder)) as books:
        checkout = _checkout(receiver, setting, books)
        keys = [checkout.submit(name, name not in refused) for name in names]
        died = _work(setting, lambda: all(_is_over(receiver, key) for key in keys))
        states = [record.state for key in keys if (record := receiver.record(key)) is not None]
        return _counted(names, refused, states, books, died, time.monotonic() - began)


def _is_over(receiver: Receiver, key: Any) -> bool:
    record = receiver.record(key)
    return record is not None and record.state in OVER


def _work(setting: _Setting, over: Any) -> int:
    """Replace workers that died, until all checkouts are over. Returns how many died."""
    workers: list[subprocess.Popen[bytes]] = []
    died, until = 0, time.monotonic() + TIME_LIMIT
    try:
        while not over() and time.monotonic() < until:
            for worker in [one for one in workers if one.poll() is not None]:
                workers.remove(worker)
                died += 1
                if worker.returncode != -signal.SIGKILL:
                    said = (Path(setting.folder) / "saga.log").read_text(errors="replace")
                    raise StormError(f"workers fail without being killed: {said.strip()[-200:]}")
            while len(workers) < WORKERS:
                workers.append(_started(setting))
            time.sleep(0.02)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return died


def _started(setting: _Setting) -> subprocess.Popen[bytes]:
    with (Path(setting.folder) / "saga.log").open("ab") as errors:
        worker = subprocess.Popen(
            [sys.executable, "-m", "twicesafe._demo.saga"],
            stdin=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    assert worker.stdin is not None
    worker.stdin.write(msgspec.json.encode(setting) + b"\n")
    worker.stdin.close()
    return worker


def _counted(
    names: list[str],
    refused: set[str],
    states: list[State],
    books: _Books,
    died: int,
    seconds: float,
) -> Saga:
    entries = books.entries()
    found = {name: sorted(what for order, what, _ in entries if order == name) for name in names}
    done, undone = ["charge", "reserve", "ship"], ["charge", "give back", "refund", "reserve"]
    return Saga(
        orders=len(names),
        kills=died,
        shipped=sum(found[name] == done for name in names),
        undone=sum(found[name] == undone for name in names),
        unfinished=len(names) - sum(state in OVER for state in states),
        entries=len(entries),
        repeats=sum(repeats for _, _, repeats in entries),
        wrong=sum(found[name] != (undone if name in refused else done) for name in names),
        seconds=round(seconds, 2),
    )


def _main() -> None:
    setting = msgspec.json.decode(sys.stdin.buffer.readline(), type=_Setting)
    parent = os.getppid()
    with _opened(setting) as receiver, closing(_Books(setting.folder)) as books:
        _checkout(receiver, setting, books)
        while os.getppid() == parent:  # the demo was interrupted
            receiver.complete_abandoned(limit=1)
            time.sleep(0.01)


if __name__ == "__main__":
    _main()
