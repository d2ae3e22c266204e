"""What runs out (C15): memory and descriptors in a long run, room on disk, the right to write, time.

*Soak*: a worker does a bit of everything, in both modes, behind a proxy that cuts its connections.
*No room*: the store refuses to write in mid-work, then recovers; whatever is not recorded fails closed.
*Recovery*: how long a key waits for a worker that was killed, and for one that was interrupted.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.servers import launch, shared
from twicesafe import Policy, Receiver, StoreError

from .concurrent_processes import folder_for
from .drivers import through
from .proxy import Act, Fault, Proxy
from .trial import SERVERS, Trial, trial
from .zombies import LEASE, Worker, fresh_url

__all__ = ["no_room", "recovery", "soak"]

HERE: Final = Path(__file__).parent
SPARE: Final = 6 * 2**20
"""Bytes that an interpreter may grow by without anybody keeping anything."""


@trial("soak", "C15", "deliveries", ("sqlite", *SERVERS, "etcd", "mongodb"))
def soak(t: Trial) -> None:
    """All kinds of work for minutes, with cut connections. Does memory grow? Is a file descriptor, a thread
    or a connection left behind?"""
    rng = t.rng
    seconds = t.size(6, 300)
    with fresh_url(t.engine) as plain, _proxy(t.engine) as proxy:
        url = plain if proxy is None else through(plain, proxy.port)
        words = [sys.executable, str(HERE / "soaker.py"), url, str(seconds), str(t.seed)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            worker.stdout.readline()  # it has begun
            until = time.monotonic() + seconds
            while time.monotonic() < until and worker.poll() is None:
                time.sleep(rng.uniform(0.1, 0.5))
                if proxy is not None:
                    act: Act = rng.choice(("close", "reset"))
                    proxy.arm(Fault("reply", rng.randrange(100), act))
            if proxy is not None:
                proxy.disarm()
            found = json.loads(worker.stdout.read())
        if proxy is not None:
            t.count("cuts", proxy.faults)
            left = _connections(proxy)
            t.expect(not left, f"{left} connections were left behind")
    samples = found["samples"]
    early = max(each[0] for each in samples[: max(2, len(samples) // 4)])
    late = max(each[0] for each in samples[-max(2, len(samples) // 4) :])
    t.tried = found["counts"]["deliveries"]
    t.counts["memory early, MiB"] = round(early / 2**20, 1)
    t.counts["memory late, MiB"] = round(late / 2**20, 1)
    t.expect(late < early * 1.05 + SPARE, f"memory grew from {early:,} to {late:,} bytes")
    for index, what in ((1, "descriptors"), (2, "threads")):
        before, after = found["before"][index], found["after"][index]
        t.expect(after <= before, f"{what}: {before} before, {after} after")
    for what, count in found["counts"].items():
        if what.startswith("!"):
            t.broke(f"a caller got {what[2:]} ({count} times)")


@contextmanager
def _proxy(engine: str) -> Iterator[Proxy | None]:
    if engine == "sqlite":
        yield None
        return
    with Proxy(shared(engine).port) as proxy:
        yield proxy


def _connections(proxy: Proxy) -> int:
    """That are still open a moment after the worker's end."""
    until = time.monotonic() + 5
    while proxy.connections and time.monotonic() < until:
        time.sleep(0.05)
    return proxy.connections


# --- no room, no right -----------------------------------------------------------------------


class Refusing:
    """A server that can be made to refuse writes, by its own means."""

    def __init__(self, engine: str) -> None:
        self.server = launch(engine)
        self.engine, self.url = engine, self.server.url
        if engine == "postgres":
            self.server.execute("CREATE DATABASE lab")
            self.url = self.server.url_of("lab")
        elif engine == "mariadb":  # root may always write
            self.server.execute("CREATE DATABASE lab")
            self.server.execute("CREATE USER app@'%' IDENTIFIED BY ''")
            self.server.execute("GRANT ALL ON lab.* TO app@'%'")
            self.url = f"mysql://app@127.0.0.1:{self.server.port}/lab"

    def refuse(self, yes: bool) -> None:
        if self.engine == "valkey":
            with self.server.client() as client:
                client.config_set("maxmemory", "1" if yes else "0")
        elif self.engine == "mariadb":
            self.server.execute(f"SET GLOBAL read_only = {int(yes)}")
        else:
            word = "on" if yes else "off"
            self.server.execute(f"ALTER DATABASE lab SET default_transaction_read_only = {word}")
            self.server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'lab'"
            )


