"""Pins what a type checker sees of `Receiver`. Checked by pyright (strict), never run.

A line that must be an error carries ``# pyright: ignore[rule]``, and an ignore that is not needed is
an error too, so every expectation can fail.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, assert_type

from twicesafe import (
    ActiveClaim,
    Claim,
    Failure,
    Inbox,
    Key,
    MessageHandler,
    Outcome,
    Policy,
    Receiver,
    Record,
    State,
    Steps,
    current_claim,
    current_key,
)
from twicesafe.stores import AuditEntry


@dataclass
class Receipt:
    id: str


def charge(order: str, amount: int = 1) -> Receipt:
    return Receipt(order * amount)


receiver = Receiver.open("memory://", policy=Policy(lease=10))

# -- process: the handler's own type, and its own parameters
assert_type(receiver, Receiver)
assert_type(receiver.process("k", charge, "o"), Outcome[Receipt])
assert_type(receiver.process(Key("k"), charge, "o", amount=2).value, Receipt)
assert_type(receiver.process(5, lambda: None), Outcome[None])
assert_type(receiver.process("k", functools.partial(charge, "o"), 3), Outcome[Receipt])
receiver.process("k", charge)  # pyright: ignore[reportCallIssue]
receiver.process("k", charge, 5)  # pyright: ignore[reportArgumentType]
receiver.process("k", charge, "o", price=5)  # pyright: ignore[reportCallIssue]
receiver.process(b"k", charge, "o")  # pyright: ignore[reportArgumentType]

outcome = receiver.process("k", charge, "o")
assert_type(outcome.replayed, bool)
assert_type(outcome.attempt, int)
assert_type(outcome.fence, int)
assert_type(outcome.key, Key)


# -- the decorator keeps the signature
@receiver.idempotent
def plain(order: str, amount: int = 1) -> Receipt:
    return charge(order, amount)


@receiver.idempotent(key="order", fingerprint=True)
def keyed(order: str, *, amount: int) -> int:
    return amount


assert_type(plain("o", 2), Receipt)
assert_type(keyed("o", amount=1), int)
plain(5)  # pyright: ignore[reportArgumentType]
keyed("o")  # pyright: ignore[reportCallIssue]


class Shop:
    @receiver.idempotent(key="order")
    def buy(self, order: str) -> Receipt:
        return Receipt(order)

    @staticmethod
    @receiver.idempotent(key="order")
    def send(order: str) -> int:
        return 1

    @classmethod
    @receiver.idempotent(key="order")
    def make(cls, order: str) -> str:
        return order


assert_type(Shop().buy("o"), Receipt)
assert_type(Shop.send("o"), int)
assert_type(Shop.make("o"), str)
Shop().buy(1)  # pyright: ignore[reportArgumentType]


# -- batches
def handle(message: dict[str, str]) -> int:
    return len(message)


answers = receiver.process_many([{"id": "1"}], handle, key=lambda m: m["id"])
assert_type(answers, list[Outcome[int] | Failure])
for answer in answers:
    if isinstance(answer, Failure):
        assert_type(answer.error, BaseException)
        assert_type(answer.key, Key | None)
        assert_type(answer.ok, Literal[False])  # mypy narrows by it
    else:
        assert_type(answer.value, int)
        assert_type(answer.ok, Literal[True])
receiver.process_many([5], handle, key=str)  # pyright: ignore[reportArgumentType]


# -- the decorator that returns outcomes
@receiver.idempotent(key="order", outcome=True)
def with_outcome(order: str) -> Receipt:
    return charge(order)


assert_type(with_outcome("o"), Outcome[Receipt])
with_outcome(5)  # pyright: ignore[reportArgumentType]


# -- claims by hand
with receiver.claim("k", fingerprint={"a": 1}) as claim:
    assert_type(claim, Claim[Any])
    assert_type(claim.is_new, bool)
    assert_type(claim.lost, bool)
    assert_type(claim.complete(5), None)
    assert_type(claim.result, Any)
with receiver.claim("k", returns=Receipt) as typed:
    assert_type(typed, Claim[Receipt])
    assert_type(typed.result, Receipt)
    typed.complete(5)  # pyright: ignore[reportArgumentType]
assert_type(receiver.claim("k", returns=list[Receipt]).result, list[Receipt])
assert_type(receiver.claim("k", returns=Receipt | None).result, Any)

# -- operators
assert_type(receiver.record("k"), Record | None)
receiver.release("k", by="ann")
receiver.release("k")  # pyright: ignore[reportCallIssue]
receiver.resolve("k", 5, by="ann", returns=int)
assert_type(receiver.records(state=State.HELD), Iterator[Record])
assert_type(receiver.records(state=["held", State.PARKED], since="2h"), Iterator[Record])
receiver.records(sinse="2h")  # pyright: ignore[reportCallIssue]
assert_type(receiver.count(value="tx-1", up_to=10), int)
assert_type(receiver.audit_log(since="1d"), list[AuditEntry])
assert_type(receiver.records_page(), tuple[list[Record], str])
assert_type(receiver.options(scope=("t",)), Receiver)
assert_type(current_key(), Key | None)
assert_type(current_claim(), ActiveClaim | None)
Policy(lease=b"30")  # pyright: ignore[reportArgumentType]
Policy(in_flight="queue")  # pyright: ignore[reportArgumentType]
Policy(leese=3)  # pyright: ignore[reportCallIssue]


# -- message handlers
class Payments(MessageHandler[dict[str, str], Receipt]):
    def key(self, message: dict[str, str]) -> str:
        return message["id"]

    def handle(self, message: dict[str, str]) -> Receipt:
        return Receipt(message["id"])


assert_type(Payments(receiver)({"id": "1"}), Outcome[Receipt])
Payments(receiver)(5)  # pyright: ignore[reportArgumentType]

# --- the inbox: the connection in front, or all arguments as they are -----------------------------


def book(connection: sqlite3.Connection, order: str, amount: int = 1) -> Receipt:
    return Receipt(order * amount)


inbox = Inbox.open("sqlite:///shop.db")
connection = sqlite3.connect("shop.db")
assert_type(inbox.process(connection, "k", book, "o-1"), Outcome[Receipt])
assert_type(inbox.process(connection, "k", book, "o-1", amount=2), Outcome[Receipt])
assert_type(inbox.process(connection, "k", book, order="o-1"), Outcome[Receipt])
assert_type(inbox.process(connection, "k", book, connection, "o-1"), Outcome[Receipt])
assert_type(inbox.process(connection, "k", charge, "o-1"), Outcome[Receipt])
assert_type(inbox.process(connection, "k", lambda: 1), Outcome[int])
inbox.process(connection, "k", book, 5)  # pyright: ignore[reportCallIssue, reportArgumentType]
inbox.process("default", "k", book, "o-1")  # pyright: ignore[reportCallIssue]


# --- durable functions ----------------------------------------------------------------------------


@receiver.durable(key="order")
def checkout(steps: Steps, order: str) -> Receipt:
    assert_type(steps.run("charge", charge, order, undo=lambda receipt: None), Receipt)
    assert_type(steps.wait("approval", returns=bool), bool)
    assert_type(steps.wait("approval", timeout="1d", returns=bool), bool | None)
    assert_type(steps.wait("approval", timeout="1d"), Any)
    return charge(order)


assert_type(checkout("o-1"), Receipt)
assert_type(checkout.key("o-1"), Key)
checkout(5)  # pyright: ignore[reportArgumentType]


@receiver.durable
def refund(steps: Steps, order: str) -> Receipt:
    return charge(order)


assert_type(refund("o-1"), Receipt)
assert_type(refund.submit("o-1"), Key)
refund(5)  # pyright: ignore[reportArgumentType]
