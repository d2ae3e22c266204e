"""A run of transactions in its own process that dies at a given moment: ``python … URL MOMENT ORDER``

There is a moment before each transaction, within it, after its record and after its commit. Each run
moves `CENTS` in three steps.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import sys

from twicesafe import Backoff, Policy, Receiver, Steps
from twicesafe._transactions.idle_connection import Begun

POLICY = Policy(lease=4, wait=30, max_attempts=100, backoff=Backoff(first=0.001, most=0.001))
PARTS = (100, 20, 3)
CENTS = sum(PARTS)


def prepare(url: str) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("CREATE TABLE account (cents INTEGER)")
        connection.execute("INSERT INTO account VALUES (0)")
    connection.close()


def balance(url: str) -> int:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    ((cents,),) = connection.execute("SELECT cents FROM account")
    connection.close()
    return int(cents)


def moments(url: str) -> int:
    """How many there are in a run that is not interrupted."""
    prepare(url)
    counted = itertools.count()
    main(url, -1, "counted", counted)
    return next(counted)


def main(url: str, dies_at: int, order: str, counted: itertools.count[int] | None = None) -> str:
    numbers = counted or itertools.count()
    commit = Begun.commit

    def moment() -> None:
        if next(numbers) == dies_at:
            os._exit(9)

    def transfer(connection: sqlite3.Connection, cents: int) -> None:
        moment()
        connection.execute("UPDATE account SET cents = cents + ?", (cents,))
        moment()

    def dying_commit(self: Begun) -> None:
        moment()
        commit(self)
        moment()

    Begun.commit = dying_commit  # type: ignore[method-assign]
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    try:
        with Receiver.open(url, policy=POLICY) as receiver:

            @receiver.durable(key="order", scope=("transfers",))
            def run(steps: Steps, order: str) -> str:
                for cents in PARTS:
                    moment()
                    steps.transact(f"move-{cents}", connection, transfer, cents)
                moment()
                return "done"

            return run(order)
    finally:
        Begun.commit = commit  # type: ignore[method-assign]
        connection.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
