"""A storm of deliveries on real processes that are really killed. Run as a script by the tests.

The parent is the broker: it delivers keys several times, in no order, to worker processes, kills
them with SIGKILL at random moments, starts new ones, and redelivers whatever was not acknowledged
until every key has its end. It keeps no state of the work: what happened is read afterwards from
the ledger and the store. The same seed makes the same deliveries and the same kill times; where in
the work a kill falls is up to the machine.

    storm.py FOLDER --store URL --seed 1 --kills 300 --effect ledger|fenced --takeover retry|hold
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import select
import signal
import sqlite3
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twicesafe import (
    Backoff,
    HeldError,
    LeaseLostError,
    Policy,
    Receiver,
    StillInProgressError,
    StoreUnavailableError,
    current_claim,
)

WORKERS = 4
LEASE = 0.25
STALLED = 30.0
"""Seconds in which no key ends: then one never does."""
MEAN_LIFE = 0.02  # seconds between kills
RECENT = 40  # repeats are of keys this new, so that kills meet work and not only replays
RESOURCE = "resource.db"
LINE = 64  # a page holds whole lines: SIGKILL can cut a write in two where a page ends


def lease_of(store: str) -> float:
    """The emulator of DynamoDB answers one call after the other: on a busy machine each takes longer than a short
    lease, and a claim that is answered later starts nothing."""
    return 8 * LEASE if store.startswith("dynamodb:") else LEASE


def ledger(folder: Path) -> Callable[[int], str]:
    """An effect that cannot be taken back: a line on disk, fsynced, whichever process dies after it."""
    file = os.open(folder / "ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def charge(number: int) -> str:
        claim = current_claim()
        assert claim is not None
        line = f"{number} {claim.fence} {claim.attempt} {claim.cause} {os.getpid()}"
        os.write(file, f"{line:<{LINE - 1}}\n".encode())
        os.fsync(file)
        return f"{number}/{claim.fence}"

    return charge


def fenced(folder: Path) -> Callable[[int], str]:
    """An effect on a resource that knows fences: one charge per key, and none from the past."""
    connection = sqlite3.connect(folder / RESOURCE, isolation_level=None, timeout=120)
    connection.execute("PRAGMA synchronous=FULL")

    def charge(number: int) -> str:
        claim = current_claim()
        assert claim is not None
        connection.execute("BEGIN IMMEDIATE")
        try:
            known = connection.execute(
                "SELECT fence FROM charges WHERE number = ?", (number,)
            ).fetchone()
            if known is None:
                connection.execute("INSERT INTO charges VALUES (?, ?)", (number, claim.fence))
                connection.execute("UPDATE account SET balance = balance + 1")
            elif known[0] < claim.fence:
                connection.execute(
                    "UPDATE charges SET fence = ? WHERE number = ?", (claim.fence, number)
                )
            else:
                raise PermissionError(f"fence {claim.fence} is not above {known[0]}")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
        return f"{number}/{claim.fence}"

    return charge


def prepare_fenced(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE charges (number INTEGER PRIMARY KEY, fence INTEGER)")
        connection.execute("CREATE TABLE account (balance INTEGER)")
        connection.execute("INSERT INTO account VALUES (0)")
    connection.close()


def work(folder: Path, options: argparse.Namespace, inbox: int, outbox: int) -> None:
    """A worker: take a delivery, process it, tell the broker. Opened after the fork, as its own."""
    policy = Policy(
        lease=lease_of(options.store),
        takeover=options.takeover,
        in_flight="reject",
        max_attempts=100,
        backoff=Backoff(first=0),
    )
    charge = (fenced if options.effect == "fenced" else ledger)(folder)
    with Receiver.open(options.store, policy=policy) as receiver:
        while delivery := os.read(inbox, 4):
            (number,) = struct.unpack("I", delivery)
            try:
                told = receiver.process(f"key-{number}", charge, number).value
            except HeldError:
                told = "held"
            except StillInProgressError:
                told = "busy"
            except (LeaseLostError, StoreUnavailableError):
                told = "lost"  # or too slow for so short a lease: the broker delivers it again
            except PermissionError:
                told = "refused"
            os.write(outbox, f"{number} {os.getpid()} {told}\n".encode())


class Broker:
    work = staticmethod(work)
    """What a worker does with its deliveries."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.rng = random.Random(options.seed)
        self.inbox, self._feed = os.pipe()
        self._reports, self.outbox = os.pipe()
        os.set_blocking(self._reports, False)
        self.pids: list[int] = []
        self.killed: list[int] = []
        self.keys = 0
        self.queued: dict[int, float] = {}
        """Deliveries that are not acknowledged yet, and when they went out."""
        self.values: dict[int, set[str]] = {}
        self.lost: list[tuple[int, int]] = []
        self.reports = 0
        self.counts = {"deliveries": 0, "busy": 0, "refused": 0}
        self._rest = b""

    def start_worker(self) -> None:
        pid = os.fork()
        if pid == 0:
            self._close_all_else()
            try:
                self.work(self.folder, self.options, self.inbox, self.outbox)
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        self.pids.append(pid)

    def _close_all_else(self) -> None:
        """Whatever other threads were about to hand on is not for a worker, and would be kept open."""
        kept = sorted({0, 1, 2, self.inbox, self.outbox})
        for low, high in itertools.pairwise([*kept, os.sysconf("SC_OPEN_MAX")]):
            os.closerange(low + 1, high)

    def kill_one(self) -> None:
        pid = self.pids.pop(self.rng.randrange(len(self.pids)))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), f"worker {pid} ended by itself, status {status}"
        self.killed.append(pid)
        self.start_worker()

    def deliver(self, number: int) -> None:
        self.queued[number] = time.monotonic()
        self.counts["deliveries"] += 1
        os.write(self._feed, struct.pack("I", number))

    def deliver_any(self) -> None:
        if self.rng.random() < 0.5 or not self.keys:
            self.keys += 1
            self.deliver(self.keys)
        else:
            self.deliver(self.rng.randint(max(1, self.keys - RECENT), self.keys))

    def listen(self, seconds: float) -> None:
        if not select.select([self._reports], [], [], seconds)[0]:
            return
        *lines, self._rest = (self._rest + os.read(self._reports, 65536)).split(b"\n")
        self.reports += len(lines)
        for line in lines:
            number, pid, told = line.decode().split()
            self.queued.pop(int(number), None)
            if told in ("busy", "refused"):
                self.counts[told] += 1
            elif told == "lost":
                self.lost.append((int(number), int(pid)))
            else:
                self.values.setdefault(int(number), set()).add(told)

    def rages(self) -> bool:
        return len(self.killed) < self.options.kills

    def run(self) -> dict[str, Any]:
        for _ in range(WORKERS):
            self.start_worker()
        began = time.monotonic()
        next_kill = began + 0.2
        reports_at_kill = 0
        while self.rages():
            while len(self.queued) < 3 * WORKERS:
                self.deliver_any()
            self.listen(max(0.001, next_kill - time.monotonic()))
            # Not before a worker has reported since the last kill: on a slow machine workers would die
            # before they have begun, and no kill would fall into their work.
            reported = self.reports > reports_at_kill
            due = reported and time.monotonic() >= next_kill
            if due and len(self.killed) < self.options.kills:
                self.kill_one()
                reports_at_kill = self.reports
                next_kill = time.monotonic() + self.rng.expovariate(1 / MEAN_LIFE)
            self._forget_unacknowledged()
        self._drain()
        seconds = time.monotonic() - began
        os.close(self._feed)
        for pid in self.pids:
            os.waitpid(pid, 0)
        return {
            "seconds": round(seconds, 1),
            "keys": self.keys,
            "killed": self.killed,
            "lost": self.lost,
            "values": {number: sorted(told) for number, told in self.values.items()},
            **self.counts,
        }

    def _forget_unacknowledged(self) -> None:
        """Deliveries that died with their worker; they come again in the drain, or before."""
        limit = time.monotonic() - lease_of(self.options.store)
        for number in [number for number, sent in self.queued.items() if sent < limit]:
            del self.queued[number]

    def _drain(self) -> None:
        """No more kills: every key is delivered again until it has its end, and once more."""
        for _ in range(2):
            seen = self.values
            self.values = {}
            fewest, until = self.keys + 1, 0.0
            while open_keys := [n for n in range(1, self.keys + 1) if n not in self.values]:
                if len(open_keys) < fewest:
                    fewest, until = len(open_keys), time.monotonic() + STALLED
                assert time.monotonic() < until, f"never ended: {open_keys[:10]}"
                for number in open_keys[: 8 * WORKERS]:
                    if number not in self.queued:
                        self.deliver(number)
                self.listen(0.05)
                self._forget_unacknowledged()
            for number, told in seen.items():
                self.values[number] |= told


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--store", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--effect", default="ledger")
    parser.add_argument("--takeover", default="retry")
    options = parser.parse_args()
    Receiver.open(options.store).close()
    if options.effect == "fenced":
        prepare_fenced(options.folder / RESOURCE)
    print(json.dumps(Broker(options.folder, options).run()))


if __name__ == "__main__":
    main()
