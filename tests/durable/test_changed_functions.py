"""The next version of a durable function, or of a step, has one more parameter with a default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from twicesafe import Policy, Receiver, Steps, SuspendedError
from twicesafe.errors import FingerprintMismatchError


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver.open("memory://", policy=Policy(wait=0)) as opened:
        yield opened


def one(steps: Steps, order: str) -> str:
    return f"first {order}"


def one_more(steps: Steps, order: str, express: bool = False, *notes: str, **rest: str) -> str:
    return "ran again"


def two(steps: Steps, order: str, cents: int = 5) -> str:
    return f"first {order}"


def two_more(steps: Steps, order: str, cents: int = 5, gift: str | None = None) -> str:
    return "ran again"


def none(steps: Steps) -> str:
    return "first"


def none_more(steps: Steps, express: bool = False) -> str:
    return "ran again"


def versions(receiver: Receiver, key: Any, *functions: Callable[..., Any]) -> list[Any]:
    """The functions as versions of one; a node has one of them."""
    return [
        receiver.options().durable(key=key, name="checkout", scope=["checkout", key or "content"])(
            function
        )
        for function in functions
    ]


@pytest.mark.parametrize("key", ["order", None])
@pytest.mark.parametrize("first, second", [(one, one_more), (two, two_more)])
def test_a_repeat_gets_the_answer_of_the_version_before(
    receiver: Receiver, key: str | None, first: Any, second: Any
) -> None:
    """It was refused as another request; without a key, the function ran again."""
    before, after = versions(receiver, key, first, second)
    assert before("o-1") == after("o-1") == after(order="o-1") == "first o-1"


def test_without_arguments_too(receiver: Receiver) -> None:
    before, after = versions(receiver, None, none, none_more)
    assert before() == after() == after(express=False) == "first"
    assert after(express=True) == "ran again"


def test_a_default_that_is_said_is_the_default_and_another_value_is_another_request(
    receiver: Receiver,
) -> None:
    before, after = versions(receiver, "order", one, one_more)
    before("o-1")
    assert after("o-1", False) == "first o-1"
    for changed in ({"express": True}, {"express": 0}, {"gift": "yes"}):
        with pytest.raises(FingerprintMismatchError):
            after("o-1", **changed)


def test_a_first_argument_of_none_is_compared_too(receiver: Receiver) -> None:
    """Beside a default, it was no fingerprint at all: any other argument had its answer."""

    @receiver.durable(key="number", scope=["none"])
    def checkout(steps: Steps, order: str | None, number: str = "1") -> str | None:
        return order

    assert checkout(None) is None
    with pytest.raises(FingerprintMismatchError):
        checkout("o-1")


def test_a_step_may_get_a_parameter_with_a_default(receiver: Receiver) -> None:
    """The resumed run raised `StepMismatchError` until it was parked."""

    def charge(cents: int) -> str:
        return f"charged {cents}"

    def charge_in(cents: int, currency: str = "EUR") -> str:
        return "charged again"

    def before(steps: Steps, order: str) -> None:
        steps.run("charge", charge, 500)
        steps.wait("approval")

    def after(steps: Steps, order: str) -> str:
        charged = steps.run("charge", charge_in, 500)
        steps.wait("approval")
        return charged

    old, new = versions(receiver, "order", before, after)
    with pytest.raises(SuspendedError):
        old("o-1")
    receiver.signal(old.key("o-1"), "approval")
    assert new("o-1") == "charged 500"
