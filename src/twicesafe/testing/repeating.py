"""Deliveries as a broker makes them: twice, many times, in any order; and over all inputs.

    run_twice(set_price, "tea", 350, snapshot=book.copy)
    deliver_at_least_once(handle, messages, key=lambda m: m["id"], n=3, seed=7)
    assert_idempotent_for(set_price, strategies.tuples(items, cents), snapshot=book.copy, setup=book.clear)

`run_twice` and `assert_idempotent_for` call the function itself, with no receiver in between: they
ask whether f(f(x)) = f(x), which is what makes a retry after a crash harmless. What they cannot show:
what a crash in the middle leaves behind (`crash_matrix`), and inputs that the strategy does not draw.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import ConfigurationError
from ..keys import KeyLike
from ..outcomes import Outcome
from ..receiver import Receiver
from ..stores.memory import MemoryStore
from .comparing import difference, same
from .lives import called

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["Delivered", "assert_idempotent_for", "deliver_at_least_once", "run_twice"]

M = TypeVar("M")


def run_twice(
    function: Callable[..., Any],
    /,
    *args: Any,
    snapshot: Callable[[], Any] | None = None,
    results: bool = True,
    **kwargs: Any,
) -> Any:
    """Call it two times; raise an AssertionError if the second changed the world, or its answer.

    ``results=False``: the answers may differ (``True``, then ``False`` for "was there already").
    Returns the first answer. Async functions run on an event loop of their own.
    """
    first = called(lambda: function(*args, **kwargs))
    before = None if snapshot is None else called(snapshot)
    second = called(lambda: function(*args, **kwargs))
    after = None if snapshot is None else called(snapshot)
    name = getattr(function, "__qualname__", repr(function))
    if not same(before, after):
        raise AssertionError(
            f"{name} is not idempotent: its second run left the world {difference(before, after)}"
        )
    if results and not same(first, second):
        raise AssertionError(
            f"{name} is not idempotent: its second answer is {difference(first, second)}"
        )
    return first


@dataclass(frozen=True)
class Delivered(Generic[M]):
    """One delivery: the message, which time it was, and what came of it."""

    message: M
    time: int
    outcome: Outcome[Any] | Exception


def deliver_at_least_once(
    handler: Callable[[M], Any],
    messages: Iterable[M],
    *,
    key: Callable[[M], KeyLike],
    n: int = 3,
    shuffle: bool = True,
    seed: int = 0,
    receiver: Receiver | None = None,
) -> list[Delivered[M]]:
    """Deliver each message 1 to ``n`` times, in an order that ``seed`` draws; the same seed, the
    same order. Without ``shuffle``: each of them ``n`` times, one after the other.

    A failed delivery is no more than that, as for a broker: its error stands in its outcome. Look at
    your world afterwards: it must be as if each message had come once.
    """
    if n < 1:
        raise ConfigurationError(f"n={n!r} makes no sense: at least once is 1 or more")
    chance = random.Random(seed)
    batch = list(messages)
    order = [
        (index, message)
        for index, message in enumerate(batch)
        for _ in range(chance.randint(1, n) if shuffle else n)
    ]
    if shuffle:
        chance.shuffle(order)
    used = receiver or Receiver(MemoryStore())
    times = [0] * len(batch)
    made: list[Delivered[M]] = []
    for index, message in order:
        times[index] += 1
        outcome: Outcome[Any] | Exception
        try:
            outcome = used.process(key(message), handler, message)
        except Exception as error:
            outcome = error
        made.append(Delivered(message, times[index], outcome))
    if receiver is None:
        used.close()
    return made


def assert_idempotent_for(
    function: Callable[..., Any],
    inputs: SearchStrategy[Any],
    *,
    snapshot: Callable[[], Any],
    setup: Callable[[], Any],
    results: bool = True,
    examples: int = 100,
) -> None:
    """For all inputs: running it twice is running it once, f(f(x)) = f(x).

    ``inputs`` is a Hypothesis strategy; a tuple that it draws is taken as the arguments, anything
    else as the one argument. Hypothesis makes the failing input small and tells it.
    """
    from hypothesis import HealthCheck, given, settings

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(inputs)
    def twice(drawn: Any) -> None:
        called(setup)
        run_twice(
            function,
            *(drawn if isinstance(drawn, tuple) else (drawn,)),
            snapshot=snapshot,
            results=results,
        )

    twice()
