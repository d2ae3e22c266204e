"""One worker process of the demo's payment service: ``python -m twicesafe._demo.worker``.

It reads JSON lines from stdin: first a `DemoSetting`, then one `DemoDelivery` per line, which threads handle.
It writes one `DemoReport` per line to stdout. When stdin closes, the parent is gone and the worker exits
at once.

A delivery may have a strike: the worker stops at that stage, reports it, and waits for SIGKILL.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Literal

import msgspec

from .. import Inbox, Policy, Receiver, current_claim
from .bank import Bank, BankName, Charge, OwnBooks, bank_at, new_receipt
from .plan import Stage

__all__ = ["DemoDelivery", "DemoReport", "DemoSetting"]

BANK_SECONDS: Final = 0.005
"""Simulated latency of a bank on the network."""


class DemoSetting(msgspec.Struct):
    """A worker's configuration. The URL is sent here, so that `ps` does not show it."""

    bank: BankName
    folder: str
    threads: int
    url: str = ""
    """The store URL; empty: without twicesafe."""
    scope: tuple[str, ...] = ()
    lease: float = 0.6


class DemoDelivery(msgspec.Struct):
    number: int
    payment: str
    cents: int
    strike: Stage | None = None


class DemoReport(msgspec.Struct, omit_defaults=True):
    """``started``: the handler runs. ``struck``: it waits for SIGKILL. ``done``: acknowledge.
    ``again``: redeliver."""

    what: Literal["ready", "started", "struck", "done", "again"]
    number: int = 0
    receipt: str = ""
    replayed: bool = False
    cause: str = ""
    error: str = ""


def send(report: DemoReport) -> None:
    os.write(1, msgspec.json.encode(report) + b"\n")  # one write, so that threads never mix lines


def pay(bank: Bank, delivery: DemoDelivery) -> str:
    """The handler: one charge, under the claim if there is one."""
    claim = current_claim()
    cause = claim.cause.value if claim is not None and claim.cause is not None else ""
    send(DemoReport("started", delivery.number, cause=cause))
    _die_here("before", delivery)
    time.sleep(BANK_SECONDS)
    receipt = bank.charge(
        Charge(
            payment=delivery.payment,
            cents=delivery.cents,
            receipt=new_receipt(),
            fence=0 if claim is None else claim.fence,
            attempt=0 if claim is None else claim.attempt,
            cause=cause,
        )
    )
    _die_here("after", delivery)
    return receipt


def _die_here(stage: Stage, delivery: DemoDelivery) -> None:
    if delivery.strike == stage:
        send(DemoReport("struck", delivery.number))
        threading.Event().wait()  # the parent's SIGKILL ends this


def protected(receiver: Receiver, bank: Bank) -> Callable[[DemoDelivery], DemoReport]:
    def take(delivery: DemoDelivery) -> DemoReport:
        try:
            outcome = receiver.process(delivery.payment, pay, bank, delivery)
        except Exception as error:  # not acknowledged: the storm redelivers it
            return DemoReport("again", delivery.number, error=type(error).__name__)
        return DemoReport("done", delivery.number, receipt=outcome.value, replayed=outcome.replayed)

    return take


def together(inbox: Inbox, books: OwnBooks) -> Callable[[DemoDelivery], DemoReport]:
    """Charge and record in one transaction of the service's own database."""

    def take(delivery: DemoDelivery) -> DemoReport:
        try:
            with books.transaction() as connection:
                outcome = inbox.process(connection, delivery.payment, pay, books, delivery)
        except Exception as error:
            return DemoReport("again", delivery.number, error=type(error).__name__)
        return DemoReport("done", delivery.number, receipt=outcome.value, replayed=outcome.replayed)

    return take


def bare(bank: Bank) -> Callable[[DemoDelivery], DemoReport]:
    return lambda delivery: DemoReport("done", delivery.number, receipt=pay(bank, delivery))


def main() -> None:
    lines = sys.stdin.buffer
    setting = msgspec.json.decode(lines.readline(), type=DemoSetting)
    bank = bank_at(setting.bank, Path(setting.folder))
    if isinstance(bank, OwnBooks):
        take = together(Inbox.open(bank.url), bank)
    elif setting.url:
        # Workers are killed on purpose here, so it is normal to need many attempts.
        policy = Policy(lease=setting.lease, retention=3600, max_attempts=1000)
        receiver = Receiver.open(setting.url, policy=policy, scope=setting.scope)
        take = protected(receiver, bank)
    else:
        take = bare(bank)
    send(DemoReport("ready"))
    with ThreadPoolExecutor(setting.threads) as pool:
        for line in lines:
            pool.submit(_work, take, msgspec.json.decode(line, type=DemoDelivery))
        os._exit(0)  # the parent is gone: end the running threads too


def _work(take: Callable[[DemoDelivery], DemoReport], delivery: DemoDelivery) -> None:
    send(take(delivery))


if __name__ == "__main__":
    main()
