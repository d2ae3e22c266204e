"""Zombies (C7): workers that stand still past their lease and then go on as if nothing had happened.

SIGSTOP is what a paused container, a swapped-out process or a suspended machine looks like. While the
worker stands still another one takes over and records its result; then the zombie wakes, and says
everything that it could say to the store. Nothing of it may be accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.servers import shared
from twicesafe import AsyncReceiver, Policy, Receiver, StillInProgressError, StoreUnavailableError

from .cuts import bench_for
from .drivers import DRIVERS
from .proxy import Fault
from .trial import KEYED, SERVERS, Trial, trial

__all__ = ["LEASE", "Worker", "blocked_loops", "fresh_url", "late_answers", "zombies"]

LEASE: Final = 0.3


@contextmanager
def fresh_url(engine: str) -> Iterator[str]:
    """A store of this engine that no other trial uses and many processes may open."""
    if engine == "sqlite":
        with tempfile.TemporaryDirectory(prefix="twicesafe-lab-") as folder:
            yield f"sqlite:///{Path(folder) / 'keys.db'}"
    else:
        with shared(engine).fresh() as url:
            yield url


class Worker:
    def __init__(self, url: str, kind: str) -> None:
        words = [str(Path(__file__).with_name("zombie.py")), url, kind, str(LEASE)]
        self._process = subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def take(self, key: str) -> bool:
        """Is its handler running?"""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{key}\n")
        self._process.stdin.flush()
        return self._line() == "in\n"

    def stop(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def wake(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def found(self) -> Any:
        return json.loads(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@trial("zombies", "C7", "awakenings", ("sqlite", *SERVERS, *KEYED))
def zombies(t: Trial) -> None:
    """Workers are stopped past their lease and resumed. Is anything that they write accepted? Do they soon
    notice that they lost the claim?"""
    with fresh_url(t.engine) as url, Receiver.open(url, policy=Policy(wait=20)) as receiver:
        workers = {kind: Worker(url, kind) for kind in ("threads", "tasks")}
        try:
            for number in range(t.size(4, 100)):
                for kind, worker in workers.items():
                    _awaken(t, receiver, worker, f"{kind}-{number}")
        finally:
            for worker in workers.values():
                worker.wake()
                worker.end()


def _awaken(t: Trial, receiver: Receiver, worker: Worker, key: str) -> None:
    if not worker.take(key):
        t.count("too slow to start")
        return
    worker.stop()
    outcome = receiver.process(key, str, "taken over")  # waits for the lease
    woken = time.monotonic()
    worker.wake()
    found = worker.found()
    t.tried += 1
    t.expect(outcome.attempt == 2, f"{key}: taken over at attempt {outcome.attempt}")
    t.expect(found["acks"] == ["LOST"] * 4, f"{key}: the store said {found['acks']}")
    t.expect(found["end"] == "LeaseLostError", f"{key}: the zombie ended with {found['end']}")
    again = receiver.process(key, str, "run again")
    t.expect(again.value == "taken over", f"{key}: the record says {again.value!r}")
    if found["told"] is None:
        t.broke(f"{key}: the zombie was never told")
    else:
        late = found["told"] - woken
        t.most("told after waking, s", max(0.0, late))
        t.expect(late <= 1.0, f"{key}: told {late:.2f} s after waking")


@trial("blocked event loops", "C7", "blocks", ("sqlite", *SERVERS, *KEYED))
def blocked_loops(t: Trial) -> None:
    """A handler blocks its event loop for longer than the lease. Does the keeper's thread keep its claim?"""
    lease = 1.0
    running = threading.Event()

    async def stubborn() -> str:
        running.set()
        time.sleep(2.2 * lease)  # noqa: ASYNC251 - that is what is tried
        return "kept"

    async def block(url: str, key: str) -> Any:
        async with AsyncReceiver.open(url, policy=Policy(lease=lease)) as receiver:
            return await receiver.process(key, stubborn)

    policy = Policy(lease=lease, in_flight="reject")
    with fresh_url(t.engine) as url, Receiver.open(url, policy=policy) as other:
        for number in range(t.size(1, 10)):
            key = f"block-{number}"
            running.clear()
            with _meanwhile(t, other, key, running):
                outcome = asyncio.run(block(url, key))
            t.tried += 1
            t.expect(outcome.attempt == 1, f"{key}: it took {outcome.attempt} attempts")
            again = other.process(key, str, "run again")
            t.expect(again.value == "kept", f"{key}: the record says {again.value!r}")


@contextmanager
def _meanwhile(t: Trial, other: Receiver, key: str, running: threading.Event) -> Iterator[None]:
    """Others ask for the key all the time once its handler runs, and are refused as long as it is kept."""
    done = threading.Event()

    def ask() -> None:
        running.wait(60)
        while not done.wait(0.05):
            try:
                if not other.process(key, str, "stolen").replayed:
                    t.broke(f"{key}: taken from a worker that lives")
                return
            except StillInProgressError:
                t.count("duplicates refused meanwhile")

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@trial("late answers", "C7", "late answers", (*SERVERS, *KEYED))
def late_answers(t: Trial) -> None:
    """The answer to a claim comes later than the lease that it grants: does it start a handler?"""
    lease = 0.8
    policy = Policy(lease=lease, wait=10)
    for driver in DRIVERS[t.engine]:
        with bench_for(t, driver, "reply", policy) as bench:
            for number in range(t.size(2, 8)):
                key = f"late-{number}"
                bench.again(f"warm-{number}")
                fault = bench.proxy.arm(Fault("reply", 0, "delay", 1.1))
                began = time.monotonic()
                waits: list[float] = []

                def handler(
                    key: str = key, began: float = began, waits: list[float] = waits
                ) -> str:
                    waits.append(time.monotonic() - began)
                    return bench.run(key)

                with contextlib.suppress(StoreUnavailableError):
                    bench.client.process(key, handler)
                late = [f"{wait:.2f}" for wait in waits if wait >= lease]
                t.expect(not late, f"{driver}, {key}: started {late} s after asking")
                t.tried += fault.happened and not waits
                bench.again(key)
                t.expect(bench.runs[key] == 1, f"{driver}, {key}: ran {bench.runs[key]} times")
