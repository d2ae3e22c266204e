"""A worker of durable runs that is killed at random moments. The trial forks it from a process that has
imported this module, so that a thousand of them are quick to start.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from tests.transactions.kinds import open_door
from twicesafe import Backoff, Policy, Receiver, Steps

__all__ = ["DOORS", "PARTS", "POLICY", "durable_on", "work"]

DOORS = {"sqlite": "sqlite3", "postgres": "psycopg", "mariadb": "pymysql"}
PARTS = (100, 20, 3)
POLICY = Policy(
    lease=0.5, wait=0, max_attempts=10_000, backoff=Backoff(first=0.001, most=0.001)
)  # fmt: skip


def durable_on(receiver: Receiver, door: Any, ledger: str) -> Any:
    """Effects outside, and money in the user's own database, if there is a `door` to it."""

    def outside(order: str, name: str) -> str:
        file = os.open(ledger, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
        os.write(file, f"{order} {name}\n".encode())
        os.close(file)
        time.sleep(0.002)  # a call on a network
        return name

    def move(connection: Any, order: str, cents: int) -> int:
        door.sql(f"INSERT INTO moves (run, cents) VALUES ('{order}', {cents})")
        return cents

    @receiver.durable(key="order", name="transfer", scope=())
    def transfer(steps: Steps, order: str) -> list[Any]:
        found: list[Any] = [steps.run("first", outside, order, "first")]
        for cents in PARTS:
            if door is None:
                found.append(steps.run(f"move-{cents}", outside, order, f"move-{cents}"))
            else:
                found.append(steps.transact(f"move-{cents}", door.connection, move, order, cents))
        return [*found, steps.run("last", outside, order, "last")]

    return transfer


def work(engine: str, url: str, ledger: str, ready: Any) -> None:
    """Complete what is due, until SIGKILL. `ready` is set when it begins."""
    logging.getLogger("twicesafe").setLevel(logging.CRITICAL)  # what fails here fails on purpose
    door = open_door(DOORS[engine], url.partition("?")[0]) if engine in DOORS else None
    receiver = Receiver.open(url, policy=POLICY)
    durable_on(receiver, door, ledger)
    ready.set()
    while True:
        if not receiver.complete_abandoned(limit=2).found:
            time.sleep(0.005)
