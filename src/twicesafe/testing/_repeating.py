"""Repeated deliveries, as a broker makes them: twice, many times, in any order, over all inputs.

    run_twice(set_price, "tea", 350, snapshot=book.copy)
    deliver_at_least_once(handle, messages, key=lambda m: m["id"], n=3, seed=7)
    assert_idempotent_for(set_price, strategies.tuples(items, cents), snapshot=book.copy, setup=book.clear)

`run_twice` and `assert_idempotent_for` call the function itself, with no receiver in between. They
check that a second run changes nothing, which makes a retry after a crash harmless. They cannot show
what a crash in the middle leaves behind (`crash_matrix`), nor inputs that the strategy does not draw.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .._values.codecs import resolve_return_type
from .._values.keys import KeyLike
from .._values.outcomes import Outcome
from .._values.policy import Backoff, Policy
from ..errors import ConfigurationError, UsageError
from ..receiver import Receiver
from ..stores.memory import MemoryStore
from ._comparison import COPIED, copied, difference, plain_copy, refuse_unseen, same
from ._simulated_process import called, is_async_function

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
    """Call it twice; raise an AssertionError if the second call changed the snapshot or the result.

    ``results=False``: the results may differ (``True``, then ``False`` for "was there already").
    Returns the first result. An async function runs on its own event loop.
    """
    changed_arguments = False

    def run() -> Any:
        nonlocal changed_arguments
        given, named = plain_copy((args, kwargs))
        answer = called(lambda: function(*given, **named))
        changed_arguments = not same((given, named), (args, kwargs))
        return answer

    def state() -> Any:
        return None if snapshot is None else copied(called(snapshot))

    start = state()
    first, before = run(), state()
    second, after = run(), state()
    name = getattr(function, "__qualname__", repr(function))
    if changed_arguments and snapshot is not None and same(start, before):
        raise ConfigurationError(f"{name} changed only an argument, but {COPIED}")
    if snapshot is None and (first is None or not results):
        raise ConfigurationError(
            f"there is nothing to compare: {name} returned no result, and there is no snapshot=…"
        )
    if not same(before, after):
        raise AssertionError(
            f"{name} is not idempotent: its second run changed the state: {difference(before, after)}"
        )
    if results and not same(first, second):
        raise AssertionError(
            f"{name} is not idempotent: its second result is {difference(first, second)}"
        )
    return first


@dataclass(frozen=True)
class Delivered(Generic[M]):
    """One delivery: the message, the number of the delivery, and its outcome."""

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
    """Deliver each message 1 to ``n`` times, in a random order that depends on ``seed`` only.
    Without ``shuffle``: each of them ``n`` times, one after the other.

    A failed delivery stops nothing: its error is its outcome, and the message is delivered again at
    the end, at most ``n`` times in all. Then check your data: it must look as if each message had been
    delivered once.
    """
    if n < 1:
        raise ConfigurationError(f"n={n!r} is not valid: at least once is 1 or more")
    chance = random.Random(seed)
    batch = list(messages)
    order = [
        index for index in range(len(batch)) for _ in range(chance.randint(1, n) if shuffle else n)
    ]
    if shuffle:
        chance.shuffle(order)
    used = receiver or Receiver(MemoryStore(), policy=Policy(backoff=Backoff(first=0, most=0)))
    run = _blocking(handler)
    keys = [key(message) for message in batch]
    times = [0] * len(batch)
    failed: set[int] = set()
    made: list[Delivered[M]] = []

    def deliver(index: int) -> None:
        times[index] += 1
        outcome: Outcome[Any] | Exception
        try:
            outcome = used.process(keys[index], run, plain_copy(batch[index]))
        except UsageError:
            raise  # a mistake in the test, not a failed delivery
        except Exception as error:
            outcome = error
            failed.add(index)
        else:
            failed.discard(index)
        made.append(Delivered(batch[index], times[index], outcome))

    for index in order:
        deliver(index)
    while again := [index for index in sorted(failed) if times[index] < n]:
        for index in again:
            deliver(index)
    if receiver is None:
        used.close()
    return made


def _blocking(handler: Callable[[M], Any]) -> Callable[[M], Any]:
    """An async handler runs on its own event loop."""
    if not is_async_function(handler):
        return handler

    def run(message: M) -> Any:
        return called(lambda: handler(message))

    run.__annotations__ = {"return": resolve_return_type(handler)}
    return run


def assert_idempotent_for(
    function: Callable[..., Any],
    inputs: SearchStrategy[Any],
    *,
    snapshot: Callable[[], Any],
    setup: Callable[[], Any],
    results: bool = True,
    examples: int = 100,
) -> None:
    """For all inputs: a second run changes nothing, f(f(x)) = f(x).

    ``inputs`` is a Hypothesis strategy; a tuple is passed as the arguments, any other value as the
    only argument. Hypothesis reports the smallest failing input. At least one input must change the snapshot.
    """
    from hypothesis import HealthCheck, given, settings

    seen: list[Any] = []
    """The snapshot before and after one input: one that changed it, if there was one."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(inputs)
    def twice(drawn: Any) -> None:
        called(setup)
        before = copied(called(snapshot))
        run_twice(
            function,
            *(drawn if isinstance(drawn, tuple) else (drawn,)),
            snapshot=snapshot,
            results=results,
        )
        if not seen or same(*seen):
            seen[:] = before, copied(called(snapshot))

    twice()
    refuse_unseen(getattr(function, "__qualname__", repr(function)), *seen)
