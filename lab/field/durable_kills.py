"""Workers of durable runs, killed by the hundred (C3): what is recorded stays, and money moves once."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.transactions.kinds import open_door
from twicesafe import Receiver, State

from .concurrent_processes import folder_for
from .durable_worker import DOORS, PARTS, POLICY, durable_on, work
from .trial import SERVERS, Trial, trial
from .zombies import fresh_url

__all__ = ["durable_kills"]

WORKERS = 3
PER_KILL = 3
"""Runs that are submitted for each kill."""
TIME_LIMIT = 600.0


@trial("killed durable runs", "C3", "kills", ("sqlite", *SERVERS))
def durable_kills(t: Trial) -> None:
    """Workers are killed at random moments while they complete durable runs. The runs have effects outside, and
    move money in the user's own database (`steps.transact`). Does every run end, with one answer? Does money
    move twice? Does an effect repeat more often than its worker died?"""
    with folder_for() as folder, fresh_url(t.engine) as url:
        door = None
        if t.engine in DOORS:
            door = open_door(DOORS[t.engine], url.partition("?")[0])
            with door.transaction():
                door.sql("CREATE TABLE moves (run VARCHAR(40), cents INTEGER)")
        try:
            with Receiver.open(url, policy=POLICY) as receiver:
                ledger = folder / "ledger"
                ledger.touch()
                orders = _storm(t, receiver, durable_on(receiver, door, str(ledger)), url, ledger)
                _judge(t, receiver, orders, ledger, door)
        finally:
            if door is not None:
                door.close()


def _storm(t: Trial, receiver: Receiver, transfer: Any, url: str, ledger: Path) -> dict[str, Any]:
    """Submit, kill and replace; then let them finish. Returns the keys by order."""
    forked = multiprocessing.get_context("forkserver")
    forked.set_forkserver_preload(["lab.field.durable_worker"])
    orders: dict[str, Any] = {}
    rng, kills = t.rng, t.size(60, 1000)

    def started() -> Any:
        ready = forked.Event()
        about = t.engine, url, str(ledger), ready
        worker = forked.Process(target=work, args=about, daemon=True)
        worker.start()
        return worker, ready

    workers = [started() for _ in range(WORKERS)]
    try:
        for _ in range(kills):
            for _ in range(PER_KILL):
                order = f"order-{len(orders)}"
                orders[order] = transfer.submit(order)
            place = rng.randrange(WORKERS)
            worker, ready = workers[place]
            ready.wait(TIME_LIMIT)
            time.sleep(rng.uniform(0, 0.1))
            worker.kill()
            worker.join()
            t.tried += 1
            workers[place] = started()
        until = time.monotonic() + TIME_LIMIT
        left = list(orders.values())
        while left and time.monotonic() < until:
            left = [key for key in left if not _is_done(receiver, key)]
            time.sleep(0.05)
    finally:
        for worker, _ in workers:
            worker.kill()
            worker.join()
    return orders


def _is_done(receiver: Receiver, key: Any) -> bool:
    record = receiver.record(key)
    return record is not None and record.state is State.COMPLETED


def _judge(
    t: Trial, receiver: Receiver, orders: dict[str, Any], ledger: Path, door: Any
) -> None:  # fmt: skip
    records = [receiver.record(key) for key in orders.values()]
    ended = [each for each in records if each is not None and each.state is State.COMPLETED]
    t.count("runs", len(orders))
    t.count("runs taken over", sum(each.attempt > 1 for each in ended))
    t.expect(len(ended) == len(orders), f"{len(orders) - len(ended)} runs without an end")
    starts = sum(each.attempt for each in ended)
    lines = Counter(ledger.read_text().splitlines())
    names = ["first", "last", *([] if door else [f"move-{cents}" for cents in PARTS])]
    lost = [order for order in orders for name in names if not lines[f"{order} {name}"]]
    t.expect(not lost, f"effects lost: {lost[:5]}")
    again = lines.total() - len(lines)
    t.count("effects outside that were done again", again)
    t.expect(
        again <= starts - len(ended), f"{again} effects repeated in {starts - len(ended)} takeovers"
    )
    if door is None:
        return
    with door.transaction():
        moved = door.sql("SELECT run, count(*), sum(cents) FROM moves GROUP BY run")
    sums = {run: (int(times), int(cents)) for run, times, cents in moved}
    right = (len(PARTS), sum(PARTS))
    t.count("transfers in transactions", sum(times for times, _ in sums.values()))
    wrong = [order for order in orders if sums.get(order) != right]
    t.count("transfers doubled", sum(max(0, times - right[0]) for times, _ in sums.values()))
    t.expect(not wrong, f"money moved twice or not at all: {wrong[:5]}")
