"""Which function the completer runs for a stored run, with which policy, and in which key scope."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from twicesafe import AsyncReceiver, AsyncSteps, Policy, Receiver, Steps, key_scope
from twicesafe.errors import ConfigurationError

SECRET = "hidden_keys=env:HIDDEN"


@pytest.fixture(params=["memory://", f"memory://?{SECRET}"])
def receiver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("HIDDEN", "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
    with Receiver.open(request.param) as receiver:
        yield receiver


def checkout(steps: Steps, order: str) -> str:
    return f"checkout of {order}"


def refund(steps: Steps, order: str) -> str:
    return f"refund of {order}"


def test_two_functions_that_their_scope_names_alike_are_refused(receiver: Receiver) -> None:
    first = receiver.durable(key="order", scope=("acme",))(checkout)
    receiver.durable(key="order", scope=("acme",))(checkout)  # the module was loaded again
    with pytest.raises(ConfigurationError, match=r"checkout and .*refund.*acme.*name="):
        receiver.durable(key="order", scope=("acme",))(refund)
    first.submit("a")
    assert receiver.complete_abandoned().completed == 1
    assert first("a") == "checkout of a"


def test_a_name_that_is_given_may_be_that_of_another_function(receiver: Receiver) -> None:
    old = receiver.durable(key="order", name="checkout", scope=("acme",))(checkout)
    old.submit("a")
    new = receiver.durable(key="order", name="checkout", scope=("acme",))(refund)
    assert receiver.complete_abandoned().completed == 1
    assert new("a") == "refund of a"


@pytest.mark.parametrize("tenant", ["first", "second"])
def test_of_one_function_with_several_policies_the_scope_decides(
    receiver: Receiver, tenant: str
) -> None:
    seen = []

    def order(steps: Steps, order: str) -> None:
        seen.append(steps._state.holds)

    def decorated(tenant: str, policy: Policy) -> Any:
        own = receiver.options(scope=(tenant,), policy=policy)
        return own.durable(key="order", name="order", scope=("order",))(order)

    tenants = {
        "first": decorated("first", Policy(takeover="hold")),
        "second": decorated("second", Policy(takeover="retry")),
    }
    with key_scope("region"):
        tenants[tenant].submit("a")
    assert receiver.complete_abandoned().completed == 1
    assert seen == [tenant == "first"]


def test_the_completer_runs_in_the_key_scope_of_the_call(receiver: Receiver) -> None:
    @receiver.durable(key="order", scope=("order",))
    def order(steps: Steps, order: str) -> str:
        return receiver.key("charge").id.hex()

    with key_scope("acct_1"):
        order.submit("a")
        expected = receiver.key("charge").id.hex()
    assert receiver.complete_abandoned().completed == 1
    with key_scope("acct_1"):
        assert order("a") == expected
    assert receiver.key("charge").id.hex() != expected


def test_the_async_completer_runs_in_the_key_scope_of_the_call() -> None:
    async def main() -> None:
        async with AsyncReceiver.open("memory://") as receiver:

            @receiver.durable(key="order", scope=("order",))
            async def order(steps: AsyncSteps, order: str) -> str:
                return receiver.key("charge").id.hex()

            with key_scope("acct_1"):
                await order.submit("a")
                expected = receiver.key("charge").id.hex()
            assert (await receiver.complete_abandoned()).completed == 1
            with key_scope("acct_1"):
                assert await order("a") == expected

    asyncio.run(main())
