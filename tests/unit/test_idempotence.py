"""`assert_idempotent` catches naive handlers, names the point, and lets good handlers pass."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from twicesafe import (
    AsyncReceiver,
    ConfigurationError,
    Key,
    Outcome,
    Policy,
    Receiver,
    UsageError,
    current_claim,
    current_key,
)
from twicesafe.testing import assert_idempotent as check
from twicesafe.testing import assert_idempotent_async, crash_point
from twicesafe.testing._comparison import difference, same
from twicesafe.testing.plugin import assert_idempotent, idempotent_receiver, store_clock

END = "crash: handler ended, nothing recorded"


class Shop:
    """The outside world of these tests."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.charges: list[str] = []
        self.marks: set[str] = set()
        self.balance = 0
        self.receipts: dict[str, int] = {}
        self.runs = 0

    def state(self) -> Any:
        return {"charges": list(self.charges), "balance": self.balance}

    # -- naive ones ---------------------------------------------------------------------------

    def charge(self, order: str) -> str:
        self.charges.append(order)
        return f"paid {order}"

    def mark_then_charge(self, order: str) -> str:
        """A home-made guard: the mark is set before the effect."""
        if order not in self.marks:
            self.marks.add(order)
            crash_point("marked")
            self.charges.append(order)
        return f"paid {order}"

    def charge_then_mark(self, order: str) -> str:
        """The other home-made guard: the effect comes before the mark."""
        if order not in self.marks:
            self.charges.append(order)
            crash_point("charged")
            self.marks.add(order)
        return f"paid {order}"

    # -- good ones ----------------------------------------------------------------------------

    def charge_by_key(self, order: str) -> str:
        """The downstream knows the key, so it does the deed once."""
        key = current_key()
        assert key is not None
        crash_point("before the call")
        self.receipts.setdefault(key.value, len(self.receipts))
        self.charges[:] = [order] * len(self.receipts)
        crash_point("after the call")
        return f"paid {order}"

    def set_balance(self, order: str) -> str:
        self.balance = 10
        return order


@pytest.fixture
def shop() -> Shop:
    return Shop()


def wrong(shop: Shop, handler: Any, **options: Any) -> str:
    options = {"snapshot": shop.state, "setup": shop.clear, **options}
    with pytest.raises(AssertionError) as caught:
        check(handler, "o-1", **options)
    return str(caught.value)


def lines_of(report: str, verdict: str) -> list[str]:
    return [line for line in report.splitlines() if f"  {verdict}  " in line]


def test_a_charge_that_a_crash_doubles_is_caught(shop: Shop):
    report = wrong(shop, lambda order: (shop.charges.append(order), order)[1])
    (line,) = lines_of(report, "WRONG")
    assert line.split("  ")[1] == END
    assert "at 'charges' doubled: ['o-1', 'o-1'] instead of ['o-1']" in line
    assert report.count("  ok\n") == 5  # once, twice, three times, at once, at the start


def test_the_table_tells_which_point_doubles(shop: Shop):
    report = wrong(shop, shop.charge_then_mark, snapshot=lambda: list(shop.charges))
    assert report.startswith("Shop.charge_then_mark is not idempotent: 1 of 7 trials went wrong")
    (line,) = lines_of(report, "WRONG")
    told = "crash: charged 2 WRONG state: doubled: ['o-1', 'o-1'] instead of ['o-1']"
    assert " ".join(line.split()) == told


def test_the_table_tells_which_point_loses(shop: Shop):
    report = wrong(shop, shop.mark_then_charge, snapshot=lambda: list(shop.charges))
    (line,) = lines_of(report, "WRONG")
    told = "crash: marked 2 WRONG state: lost: [] instead of ['o-1']"
    assert " ".join(line.split()) == told


def test_a_handler_that_cannot_go_on_after_a_crash_is_caught(shop: Shop):
    def handler(order: str) -> str:
        if order in shop.marks:
            raise RuntimeError("the key is in use")
        shop.marks.add(order)
        shop.charges.append(order)
        return order

    (line,) = lines_of(wrong(shop, handler), "WRONG")
    assert line.split("  ")[1] == END
    assert "RuntimeError: the key is in use" in line


def test_a_handler_that_takes_another_way_each_time_is_reported(shop: Shop):
    def handler(order: str) -> str:
        shop.balance = 7
        crash_point(names.pop())
        return order

    names = list("abcdefghij")
    assert "it passes other points in each run" in wrong(shop, handler)


