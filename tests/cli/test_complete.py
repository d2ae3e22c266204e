"""``twicesafe complete``: runs what is due with the user's own receiver, until it is stopped."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.line import Line
from tests.polling import until
from twicesafe import Receiver, SchemaVersionError, State
from twicesafe._core.durable import run_operations

SHOP = """
import os, time
from pathlib import Path
from twicesafe import {kind}, Policy, {steps}

receiver = {kind}.open("{url}", policy=Policy(wait=0.1, max_attempts=1))

@receiver.durable(key="order", scope=("shop",), name="checkout")
{defined} checkout(steps, order: str) -> str:
    if order == "bad":
        raise ValueError(order)
    if order == "slow":
        Path("started").touch()
        while not Path("go").exists():
            time.sleep(0.01)
    {awaited}steps.run("ship", ship, order)
    return order

{defined} ship(order):
    with open("shipped", "a") as file:
        print(order, file=file)

empty = {kind}.open("memory://")
"""


_numbers = itertools.count()


@pytest.fixture(params=["Receiver", "AsyncReceiver"])
def module(request: pytest.FixtureRequest, line: Line, tmp_path: Path) -> Iterator[str]:
    """A module of the user's, with a receiver on the store of the test."""
    is_async = request.param == "AsyncReceiver"
    name = f"shop_{next(_numbers)}"
    text = SHOP.format(
        kind=request.param,
        steps="AsyncSteps" if is_async else "Steps",
        url=line.url,
        defined="async def" if is_async else "def",
        awaited="await " if is_async else "",
    )
    (tmp_path / f"{name}.py").write_text(text)
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def submit(receiver: Receiver) -> object:
    @receiver.durable(key="order", scope=("shop",), name="checkout")
    def checkout(steps: object, order: str) -> str:
        raise AssertionError

    return checkout.submit


def test_once_runs_what_is_due(line: Line, module: str, submit: object, receiver: Receiver) -> None:
    keys = [submit(f"order-{n}") for n in range(3)]  # type: ignore[operator]
    ran = line("complete", f"{module}:receiver", "--once", "--json", store=False)
    assert ran.status == 0, ran.err
    assert (ran.data["completed"], ran.data["failed"]) == (3, 0)
    assert all(receiver.record(key).state is State.COMPLETED for key in keys)  # type: ignore[union-attr]
    assert sorted(Path("shipped").read_text().split()) == ["order-0", "order-1", "order-2"]
    again = line("complete", f"{module}:receiver", "--once", store=False)
    assert (again.status, "0 runs found" in again.out) == (0, True)


def test_once_says_by_its_status_that_a_run_failed(line: Line, module: str, submit: object) -> None:
    submit("bad")  # type: ignore[operator]
    ran = line("complete", f"{module}:receiver", "--once", store=False)
    assert (ran.status, "1 failed" in ran.out) == (1, True)


def test_a_limit_is_per_round(line: Line, module: str, submit: object) -> None:
    for n in range(3):
        submit(f"order-{n}")  # type: ignore[operator]
    ran = line("complete", f"{module}:receiver", "--once", "--limit", "2", "--json", store=False)
    assert ran.data["completed"] == 2


def test_settings_come_from_a_file(line: Line, module: str, submit: object) -> None:
    submit("order")  # type: ignore[operator]
    Path("twicesafe.toml").write_text(f'[complete]\nreceiver = "{module}:receiver"\nlimit = 5\n')
    assert line("complete", "--once", "--json", store=False).data["completed"] == 1


@pytest.mark.parametrize(
    "target, words",
    [
        ("", "which receiver"),
        ("{}", "MODULE:NAME"),
        ("{}:checkout", "no Receiver"),
        ("{}:empty", "no durable functions"),
        ("no_such_module:receiver", "no module"),
    ],
)
def test_what_cannot_be_used_is_wrong_usage(
    line: Line, module: str, target: str, words: str
) -> None:
    named = [target.format(module)] if target else []
    ran = line("complete", *named, "--once", store=False)
    assert (ran.status, ran.out) == (2, "")
    assert words in " ".join(ran.err.split())


def test_a_store_that_refuses_ends_it_with_its_error(
    line: Line, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise SchemaVersionError("a newer version has migrated the tables")

    monkeypatch.setattr(run_operations, "find_due", refuse)
    ran = line("complete", f"{module}:receiver", store=False)
    assert ran.status == 3, ran.err
    assert ran.err.strip().endswith("a newer version has migrated the tables")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_runs_that_have_started(
    line: Line, module: str, submit: object, receiver: Receiver, number: signal.Signals
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "twicesafe", "complete", f"{module}:receiver", "--every", "20ms"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        first = submit("first")  # type: ignore[operator]
        until(lambda: receiver.record(first).state is State.COMPLETED, 60)  # type: ignore[union-attr]
        slow = submit("slow")  # type: ignore[operator]
        until(Path("started").exists, 60)
        process.send_signal(number)
        Path("go").touch()
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, "2 completed" in out) == (0, True), out
    record = receiver.record(slow)
    assert record is not None
    assert record.state is State.COMPLETED
