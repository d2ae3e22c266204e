"""Signals and operators at odd moments: a signal that was kept reaches its run, and no run is left lying."""

from __future__ import annotations

from typing import Any

import pytest

from tests.durable.shop import POLICY, Shop
from twicesafe import State
from twicesafe._core.durable.run_requests import LoadRun, RecordStep
from twicesafe._values.steps import StepState
from twicesafe.errors import StepMismatchError, SuspendedError, UsageError

HOUR = 3_600_000


def waits(shop: Shop, **policy: Any) -> Any:
    def checkout(steps: Any, order: str) -> Any:
        found = yield steps.run("look", shop.effect("look", "secret"))
        return [found, (yield steps.wait("go"))]

    return shop.durable(checkout, policy=POLICY.replace(**policy))


def test_a_signal_for_the_next_run_of_a_key_is_kept(shop: Shop) -> None:
    """The last run is over, and its retention too; its own signal is still in the store."""
    receiver, checkout = shop.receiver, waits(shop, retention=60)
    shop.run(receiver.signal(checkout.key("a"), "go", 1))
    assert shop.run(checkout("a")) == ["secret", 1]
    shop.clock.advance(ms=61_000)
    assert shop.run(receiver.signal(checkout.key("a"), "go", 2)) is True
    assert shop.run(receiver.signal(checkout.key("a"), "go", 3)) is False
    shop.run(receiver.sweep())
    shop.run(receiver.complete_abandoned())
    assert shop.run(checkout("a")) == ["secret", 2]
    assert shop.done["look"] == 2


def test_every_signal_that_comes_first_has_its_own_retention(shop: Shop) -> None:
    receiver, checkout = shop.receiver, waits(shop)
    shop.run(receiver.signal(checkout.key("a"), "other", 1))
    shop.clock.advance(ms=23 * HOUR)
    shop.run(receiver.signal(checkout.key("a"), "go", 2))
    shop.clock.advance(ms=2 * HOUR)
    shop.run(receiver.sweep())
    shop.run(receiver.complete_abandoned())
    assert shop.run(checkout("a")) == ["secret", 2]


def test_a_signal_survives_a_clock_that_is_set_back(shop: Shop) -> None:
    receiver, checkout = shop.receiver, waits(shop)
    shop.clock.advance(ms=HOUR)
    shop.run(checkout.submit("a"))
    shop.clock.set_back(HOUR)
    assert shop.run(receiver.signal(checkout.key("a"), "go", 2)) is True
    shop.clock.advance(ms=2 * HOUR)
    assert shop.run(checkout("a")) == ["secret", 2]


def test_a_sleep_that_is_over_stays_over_when_the_clock_is_set_back(shop: Shop) -> None:
    def run(steps: Any, order: str) -> Any:
        yield steps.sleep("night", 3600)
        return (yield steps.wait("approval"))

    run = shop.durable(run)
    for _ in range(2):
        with pytest.raises(SuspendedError):
            shop.run(run("a"))
        shop.clock.advance(ms=3_600_001)
    shop.clock.set_back(36_000_000)
    assert shop.run(shop.receiver.signal(run.key("a"), "approval", "yes"))
    assert shop.run(run("a")) == "yes"


def test_a_crash_does_not_make_a_wait_of_no_time_endless(memory_shop: Shop) -> None:
    """The wait began, and its worker died before it was over."""
    shop = memory_shop

    def checkout(steps: Any, order: str) -> Any:
        return [(yield steps.wait("go", timeout=0))]

    perform, began = shop.store.perform, []

    def dies(ask: Any) -> Any:
        if isinstance(ask, RecordStep):
            if ask.state is StepState.DONE:
                raise KeyboardInterrupt
            began.append(ask)
        return perform(ask)

    checkout = shop.durable(checkout)
    shop.store.perform = dies  # type: ignore[method-assign]
    with pytest.raises(BaseException):  # noqa: B017, PT011
        shop.run(checkout("a"))
    shop.store.perform = perform  # type: ignore[method-assign]
    assert began
    shop.clock.advance(ms=31_000)
    assert shop.run(checkout("a")) == [None]


# --- operators --------------------------------------------------------------------------------


def test_a_released_run_that_waited_for_a_signal_is_due_at_once(shop: Shop) -> None:
    receiver, checkout = shop.receiver, waits(shop)
    with pytest.raises(SuspendedError):
        shop.run(checkout("a"))
    shop.run(receiver.release(checkout.key("a"), by="ann"))
    assert shop.run(receiver.complete_abandoned()).suspended == 1