@pytest.mark.parametrize("handler", ["charge_by_key", "set_balance"])
def test_good_handlers_pass(shop: Shop, handler: str):
    check(getattr(shop, handler), "o-1", snapshot=shop.state, setup=shop.clear)


def test_hold_makes_a_naive_charge_safe(shop: Shop):
    with Receiver.open("memory://", policy=Policy(takeover="hold")) as receiver:
        check(shop.charge, "o-1", receiver=receiver, snapshot=shop.state, setup=shop.clear)


def test_fences_and_attempts_are_real(shop: Shop):
    seen: list[tuple[int, int]] = []

    def handler() -> None:
        claim = current_claim()
        assert claim is not None
        seen.append((claim.fence, claim.attempt))

    check(handler, setup=shop.clear, concurrent=1)
    assert seen == [(1, 1), (2, 2), (1, 1), (2, 2)]  # once; start died; end died, run, run again


def test_without_a_setup_repeats_are_still_tried(shop: Shop):
    check(shop.charge, "o-1", snapshot=shop.state)
    assert shop.charges == ["o-1"]


def test_crash_points_without_a_setup_are_not_passed_over_in_silence(shop: Shop):
    with pytest.raises(ConfigurationError, match=r"crash points \(charged\).*pass setup="):
        check(shop.charge_then_mark, "o-1", snapshot=shop.state)
    shop.clear()
    check(shop.charge_then_mark, "o-1", snapshot=shop.state, crashes=False)


# --- results ---------------------------------------------------------------------------------


def test_a_result_that_cannot_be_stored_is_caught():
    with pytest.raises(AssertionError, match=r"clean run failed[\s\S]*cannot be replayed"):
        check(threading.Lock)


@dataclass
class Receipt:
    amount: Decimal


def give_receipt() -> Receipt:
    return Receipt(Decimal("1.50"))


def test_a_result_of_a_declared_type_passes():
    check(give_receipt)


class Forgetful:
    """A codec that gives back another type than it was given."""

    def encode(self, value: Any, declared: Any = None) -> bytes:
        return str(int(value)).encode()

    def decode(self, payload: bytes, declared: Any = None) -> Any:
        return int(payload)


def test_a_result_that_comes_back_as_another_type_is_caught():
    with (
        Receiver.open("memory://", policy=Policy(codec=Forgetful())) as receiver,
        pytest.raises(AssertionError, match=r"twice .*result: 1 instead of True \(int, not bool\)"),
    ):
        check(lambda: True, receiver=receiver)


