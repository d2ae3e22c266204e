"""Twice, many times, in any order, over all inputs; and all of it as fixtures of pytest."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from twicesafe import ConfigurationError, Outcome, Policy, Receiver
from twicesafe.stores.memory import MemoryStore
from twicesafe.testing import assert_idempotent_for, deliver_at_least_once, run_twice


class Book:
    def __init__(self) -> None:
        self.prices: dict[str, int] = {}
        self.lines: list[Any] = []

    def clear(self) -> None:
        self.prices.clear()
        self.lines.clear()

    def state(self) -> Any:
        return {"prices": dict(self.prices), "lines": list(self.lines)}

    def set_price(self, item: str, cents: int) -> int:
        self.prices[item] = cents
        return cents

    def raise_price(self, item: str, cents: int) -> int:
        """Idempotent for 0 alone."""
        self.prices[item] = self.prices.get(item, 0) + cents
        return 7

    def add(self, item: str) -> bool:
        new = item not in self.prices
        self.prices[item] = 1
        return new

    async def later(self, item: str) -> str:
        await asyncio.sleep(0)
        self.lines.append(item)
        return item


@pytest.fixture
def book() -> Book:
    return Book()


def test_run_twice(book: Book):
    assert run_twice(book.set_price, "tea", 350, snapshot=book.state) == 350
    with pytest.raises(AssertionError, match=r"raise_price .* at 'tea' doubled: 14 instead of 7"):
        run_twice(book.raise_price, "tea", 7, snapshot=lambda: {"tea": book.prices["tea"] - 350})
    with pytest.raises(AssertionError, match="second result is different: False instead of True"):
        run_twice(book.add, "milk", snapshot=book.state)
    assert run_twice(book.add, "rice", snapshot=book.state, results=False) is True
    with pytest.raises(AssertionError, match="doubled"):
        run_twice(book.later, "tea", snapshot=lambda: list(book.lines))


def test_f_of_f_is_f_for_all_inputs(book: Book):
    inputs = st.tuples(st.text(min_size=1), st.integers(0, 100))
    world = {"snapshot": book.state, "setup": book.clear, "examples": 50}
    assert_idempotent_for(book.set_price, inputs, **world)
    with pytest.raises(AssertionError, match="raise_price is not idempotent") as failed:
        assert_idempotent_for(book.raise_price, inputs, **world)
    assert "doubled: 2 instead of 1" in str(failed.value)  # made as small as it gets
    assert_idempotent_for(book.add, st.text(min_size=1), results=False, **world)


MESSAGES = [{"id": f"m{number}", "item": f"i{number}"} for number in range(20)]


def deliver(book: Book, **options: Any) -> Any:
    return deliver_at_least_once(
        lambda m: book.lines.append(m["item"]), MESSAGES, key=lambda m: m["id"], **options
    )


def test_every_message_comes_at_least_once_and_is_done_once(book: Book):
    made = deliver(book, n=3, seed=7)
    assert sorted(book.lines) == sorted(m["item"] for m in MESSAGES)
    times = [sum(d.message is m for d in made) for m in MESSAGES]
    assert set(times) == {1, 2, 3}
    assert all(isinstance(d.outcome, Outcome) for d in made)
    assert all(d.outcome.replayed == (d.time > 1) for d in made)
    assert [d.message for d in made] != sorted((d.message for d in made), key=MESSAGES.index)


def test_the_same_seed_is_the_same_order(book: Book):
    orders = [[d.message["id"] for d in deliver(book, seed=seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_without_shuffling_they_come_in_order(book: Book):
    made = deliver(book, n=2, shuffle=False)
    assert [d.message["id"] for d in made] == [m["id"] for m in MESSAGES for _ in range(2)]
    with pytest.raises(ConfigurationError, match="n=0"):
        deliver(book, n=0)


def test_a_failed_delivery_is_reported_and_stops_no_other(book: Book):
    def handle(message: dict[str, str]) -> None:
        if message["id"] == "m3" and not book.lines.count("again"):
            book.lines.append("again")
            raise TimeoutError("not now")

    with Receiver(MemoryStore(), policy=Policy(backoff=_no_rest())) as receiver:
        made = deliver_at_least_once(
            handle, MESSAGES, key=lambda m: m["id"], n=2, shuffle=False, receiver=receiver
        )
        third = [d.outcome for d in made if d.message["id"] == "m3"]
        assert isinstance(third[0], TimeoutError)
        assert third[1].attempt == 2
        assert receiver.record("m3").attempt == 2  # a receiver of yours stays open


def _no_rest() -> Any:
    from twicesafe import Backoff

    return Backoff(first=0, most=0)


TEST = """
import pytest

ledger = []

def charge(order):
    ledger.append(order)
    return order

@pytest.mark.twicesafe(takeover="hold", lease=5)
def test_policy(idempotent_receiver, crash_matrix):
    assert idempotent_receiver.policy.takeover == "hold"
    assert idempotent_receiver.policy.lease == 5
    crash_matrix(
        charge, 1, snapshot=lambda: list(ledger), setup=ledger.clear, interleavings=0
    ).check()

def test_plain(idempotent_receiver, crash_matrix, run_twice, deliver_at_least_once,
               assert_idempotent_for):
    assert idempotent_receiver.policy.takeover == "retry"
    with pytest.raises(AssertionError, match="doubled"):
        crash_matrix(charge, 1, snapshot=lambda: list(ledger), setup=ledger.clear).check()
    assert run_twice(abs, -1) == 1
    assert len(deliver_at_least_once(abs, [-1], key=str, n=2, shuffle=False)) == 2
"""


def test_the_plugin_brings_fixtures_and_a_mark(tmp_path: Path):
    (tmp_path / "test_mine.py").write_text(TEST)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\n"
    )
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-W", "error", "--strict-markers"),
            *("-p", "no:langsmith_plugin"),  # a neighbour's, which Python 3.14 warns about
            str(tmp_path),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr
