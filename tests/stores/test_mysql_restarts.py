"""MariaDB is restarted again and again under load: no recorded result is lost, and all recover."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from typing import Any

import pytest

from twicesafe import AsyncReceiver, Policy, Receiver
from twicesafe.errors import LeaseLostError, StillInProgressError, StoreUnavailableError

RESTARTS = 8
POLICY = Policy(lease=3, wait=60)
BEARABLE = (StoreUnavailableError, StillInProgressError, LeaseLostError)
"""The errors that a caller may get while the store is away."""


class Ledger:
    """What callers got, and how often handlers ran. Filled from threads and tasks."""

    def __init__(self) -> None:
        self.told: dict[str, set[str]] = {}
        self.runs: Counter[str] = Counter()
        self.troubles: Counter[str] = Counter()
        self.problems: list[BaseException] = []
        self.over = False
        self._lock = threading.Lock()
        self._number = 0

    def next_key(self) -> str:
        """Half of all deliveries are repeats."""
        with self._lock:
            if random.random() < 0.5:
                self._number += 1
            return f"key-{random.randint(max(0, self._number - 20), self._number)}"

    def handle(self, key: str) -> str:
        with self._lock:
            self.runs[key] += 1
            return f"{key}, run {self.runs[key]}"

    def note(self, key: str, value: str) -> None:
        with self._lock:
            self.told.setdefault(key, set()).add(value)

    def failed(self, error: BaseException) -> None:
        with self._lock:
            if isinstance(error, BEARABLE):
                self.troubles[type(error).__name__] += 1
            else:
                self.problems.append(error)


def mistreat(server: Any, ledger: Ledger) -> None:
    """Orderly restarts and kills in turn; between them the callers must get somewhere."""
    for number in range(RESTARTS):
        before = sum(ledger.runs.values())
        server.kill() if number % 2 else server.stop()
        server.start()
        pause = threading.Event()
        for _ in range(3000):
            if sum(ledger.runs.values()) >= before + 10 or ledger.problems:
                break
            pause.wait(0.02)
        else:
            ledger.problems.append(AssertionError(f"no caller recovered from restart {number}"))
            return


def judge(ledger: Ledger, url: str) -> None:
    assert ledger.problems == []
    assert sum(ledger.runs.values()) >= RESTARTS * 10
    with Receiver.open(url) as receiver:
        for key, values in ledger.told.items():
            assert len(values) == 1, "two callers got different values"
            assert {receiver.process(key, lambda: "run again").value} == values
        for key, runs in ledger.runs.items():
            record = receiver.record(key)
            if runs > 1:  # the record was out of reach, and says why there was another start
                assert record is not None
                assert record.cause is not None


@pytest.fixture
def shop(own_server: Any) -> tuple[Any, str]:
    server = own_server("mariadb")
    server.execute("CREATE DATABASE shop")
    return server, server.url_of("shop")


def test_threads_survive_restarts(shop: tuple[Any, str]):
    server, url = shop
    ledger = Ledger()
    with Receiver.open(url, policy=POLICY) as receiver:

        def deliver() -> None:
            while not ledger.over:
                key = ledger.next_key()
                try:
                    ledger.note(key, receiver.process(key, ledger.handle, key).value)
                except Exception as error:
                    ledger.failed(error)

        threads = [threading.Thread(target=deliver) for _ in range(8)]
        for thread in threads:
            thread.start()
        mistreat(server, ledger)
        ledger.over = True
        for thread in threads:
            thread.join()
    judge(ledger, url)


async def test_tasks_survive_restarts(shop: tuple[Any, str]):
    server, url = shop
    ledger = Ledger()

    async def handle(key: str) -> str:
        return ledger.handle(key)

    async with AsyncReceiver.open(url, policy=POLICY) as receiver:

        async def deliver() -> None:
            while not ledger.over:
                key = ledger.next_key()
                try:
                    ledger.note(key, (await receiver.process(key, handle, key)).value)
                except Exception as error:
                    ledger.failed(error)

        tasks = [asyncio.create_task(deliver()) for _ in range(20)]
        await asyncio.to_thread(mistreat, server, ledger)
        ledger.over = True
        await asyncio.gather(*tasks)
    judge(ledger, url)
