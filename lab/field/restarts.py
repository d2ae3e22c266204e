"""The server dies and comes back under load, or another takes its place (C6).

*Restarts*: each engine with its own durability on; every second blow is a kill -9. Whatever was
acknowledged must be there afterwards, and no key may have run twice.

*Failover*: a Valkey pair with the proxy between them. (To stop the replica is not enough: its socket's
buffer keeps what it has not read.) What an asynchronous replica never saw is lost with its primary:
this is measured, not promised away.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from typing import Final

from tests.servers import launch
from tests.servers.etcd import apt_program
from tests.stores.load import Load, Tasks, Threads
from twicesafe import Policy, Receiver, StoreUnavailableError

from .proxy import Proxy
from .trial import SERVERS, Trial, trial

__all__ = ["answers_are_recorded", "failover", "restarts", "until_it_moves"]

DURABLE: Final[dict[str, dict[str, str]]] = {
    "postgres": {"fsync": "on"},
    "valkey": {"appendonly": "yes", "appendfsync": "always"},
    "mariadb": {},
    "mongodb": {},
}


def _durable(engine: str) -> dict[str, str]:
    """Settings of a server that keeps what it acknowledged. (etcd: its wheel is a version that may not.)"""
    return {"program": apt_program()} if engine == "etcd" else DURABLE[engine]


@trial("restarts under load", "C6", "restarts", (*SERVERS, "etcd", "mongodb"))
def restarts(t: Trial) -> None:
    """The server is stopped and killed under load, again and again. Is a recorded result lost? Does a key
    run twice?"""
    rng = t.rng
    with launch(t.engine, **_durable(t.engine)) as server:
        for kind in (Threads, Tasks):
            load = kind(server.url)
            threads = load.start()
            try:
                for _ in range(t.size(2, 50)):
                    until_it_moves(load)
                    (server.kill if rng.random() < 0.6 else server.stop)()
                    server.start()
                    t.tried += 1
                until_it_moves(load)
            finally:
                load.stop.set()
                for thread in threads:
                    thread.join(60)
            load.end()
            answers_are_recorded(t, load, server.url)


def until_it_moves(load: Load) -> None:
    enough = load.progress + 40
    until = time.monotonic() + 60
    while load.progress < enough:
        if time.monotonic() > until:
            raise AssertionError(f"no caller recovers: {load.errors} {load.unexpected[:1]}")
        time.sleep(0.005)


def answers_are_recorded(t: Trial, load: Load, url: str) -> None:
    """The record of each key has the answer that its callers got, and no key ran twice."""
    t.count("results acknowledged", len(load.answers))
    t.count("callers told of an outage", sum(load.errors.values()))
    lost = []

    def missing(key: str) -> str:
        lost.append(key)
        return "lost"

    with Receiver.open(url) as receiver:
        for key, told in load.answers.items():
            value = receiver.process(key, missing, key).value
            t.expect(told == {value}, f"{key}: callers got {told}, the record says {value!r}")
    doubled = [key for key, runs in load.runs.items() if runs > 1]
    t.expect(not lost, f"recorded results were lost: {lost[:5]}")
    t.expect(not doubled, f"ran twice: {doubled[:5]}")
    for error in load.unexpected[:3]:
        t.broke(f"a caller got {type(error).__name__}: {error}")


# --- failover --------------------------------------------------------------------------------

PATIENT: Final = Policy(lease=20, wait=5)
MANY: Final = {False: 16, True: 40}
"""Deliveries that meet the partition; in a full run more."""


class Pair:
    """A primary and its replica with a link between them, and the address that clients know."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        settings = {"appendonly": "yes", "appendfsync": "always", "repl_diskless_sync_delay": "0"}
        self.primary = stack.enter_context(launch("valkey", **settings))
        self.link = stack.enter_context(Proxy(self.primary.port))
        replicaof = f"127.0.0.1 {self.link.port}"
        self.replica = stack.enter_context(launch("valkey", replicaof=replicaof, **settings))
        self.front = stack.enter_context(Proxy(self.primary.port))
        self.until_level()

    def until_level(self) -> None:
        """The replica has seen all."""
        until = time.monotonic() + 30
        with self.primary.client() as ours, self.replica.client() as theirs:
            while time.monotonic() < until:
                here, there = ours.info("replication"), theirs.info("replication")
                level = here["master_repl_offset"] == there.get("slave_repl_offset")
                if there["master_link_status"] == "up" and level:
                    return
                time.sleep(0.02)
        raise AssertionError("the replica does not follow")

    def fail_over(self) -> None:
        self.primary.kill()
        self.link.cut()
        with self.replica.client() as client:
            client.execute_command("REPLICAOF NO ONE")
        self.front.behind = self.replica.port
        self.front.cut()


def _acknowledged(receiver: Receiver, keys: list[str], rng: random.Random) -> dict[str, str]:
    """Deliver these at once; what the callers got."""
    told: dict[str, str] = {}

    def call(key: str, value: str) -> None:
        with contextlib.suppress(StoreUnavailableError):
            told[key] = receiver.process(key, str, value).value

    threads = [threading.Thread(target=call, args=(key, f"{key}/{rng.random()}")) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def _one_failover(t: Trial, replicas: int, number: int) -> Counter[str]:
    rng = random.Random(f"{t.seed}/{number}")
    found: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        pair = Pair(stack)
        url = f"redis://127.0.0.1:{pair.front.port}/0?wait_replicas={replicas}&wait_timeout=0.2"
        receiver = stack.enter_context(Receiver.open(url, policy=PATIENT))
        before = _acknowledged(receiver, [f"before-{n}" for n in range(MANY[t.full])], rng)
        if not replicas:
            pair.until_level()
        pair.link.held = True
        after = _acknowledged(receiver, [f"after-{n}" for n in range(MANY[t.full])], rng)
        pair.fail_over()
        for when, told in (("before", before), ("during", after)):
            found[f"acknowledged {when}"] += len(told)
            for key, value in told.items():
                again = _again(receiver, key)
                found[f"lost, acknowledged {when}"] += again != value
    return found


def _again(receiver: Receiver, key: str) -> str:
    until = time.monotonic() + 20
    while True:
        try:
            return receiver.process(key, str, "run again").value
        except StoreUnavailableError:
            if time.monotonic() > until:
                raise


@trial("failover", "C6", "failovers", ("valkey",))
def failover(t: Trial) -> None:
    """The primary dies while its replica is cut off, and the replica takes over. This counts what is lost
    without wait_replicas, and with wait_replicas=1."""
    for replicas in (0, 1):
        found: Counter[str] = Counter()
        for number in range(t.size(1, 10)):
            found += _one_failover(t, replicas, number)
            t.tried += 1
        for what, count in found.items():
            t.count(f"wait_replicas={replicas}: {what}", count)
        t.expect(not found["lost, acknowledged before"], "what the replica had seen was lost")
        if replicas:
            t.expect(not found["lost, acknowledged during"], "lost in spite of wait_replicas=1")
        else:
            t.expect(found["acknowledged during"], "nothing met the partition: this shows nothing")
    t.notes.append(
        "without wait_replicas a failover loses what the replica never saw; this is why it is there"
    )
