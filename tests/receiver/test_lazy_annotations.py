"""Annotations that name what is not there when a function is decorated, or not at all.

Written as strings, that is an old habit: ``from __future__ import annotations``. Python 3.14 evaluates
all annotations late, and reading those of one function raises if one of its names is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from twicesafe import AsyncReceiver, Receiver, UsageError
from twicesafe._values.codecs import resolve_parameter_types, resolve_return_type
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore

LATE = pytest.param(
    "",
    id="lazy",
    marks=pytest.mark.skipif(
        sys.version_info < (3, 14), reason="annotations are lazy since Python 3.14"
    ),
)
Make = Callable[..., dict[str, Any]]


@pytest.fixture(params=[pytest.param("from __future__ import annotations\n", id="strings"), LATE])
def make(request: pytest.FixtureRequest) -> Make:
    """Runs source code that has its annotations in one of the two ways."""

    def run(source: str, **known: Any) -> dict[str, Any]:
        space = {"__name__": __name__, **known}
        exec(compile(request.param + source, "late.py", "exec", dont_inherit=True), space)
        return space

    return run


@pytest.fixture
def receiver() -> Receiver:
    return Receiver(MemoryStore())


DATACLASS = """
from dataclasses import dataclass

@dataclass
class Receipt:
    cents: int

"""


DECLARED = ["cents: Money, rest: int = 0) -> int", "cents, rest=0) -> Money"]


@pytest.mark.parametrize("declared", DECLARED)
def test_a_name_for_type_checkers_only_does_no_harm(receiver: Receiver, make: Make, declared: str):
    handler = make(f"def handler({declared}: return cents")["handler"]
    for _ in range(2):
        assert receiver.process("one", handler, 5).value == 5
    (outcome,) = receiver.process_many([7], handler, key=lambda cents: f"batch-{cents}")
    assert outcome.value == 7


@pytest.mark.parametrize("declared", DECLARED)
async def test_nor_in_async_functions(make: Make, declared: str):
    receiver = AsyncReceiver(AsyncMemoryStore())
    handler = make(f"async def handler({declared}: return cents")["handler"]
    decorated = receiver.idempotent(key="cents", scope=("late",), outcome=True)(handler)
    for replayed in (False, True):
        assert (await receiver.process("one", handler, 5)).value == 5
        assert (await decorated(5)).replayed == replayed
    (outcome,) = await receiver.process_many([7], handler, key=lambda cents: f"batch-{cents}")
    assert outcome.value == 7


@pytest.mark.parametrize("outcome", [False, True])
def test_a_decorated_function_may_name_it_too(receiver: Receiver, make: Make, outcome: bool):
    source = "def pay(order: str, cents: Money) -> Money: return cents"
    pay: Any = receiver.idempotent(key="order", scope=("late",), outcome=outcome)(
        make(source)["pay"]
    )
    given = [pay("one", 5), pay("one", 5)]
    assert [one.value if outcome else one for one in given] == [5, 5]


def test_a_method_returns_its_own_class_which_is_not_ready_when_it_is_decorated(
    receiver: Receiver, make: Make
):
    method = """
    @receiver.idempotent(key="order", scope=("late",), outcome=True)
    def paid(self, order: str) -> Receipt: return Receipt(5)
"""
    made = make(DATACLASS + method, receiver=receiver)["Receipt"]
    assert made(0).paid("one").value == made(5)
    again = made(0).paid("one")
    assert again.replayed
    assert again.value == made(5)


def test_one_missing_name_does_not_hide_the_others(make: Make):
    space = make(DATACLASS + "def f(a: Money, b: Receipt) -> list[Receipt]: ...")
    receipt = space["Receipt"]
    assert resolve_return_type(space["f"]) == list[receipt]
    assert resolve_parameter_types(space["f"]) == {"a": Any, "b": receipt}


def test_a_name_may_be_defined_later(make: Make):
    space = make("def f(a: Late) -> list[Late]: ...")
    assert resolve_return_type(space["f"]) is Any
    space["Late"] = int
    assert resolve_return_type(space["f"]) == list[int]
    assert resolve_parameter_types(space["f"]) == {"a": int}


def test_a_callable_object_is_known_by_its_parameters(receiver: Receiver, make: Make):
    source = "class Charge:\n  def __call__(self, cents: Money) -> int: return cents"
    charge = make(source)["Charge"]()
    compared = receiver.options(fingerprint=True)
    assert compared.process("one", charge, 5).value == 5
    assert compared.process("one", charge, cents=5).replayed


def test_a_call_that_does_not_fit_is_still_refused(receiver: Receiver, make: Make):
    handler = make("def handler(cents: Money) -> int: return cents")["handler"]
    with pytest.raises(UsageError, match=r"missing a required argument: 'cents'; nothing was run"):
        receiver.process("one", handler)


def test_a_durable_function(receiver: Receiver, make: Make):
    source = "def flow(steps, cents: Money) -> Money: return steps.run('double', lambda: 2 * cents)"
    flow = receiver.durable(key=lambda cents: f"flow-{cents}", scope=("late",))(
        make(source)["flow"]
    )
    assert [flow(5), flow(5)] == [10, 10]
