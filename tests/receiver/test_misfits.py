"""Arguments that do not fit the handler, and settings given as its keywords: refused before the claim."""

from __future__ import annotations

import functools
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.receiver.bench import Bench
from twicesafe import AsyncInbox, Inbox, Policy, Receiver, UsageError
from twicesafe.stores.memory import MemoryStore


def charge(order: str, cents: int = 5) -> str:
    return f"{order} {cents}"


async def charge_later(order: str, cents: int = 5) -> str:
    return f"{order} {cents}"


def keyword_only(order: str, *, cents: int) -> str:
    return f"{order} {cents}"


def anything(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


def wrapper(function: Any) -> Any:
    @functools.wraps(function)
    def passes_another(order: str) -> str:
        return function(order, 7)

    return passes_another


class Shop:
    def pay(self, order: str) -> str:
        return order


@pytest.mark.parametrize("handler", ["paid", None, 5])
def test_a_handler_that_is_no_function_is_refused(bench: Bench, handler: Any) -> None:
    with pytest.raises(UsageError, match="the handler must be a function, not") as told:
        bench.receiver_process(bench.receiver, "k", handler)
    assert "process(key, charge, order), not process(key, charge(order))" in str(told.value)
    assert bench.record("k") is None


def test_a_coroutine_as_the_handler_is_refused_and_never_starts(bench: Bench) -> None:
    async def pay() -> None:
        raise AssertionError("it must not start")

    with pytest.raises(UsageError, match="not coroutine"):  # and no warning: it is closed
        bench.receiver_process(bench.receiver, "k", pay())


@pytest.mark.parametrize(
    "setting, fix",
    [
        ("policy", "use receiver.options(policy=…).process(…)"),
        ("scope", "use receiver.options(scope=…).process(…)"),
        ("fingerprint", "use receiver.options(fingerprint=…).process(…)"),
        ("lease", "use receiver.options(policy=Policy(lease=…)).process(…)"),
        ("wait", "use receiver.options(policy=Policy(wait=…)).process(…)"),
        ("retention", "use receiver.options(policy=Policy(retention=…)).process(…)"),
        ("timeout", "use receiver.options(policy=Policy(timeout=…)).process(…)"),
    ],
)
def test_a_setting_as_a_keyword_is_refused(bench: Bench, setting: str, fix: str) -> None:
    with pytest.raises(UsageError) as told:
        bench.receiver_process(bench.receiver, "k", charge, "o", **{setting: 5})
    assert f"charge has no parameter {setting!r}" in str(told.value)
    assert fix in str(told.value)
    assert bench.record("k") is None


def test_what_the_error_says_works(bench: Bench) -> None:
    other = bench.receiver.options(policy=Policy(lease=60), scope=("a",), fingerprint=True)
    assert bench.receiver_process(other, "k", charge, "o").value == "o 5"


@pytest.mark.parametrize(
    "handler, args, kwargs",
    [
        (charge, (), {}),
        (charge, ("o", 5, 6), {}),
        (charge, ("o",), {"order": "again"}),
        (charge, ("o",), {"price": 6}),
        (keyword_only, ("o",), {}),
        (keyword_only, ("o", 5), {}),
        (Shop().pay, (), {}),
        (Shop().pay, ("o", "p"), {}),
        (functools.partial(charge, "o"), (), {"price": 6}),
        (wrapper(charge), ("o", 5), {}),
    ],
)
def test_arguments_that_do_not_fit_use_up_no_attempt(
    bench: Bench, handler: Any, args: Any, kwargs: Any
) -> None:
    for _ in range(2):  # what was refused once is refused again
        with pytest.raises(UsageError, match="cannot be called like this"):
            bench.receiver_process(bench.receiver, "k", handler, *args, **kwargs)
    assert bench.record("k") is None


@pytest.mark.parametrize(
    "handler, args, kwargs, value",
    [
        (charge, ("o",), {}, "o 5"),
        (charge, ("o", 6), {}, "o 6"),
        (charge, (), {"cents": 6, "order": "o"}, "o 6"),
        (keyword_only, ("o",), {"cents": 6}, "o 6"),
        (anything, (1, 2), {"lease": 3}, [[1, 2], {"lease": 3}]),
        (Shop().pay, ("o",), {}, "o"),
        (functools.partial(charge, "o"), (6,), {}, "o 6"),
        (functools.partial(charge, cents=6), ("o",), {}, "o 6"),
        (wrapper(charge), ("o",), {}, "o 7"),
        (str, (5,), {}, "5"),
        (lambda: 1, (), {}, 1),
    ],
)
def test_arguments_that_fit(bench: Bench, handler: Any, args: Any, kwargs: Any, value: Any) -> None:
    for number in range(2):
        found = bench.receiver_process(bench.receiver, f"k{number}", handler, *args, **kwargs)
        assert found.value == value


def test_a_batch_whose_handler_takes_no_message(bench: Bench) -> None:
    with pytest.raises(UsageError, match="cannot be called like this"):
        bench.call(bench.receiver.process_many, ["a"], lambda: 1, key=str)
    assert bench.record("a") is None


def test_a_decorated_function_called_wrongly() -> None:
    receiver = Receiver(MemoryStore())
    decorated = receiver.idempotent(key=lambda *args, **kwargs: "k")(charge)
    with pytest.raises(UsageError, match="cannot be called like this"):
        decorated("o", price=5)
    assert receiver.stats().total == 0
    assert decorated("o", cents=5) == "o 5"


async def test_and_so_in_an_inbox(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/keys.db"
    with Inbox.open(url) as inbox, closing(sqlite3.connect(tmp_path / "keys.db")) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(UsageError, match=r"use inbox\.options\(policy=Policy\(retention=…\)\)"):
            inbox.process(connection, "k", charge, "o", retention=5)
        with pytest.raises(UsageError, match="cannot be called like this"):
            inbox.process(connection, "k", charge, "o", 5, 6)
        with pytest.raises(UsageError, match="cannot be called like this"):
            inbox.idempotent(key=lambda *_: "k")(charge)(connection, 5, 6)
        connection.execute("COMMIT")
        with Receiver.open(url) as receiver:
            assert receiver.stats().total == 0
    async with AsyncInbox.open(url) as other:
        with pytest.raises(UsageError, match=r"use inbox\.options\(scope=…\)"):
            await other.process(None, "k", charge, "o", scope=())
        with pytest.raises(UsageError, match="cannot be called like this"):
            await other.idempotent(key=lambda *_: "k")(charge_later)(None, 5, 6)
