"""Durable runs on the command line: their steps, signals, skipped steps and restarts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.line import Line
from twicesafe import (
    Backoff,
    CompensatedError,
    CompensationFailedError,
    HeldError,
    Policy,
    Receiver,
    State,
    Steps,
    SuspendedError,
)

POLICY = Policy(wait=0.1, backoff=Backoff(first=0.001, most=0.001), max_attempts=1)
BY = ("--by", "ana", "--why", "looked at it", "--scope", "shop")


@pytest.fixture
def runs(receiver: Receiver) -> Receiver:
    return receiver.options(policy=POLICY)


def approved(receiver: Receiver) -> Any:
    @receiver.durable(key="order", scope=("shop",))
    def checkout(steps: Steps, order: str) -> list[Any]:
        at = steps.capture("price", lambda: 7)
        return [at, steps.wait("approval", timeout=3600)]

    return checkout


def test_show_lists_the_steps(line: Line, runs: Receiver) -> None:
    checkout = approved(runs)
    with pytest.raises(SuspendedError):
        checkout("a")
    shown = line("keys", "show", "a", "--scope", "shop")
    assert shown.status == 0
    words = [row.split() for row in shown.out.splitlines()]
    assert ["price", "capture", "done", "1"] in [row[:4] for row in words]
    assert ["approval", "wait", "waiting", "1"] in [row[:4] for row in words]
    data = line("keys", "show", "--id", checkout.key("a").id.hex(), "--json").data
    assert [(step["name"], step["state"]) for step in data["steps"]] == [
        ("price", "done"),
        ("approval", "waiting"),
    ]
    assert data["steps"][1]["due_at"] is not None


def test_signal_is_sent_once_and_audited(line: Line, runs: Receiver) -> None:
    checkout = approved(runs)
    with pytest.raises(SuspendedError):
        checkout("a")
    sent = ("keys", "signal", "a", "--name", "approval", "--value", '{"by": "ana"}', *BY)
    first = line(*sent, "--json")
    assert (first.status, first.data["state"]) == (0, "suspended")
    again = line(*sent)
    assert (again.status, again.out) == (1, "")
    assert "has a value, which stays" in again.err
    assert checkout("a") == [7, {"by": "ana"}]
    trail = [(e.action, e.by, e.why, e.state_before) for e in runs.audit(checkout.key("a"))]
    assert trail == [("signal", "ana", "looked at it", State.SUSPENDED)]


def test_a_signal_is_true_by_default_and_needs_a_run(line: Line, runs: Receiver) -> None:
    checkout = approved(runs)
    with pytest.raises(SuspendedError):
        checkout("a")
    assert line("keys", "signal", "a", "--name", "approval", *BY).status == 0
    assert checkout("a") == [7, True]
    assert line("keys", "signal", "b", "--name", "approval", *BY).status == 1
    assert line("keys", "signal", "a", "--name", "approval", "--by", "", "--why", "x").status == 2


def test_skip_an_undo_that_cannot_be_done(line: Line, runs: Receiver) -> None:
    undone: list[str] = []

    def undo(value: str) -> None:
        undone.append(value)
        if value == "second":
            raise ConnectionError

    @runs.durable(key="order", scope=("shop",))
    def checkout(steps: Steps, order: str) -> None:
        for name in ("first", "second"):
            steps.run(name, lambda name=name: name, undo=undo)
        steps.abort("refused")

    with pytest.raises(CompensationFailedError):
        checkout("a")
    wrong = line("keys", "skip", "a", "--step", "third", *BY)
    assert (wrong.status, "not a step to undo" in wrong.err) == (1, True)
    skipped = line("keys", "skip", "a", "--step", "second", *BY)
    assert skipped.status == 0, skipped.err
    with pytest.raises(CompensatedError, match="refused"):
        checkout("a")
    assert undone == ["second", "first"]
    (entry,) = runs.audit(checkout.key("a"))
    assert (entry.action, entry.why) == ("release", "skip second: looked at it")
    late = line("keys", "skip", "a", "--step", "first", *BY)
    assert (late.status, "failed run" in late.err) == (1, True)


def test_skip_a_step_whose_outcome_is_unknown(line: Line, runs: Receiver) -> None:
    strict = runs.options(policy=POLICY.replace(takeover="hold", max_attempts=5))
    interrupts = [KeyboardInterrupt]

    def charge(cents: int) -> str:
        if interrupts:
            raise interrupts.pop()
        raise AssertionError("it must not run again")

    @strict.durable(key="order", scope=("shop",))
    def checkout(steps: Steps, order: str) -> str:
        return f"{steps.run('charge', charge, 5)} for {order}"

    with pytest.raises(KeyboardInterrupt):
        checkout("a")
    with pytest.raises(HeldError):
        checkout("a")
    done = line("keys", "skip", "a", "--step", "charge", "--value", '"ch_1"', *BY)
    assert done.status == 0, done.err
    assert checkout("a") == "ch_1 for a"


def test_restart_drops_the_steps(line: Line, runs: Receiver) -> None:
    checkout = approved(runs)
    with pytest.raises(SuspendedError):
        checkout("a")
    key = checkout.key("a")
    assert line("keys", "restart", "a", *BY).status == 0
    record = runs.record(key)
    assert record is not None
    assert (record.state, record.steps) == (State.RELEASED, ())
    runs.signal(key, "approval", 1)
    assert checkout("a") == [7, 1]
    refused = line("keys", "restart", "a", *BY)
    assert (refused.status, "--force" in refused.err) == (1, True)
    assert line("keys", "restart", "a", "--force", *BY).status == 0