def test_a_resolved_run_that_waited_for_a_signal_leaves_nothing(shop: Shop) -> None:
    receiver, checkout = shop.receiver, waits(shop, retention=60)
    with pytest.raises(SuspendedError):
        shop.run(checkout("a"))
    shop.run(receiver.resolve(checkout.key("a"), 5, by="ann"))
    assert shop.run(checkout("a")) == 5
    shop.clock.advance(ms=49 * HOUR)
    shop.run(receiver.sweep())
    assert shop.run(shop.store.perform(LoadRun(checkout.key("a").id))) is None


def test_forgetting_a_run_erases_its_arguments_and_results_at_once(shop: Shop) -> None:
    receiver, checkout = shop.receiver, waits(shop)
    shop.run(receiver.signal(checkout.key("a"), "go", "secret"))
    shop.run(checkout("a"))
    shop.run(receiver.forget(checkout.key("a"), by="ann"))
    assert shop.run(shop.store.perform(LoadRun(checkout.key("a").id))) is None


OPERATIONS = ("release", "resolve", "forget", "restart")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("state", ["suspended", "submitted", "parked", "completed", "released"])
def test_operators_may_do_anything_in_every_state(shop: Shop, state: str, operation: str) -> None:
    """Whatever they do, the run comes to an end, or an error says why nothing changed."""
    receiver, checkout = shop.receiver, waits(shop, max_attempts=1)
    key = checkout.key("a")
    if state == "completed":
        shop.run(receiver.signal(key, "go", 1))
        shop.run(checkout("a"))
    elif state == "submitted":
        shop.run(checkout.submit("a"))
    elif state == "parked":
        shop.failing["look"] = 1
        with pytest.raises(Exception, match="look"):
            shop.run(checkout("a"))
    else:
        with pytest.raises(SuspendedError):
            shop.run(checkout("a"))
        if state == "released":
            shop.run(receiver.release(key, by="ann"))
    refused = (operation, state) in {
        ("release", "completed"),
        ("restart", "completed"),
        ("resolve", "completed"),
        ("forget", "suspended"),
        ("forget", "submitted"),
    }
    more: tuple[Any, ...] = ("by hand",) if operation == "resolve" else ()
    act = getattr(receiver, operation)
    if refused:
        with pytest.raises(UsageError):
            shop.run(act(key, *more, by="ann"))
    else:
        shop.run(act(key, *more, by="ann"))
    ends = operation in ("resolve", "forget") and not refused
    if state != "completed":
        assert shop.run(receiver.signal(key, "go", 2)) is not ends
    shop.run(receiver.complete_abandoned())
    shop.clock.advance(ms=2 * 60_000)
    shop.run(receiver.complete_abandoned())
    expected = State.FORGOTTEN if operation == "forget" and ends else State.COMPLETED
    assert shop.run(receiver.record(key)).state is expected


def test_a_signal_and_a_step_of_one_name_do_not_meet(shop: Shop) -> None:
    """Any program may send a signal, before the run comes to its step of that name, and after."""

    def checkout(steps: Any, order: str) -> Any:
        at = yield steps.capture("at", lambda: 7)
        charged = yield steps.run("charge", shop.effect("charge", 5))
        yield steps.sleep("night", 3600)
        return [at, charged, (yield steps.wait("go"))]

    run, receiver = shop.durable(checkout), shop.receiver
    for name in ("at", "charge", "night"):
        assert shop.run(receiver.signal(run.key("a"), name, "a stray signal")) is True
    with pytest.raises(SuspendedError):
        shop.run(run("a"))
    assert shop.run(receiver.signal(run.key("a"), "charge", "late")) is False
    assert shop.run(receiver.signal(run.key("a"), "go", 1)) is True
    shop.clock.advance(ms=HOUR)
    assert shop.run(run("a")) == [7, 5, 1]
    assert shop.done["charge"] == 1
    found = {(step.name, step.kind) for step in shop.run(receiver.record(run.key("a"))).steps}
    assert {("charge", "run"), ("charge", "wait"), ("go", "wait")} <= found


@pytest.mark.parametrize("before", ["wait", "run"])
def test_code_that_turns_a_wait_into_a_step_is_refused(memory_shop: Shop, before: str) -> None:
    shop = memory_shop

    now = {"kind": before}

    def changing(steps: Any, order: str) -> Any:
        if now["kind"] == "run":
            yield steps.run("go", lambda: 1)
        else:
            yield steps.wait("go")
        yield steps.wait("end")

    run = shop.durable(changing)
    with pytest.raises(SuspendedError):
        shop.run(run("a"))
    now["kind"] = "run" if before == "wait" else "wait"
    shop.run(shop.receiver.release(run.key("a"), by="ann"))
    with pytest.raises(StepMismatchError, match=f"another kind \\({before}, now"):
        shop.run(run("a"))
