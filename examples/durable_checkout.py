"""A checkout whose worker is killed at every step: it continues where it stopped, or everything is undone.

The bank and the stock are tables in the same SQLite file. Money moves by `steps.transact`, so it moves
once, wherever a worker dies. An order of more than the stock is undone: the customer gets the money back.
"""

import os
import sqlite3
import subprocess
import sys

from twicesafe import Backoff, CompensatedError, Policy, Receiver, Steps

POLICY = Policy(lease=0.3, max_attempts=20, backoff=Backoff(first=0.01, most=0.01))

receiver = Receiver.open("sqlite:///shop.db", policy=POLICY)
connection = sqlite3.connect("shop.db")
dies_at = os.environ.get("DIES_AT", "")


def here(place: str) -> None:
    if place == dies_at:
        os._exit(9)  # as SIGKILL: no clean-up of any kind


def move_money(connection: sqlite3.Connection, cents: int) -> int:
    connection.execute("UPDATE bank SET cents = cents + ?", (cents,))
    here("in the bank")
    return cents


def take_from_stock(connection: sqlite3.Connection, pieces: int) -> None:
    here("in the stock")
    (left,) = connection.execute("SELECT pieces FROM stock").fetchone()
    if left < pieces:
        raise ValueError(f"only {left} pieces left")
    connection.execute("UPDATE stock SET pieces = pieces - ?", (pieces,))


@receiver.durable(key="order", policy=POLICY.replace(remember=(ValueError,)))
def checkout(steps: Steps, order: str, pieces: int) -> str:
    here("before the first step")
    cents = 100 * pieces

    def give_back(_: int) -> None:
        with connection:
            connection.execute("UPDATE bank SET cents = cents - ?", (cents,))

    steps.transact("charge", connection, move_money, cents, undo=give_back)
    here("between two steps")
    steps.transact("take", connection, take_from_stock, pieces)
    here("after the last step")
    return f"{pieces} pieces for {cents} cents"


PLACES = ["before the first step", "in the bank", "between two steps", "in the stock"]

if __name__ == "__main__" and not dies_at:
    with connection:
        connection.execute("CREATE TABLE bank (cents INTEGER)")
        connection.execute("CREATE TABLE stock (pieces INTEGER)")
        connection.execute("INSERT INTO bank VALUES (0)")
        connection.execute("INSERT INTO stock VALUES (5)")

    for place in [*PLACES, "after the last step"]:
        worker = {**os.environ, "DIES_AT": place}
        ended = subprocess.run([sys.executable, __file__], env=worker, check=False)
        print(f"killed {place}: exit status {ended.returncode}")

    print("order-1:", checkout("order-1", 3))
    try:
        checkout("order-2", 3)
    except CompensatedError as undone:
        print("order-2 is undone:", undone.reason)

    (cents,) = connection.execute("SELECT cents FROM bank").fetchone()
    (pieces,) = connection.execute("SELECT pieces FROM stock").fetchone()
    print(f"the bank has {cents} cents, the stock {pieces} pieces")
    assert (cents, pieces) == (300, 2)
elif dies_at:
    checkout("order-1", 3)

connection.close()
receiver.close()