def test_a_handler_that_fails_is_reported_as_such():
    with pytest.raises(AssertionError, match=r"clean run failed[\s\S]*ZeroDivisionError") as caught:
        check(lambda: 1 / 0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_async_handler_is_sent_to_the_async_version():
    async def charge() -> None: ...

    with pytest.raises(UsageError, match=r"charge is an async function.*assert_idempotent_async"):
        check(charge)


def test_a_used_key_is_reported():
    with Receiver.open("memory://") as receiver:
        receiver.process("used", str, "before")
        with pytest.raises(AssertionError, match="did not start"):
            check(str, "now", receiver=receiver, key="used")
        check(str, "now", receiver=receiver, key=Key("unused"))
        assert receiver.process("unused", str, "again").value == "now"


def test_arguments_reach_the_handler():
    def handler(a: int, *, b: int) -> int:
        return a + b

    check(handler, 1, b=2)


# --- both modes, real stores ---------------------------------------------------------------


async def test_the_async_version_catches_and_passes(shop: Shop):
    async def naive(order: str) -> str:
        await asyncio.sleep(0)
        shop.charges.append(order)
        await asyncio.sleep(0)
        crash_point("charged")
        return order

    async def good(order: str) -> str:
        await asyncio.sleep(0)
        return shop.charge_by_key(order)

    async def state() -> list[str]:
        return list(shop.charges)

    with pytest.raises(AssertionError) as caught:
        await assert_idempotent_async(naive, "o-1", snapshot=state, setup=shop.clear)
    bad = lines_of(str(caught.value), "WRONG")
    assert [line.split("  ")[1] for line in bad] == ["crash: charged", END]
    assert all("doubled: ['o-1', 'o-1']" in line for line in bad)
    await assert_idempotent_async(good, "o-1", snapshot=state, setup=shop.clear)


async def test_a_real_store_of_either_mode(shop: Shop, tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    with Receiver.open(url) as receiver:
        check(shop.set_balance, "x", receiver=receiver, snapshot=shop.state, setup=shop.clear)
        assert isinstance(receiver.process("after", str, "it still works"), Outcome)
        (line,) = lines_of(wrong(shop, shop.charge, receiver=receiver), "WRONG")
        assert line.split("  ")[1] == END

    async def set_balance() -> None:
        shop.set_balance("x")

    async with AsyncReceiver.open(url) as other:
        await assert_idempotent_async(
            set_balance, receiver=other, snapshot=shop.state, setup=shop.clear
        )


# --- words -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """Equality leaves out its note."""

    amount: Any
    note: Any = field(default="", compare=False)


class Array:
    """Like one of numpy: what ``==`` returns is no answer."""

    def __eq__(self, _: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Sum:
    """Its own equality looks at the total only."""

    total: int
    parts: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sum) and self.total == other.total

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "one, other",
    [
        (1, True),
        (1, 1.0),
        ([1], [True]),
        ((1,), [1]),
        ({"a": 1}, {"a": 1.0}),
        ({1}, {2}),
        ({1}, {True}),
        ({(1, "a")}, {(1.0, "a")}),
        (frozenset({1}), frozenset({1, 2})),
        ({1: "a"}, {True: "a"}),
        (Line(1), Line(True)),
        (Line([Line(1)]), Line([Line(1.0)])),
        (Line(1), Line(2)),
        ("a", b"a"),
    ],
)
def test_values_that_differ(one: Any, other: Any):
    assert not same(one, other)
    assert difference(one, other)


@pytest.mark.parametrize(
    "one, other",
    [
        ({1, ("a", 2)}, {("a", 2), 1}),
        ({"b": {3}, "a": 1}, {"a": 1, "b": {3}}),
        (Line({1}), Line({1})),
        (Line(1, "at noon"), Line(1, "later")),
        (Line(1, 1), Line(1, True)),
        (Sum(1, Array()), Sum(1, Array())),
        (Sum(1, 2), Sum(1, 3)),
    ],
)
def test_values_that_are_equal(one: Any, other: Any):
    assert same(one, other)


@pytest.mark.parametrize("value", [1, "a", [1, (2, {"b": {3}})], float("nan"), None, Decimal(1)])
def test_values_that_are_the_same(value: Any):
    assert same(value, value)


@pytest.mark.parametrize(
    "expected, found, word",
    [
        (10, 20, "doubled"),
        (10, 11, "more"),
        (10, 0, "less"),
        (Decimal(5), Decimal(10), "doubled"),
        (["a"], ["a", "a"], "doubled"),
        (["a"], ["a", "b"], "more"),
        (["a"], [], "lost"),
        ({"a": 1}, {}, "lost"),
        ({"a": 1}, {"b": 1}, "different"),
        ("a", "b", "different"),
    ],
)
def test_the_difference_in_words(expected: Any, found: Any, word: str):
    assert difference(expected, found).startswith(f"{word}: {found!r} instead of {expected!r}")


def test_the_difference_in_a_mapping_names_the_place():
    found = difference({"a": 1, "b": ["x"]}, {"a": 1, "b": []})
    assert found == "at 'b' lost: [] instead of ['x']"


# --- the plugin ------------------------------------------------------------------------------


def test_the_fixtures_are_there_without_an_import(request: pytest.FixtureRequest, shop: Shop):
    receiver = request.getfixturevalue("idempotent_receiver")
    clock = request.getfixturevalue("store_clock")
    check_it = request.getfixturevalue("assert_idempotent")
    check_it(shop.set_balance, "x", receiver=receiver.options(policy=Policy(lease=0.1)))

    receiver.process("k", str, "first")
    clock.advance(86_401)
    assert receiver.process("k", str, "second").value == "second"  # retention follows the clock


def test_the_plugin_is_light():
    """It is loaded in every pytest run of everyone who has twicesafe installed."""
    heavy = ["sqlite3", "hypothesis", "asyncio", "twicesafe.testing._idempotence",
             "twicesafe.testing._conformance", "twicesafe._runtime.blocking"]  # fmt: skip
    script = (
        "import sys, _pytest.config; before = set(sys.modules)\n"
        "import twicesafe.testing.plugin\n"
        f"print([name for name in {heavy!r} if name in set(sys.modules) - before])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    assert all((assert_idempotent, idempotent_receiver, store_clock))