@trial("no room", "C15", "refusals", ("sqlite", *SERVERS))
def no_room(t: Trial) -> None:
    """The store refuses writes (memory full, read-only, disk full) before a claim and during work. Does a
    handler start without a claim? Is finished work lost?"""
    if t.engine == "sqlite":
        _full_disk(t)
        return
    store = Refusing(t.engine)
    runs: list[str] = []

    def work(key: str, act: Callable[[], None] = lambda: None) -> str:
        runs.append(key)
        act()
        return f"{key} done"

    with store.server, Receiver.open(store.url, policy=Policy(lease=20, wait=5)) as receiver:
        for number in range(t.size(2, 20)):
            key = f"before-{number}"
            store.refuse(True)
            try:
                receiver.process(key, work, key)
            except StoreError:
                t.tried += 1
            t.expect(key not in runs, f"{key} ran although nothing could be written")
            store.refuse(False)
            t.expect(receiver.process(key, work, key).value == f"{key} done", f"{key}: no recovery")
            key = f"during-{number}"
            outcome = receiver.process(key, work, key, lambda: _refuse_for(store, 0.3))
            t.tried += 1
            again = receiver.process(key, work, key)
            t.expect(again.value == outcome.value, f"{key} was not recorded")
            t.expect(runs.count(key) == 1, f"{key} ran {runs.count(key)} times")


def _refuse_for(store: Refusing, seconds: float) -> None:
    store.refuse(True)
    threading.Timer(seconds, store.refuse, (False,)).start()


def _full_disk(t: Trial) -> None:
    """SQLite under RLIMIT_FSIZE: the file may not grow."""
    for number in range(t.size(2, 20)):
        with folder_for() as folder:
            url = f"sqlite:///{folder / 'keys.db'}"
            Receiver.open(url).close()
            room = 150_000 + 10_000 * number
            words = [sys.executable, str(HERE / "filler.py"), url, str(room)]
            done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
            told: dict[str, Any] = json.loads(done.stdout)
            t.tried += told["refused"]
            t.count("recorded before the disk was full", len(told["values"]))
            t.expect(told["refused"], "the disk was never full: this shows nothing")
            connection = sqlite3.connect(folder / "keys.db")
            (sound,) = connection.execute("PRAGMA integrity_check").fetchone()
            connection.close()
            t.expect(sound == "ok", f"integrity_check says {sound}")
            with Receiver.open(url, policy=Policy(lease=1, wait=10)) as receiver:
                for key, value in told["values"].items():
                    again = receiver.process(key, str, "run again").value
                    t.expect(again == value, f"{key}: told {value[:20]!r}, recorded {again[:20]!r}")


# --- recovery --------------------------------------------------------------------------------


@trial("recovery", "C15", "ends of workers", ("sqlite", *SERVERS))
def recovery(t: Trial) -> None:
    """A worker is killed or interrupted while its handler runs. How soon does the next delivery run?"""
    policy = Policy(lease=LEASE, wait=20)
    with fresh_url(t.engine) as url, Receiver.open(url, policy=policy) as receiver:
        for number in range(t.size(2, 20)):
            for kind, sign, most in (
                ("killed", signal.SIGKILL, LEASE + 1),
                ("interrupted", signal.SIGINT, 1.0),
            ):
                worker = Worker(url, "threads")
                key = f"{kind}-{number}"
                try:
                    if not worker.take(key):
                        t.count("too slow to start")
                        continue
                    began = time.monotonic()
                    os.kill(worker.pid, sign)
                    receiver.process(key, str, "next")
                    taken = time.monotonic() - began
                finally:
                    worker.end()
                t.tried += 1
                t.most(f"longest wait after one was {kind}, s", taken)
                t.expect(taken <= most, f"{key}: {taken:.2f} s until the next delivery ran")
