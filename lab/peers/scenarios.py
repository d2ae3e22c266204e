"""The scenarios. Each returns one phrase about what was seen, put together from what was counted.

*Owner* is the first caller, *second* the next one with the same key, *repeat* one that comes when all
is over. Orders say which answer a run would give, so an answer tells whose it is.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from .column import Column, End, Worker
from .peer import WAIT, Order

__all__ = ["SCENARIOS"]

Scenario = Callable[[Column], str]
SCENARIOS: dict[str, Scenario] = {}

WAITERS: Final = 3
THREADS: Final = 4
ROUNDS: Final = 5
LONG: Final = 5.0
"""Seconds from which on it is said how long a call took to be refused."""
MOMENT: Final = 0.4
"""Seconds after which a call that was sent has met the other one, or is waiting for it."""


def scenario(name: str) -> Callable[[Scenario], Scenario]:
    def enter(run: Scenario) -> Scenario:
        SCENARIOS[name] = run
        return run

    return enter


# --- the owner and its lease -----------------------------------------------------------------


@scenario("owner slower than its lease, alive")
def slow_owner(c: Column) -> str:
    key = c.key()
    owner, other = c.worker("owner"), c.worker("other")
    owner.begin_and_hold(c.order(key, act="hold"))
    c.past_the_lease()
    other.begin(c.order(key, "second"))
    early = other.early_end(2 * MOMENT)
    owner.tell("return", key)
    owner.end()
    if early is None:
        seen = f"second waited, {_got(other.end())}"
    else:
        seen = f"second {_got(early, second='ran beside it')}"
    return _runs(seen, c, c.order(key))


@scenario("owner stopped past its lease; fails when the second is done")
def late_failure(c: Column) -> str:
    return _late(c, "raise")


@scenario("owner stopped past its lease; succeeds when the second is done")
def late_success(c: Column) -> str:
    return _late(c, "return")


def _late(c: Column, word: str) -> str:
    key = c.key()
    other = c.worker("other")
    _stop_past_the_lease(c, key)
    other.begin(c.order(key, "second", meets="take over"))
    early = other.early_end(4 * c.lease)
    late = _wake(c, key, word)
    if early is None:
        seen = f"second waited for the owner, {_got(other.end())}"
    else:
        seen = f"second {_got(early, second='took over')}"
    seen += _of_the_late_owner(late)
    seen += f"; repeat {_again(c, other, c.order(key, 'repeat', meets='take over'))}"
    return _runs(seen, c, c.order(key))


@scenario("owner stopped past its lease; fails while the second runs")
def failure_amid(c: Column) -> str:
    return _amid(c, "raise")


@scenario("owner stopped past its lease; succeeds while the second runs")
def success_amid(c: Column) -> str:
    return _amid(c, "return")


def _amid(c: Column, word: str) -> str:
    key = c.key()
    other, third = c.worker("other"), c.worker("third")
    _stop_past_the_lease(c, key)
    other.begin(c.order(key, "second", "hold", meets="take over"))
    sign = other.first_sign(4 * c.lease)
    late = _wake(c, key, word)
    if sign == "waits":
        return _runs(f"second waited for the owner, {_got(other.end())}", c, c.order(key))
    if sign != "runs":
        return _runs(f"second {_got(sign)}", c, c.order(key))
    third.begin(c.order(key, "third", meets="take over"))
    early = third.early_end(MOMENT)
    other.tell("return", key)
    second = other.end()
    seen = f"second took over{_of_the_late_owner(late)}; third "
    if early is None:
        seen += f"waited, {_got(third.end())}"
    else:
        seen += _got(early, third="ran beside the second")
    seen += f"; second {_got(second, second='got its own answer')}"
    seen += f"; repeat {_again(c, other, c.order(key, 'repeat', meets='take over'))}"
    return _runs(seen, c, c.order(key))


def _stop_past_the_lease(c: Column, key: str) -> None:
    owner = c.worker("owner")
    owner.begin_and_hold(c.order(key, act="hold", meets="take over"))
    owner.stand_still()
    c.past_the_lease()


def _wake(c: Column, key: str, word: str) -> End:
    """The owner goes on; a moment later its function ends."""
    owner = c.worker("owner")
    owner.wake()
    c.past_the_lease()  # time to find out that it was taken over
    owner.tell(word, key)
    return owner.end()


def _of_the_late_owner(late: End) -> str:
    return (
        "" if late.error == "Broken" else f"; late owner {_got(late, first='got its own answer')}"
    )


@scenario("process killed in mid-run; repeated elsewhere at once")
def crash(c: Column) -> str:
    key = c.key()
    c.worker("owner").begin_and_hold(c.order(key, act="hold", meets="take over"))
    other = c.worker("other")
    c.kill("owner")
    again = c.order(key, "repeat", meets="take over")
    other.begin(again)
    end = other.early_end(WAIT + LONG)
    if end is None:
        c.kill("other")
        return _runs(f"repeat still waited after {WAIT + LONG:.0f} s", c, again)
    seen = f"repeat {_got(end)}"
    if end.refused:
        c.past_the_lease()
        seen += f", {_later(end)} {_got(other.call(again))}"
    return _runs(seen, c, again)


@scenario("process killed in mid-run and restarted; repeated past the lease")
def restart(c: Column) -> str:
    key = c.key()
    c.worker("owner").begin_and_hold(c.order(key, act="hold", meets="take over"))
    c.kill("owner")
    anew = c.worker("owner")
    c.past_the_lease()
    again = c.order(key, "repeat", meets="take over")
    seen = _got(anew.call(again), first="got the answer of a run at the restart")
    return _runs(f"repeat {seen}", c, again)


@scenario("connections killed in mid-run")
def cut(c: Column) -> str:
    key = c.key()
    owner = c.worker("owner")
    owner.begin_and_hold(c.order(key, act="hold", meets="take over"))
    c.cut_connections()
    owner.tell("return", key)
    seen = f"owner {_got(owner.end(), first='got its answer')}"
    again = c.order(key, "repeat", meets="take over")
    seen += f"; repeat there {_again(c, owner, again)}"
    c.kill_all()  # the next callers start with sound connections
    anew = again | {"word": "anew"}
    seen += f"; in a new process {_again(c, c.worker('other'), anew, repeat='got that answer')}"
    return _runs(seen, c, again)


# --- calls that meet -------------------------------------------------------------------------


@scenario("owner succeeds while 3 others wait")
def waiters(c: Column) -> str:
    return _waited(c, "return")


@scenario("owner raises while 3 others wait")
def waiters_of_a_failure(c: Column) -> str:
    return _waited(c, "raise")


def _waited(c: Column, word: str) -> str:
    key = c.key()
    owner, other = c.worker("owner"), c.worker("other")
    owner.begin_and_hold(c.order(key, act="hold"))
    other.begin(*(c.order(key, "a waiter") for _ in range(WAITERS)))
    time.sleep(MOMENT)
    owner.tell(word, key)
    owner.end()
    ends = other.ends()
    return _runs(_counted([_got(end) for end in ends]), c, c.order(key))


@scenario("4 threads, 2 functions, 1 store, 20 calls; repeated one by one")
def threads(c: Column) -> str:
    worker = c.worker("owner")
    calls, repeats, orders = [], [], []
    for _ in range(ROUNDS):
        some = [
            c.order(c.key(), f"answer {n}", "meet", function=("text", "other text")[n % 2])
            for n in range(THREADS)
        ]
        worker.begin(*some)
        calls += [_of(end, order) for end, order in zip(worker.ends(), some, strict=True)]
        for order in some:
            end = worker.call(order | {"act": "answer", "word": "run again"})
            repeats.append(_of(end, order))
        orders += some
    return _runs(f"calls: {_counted(calls)}; repeats: {_counted(repeats)}", c, *orders)


@scenario("a protected function calls another one; then both repeated")
def nested(c: Column) -> str:
    key = c.key()
    inner = c.order(key, "inner", function="other text")
    outer = c.order(key, "outer", "nest", inner=inner)
    owner, other = c.worker("owner"), c.worker("other")
    called = owner.call(outer)
    seen = "" if not called.error else f"call {_got(called)}; "
    for name, order in (("outer", outer), ("inner", inner)):
        end = other.call(order | {"act": "answer", "word": "run again"})
        seen += f"{name} {_of(end, order)}; "
    return _runs(seen.removesuffix("; "), c, outer, inner)


# --- results ---------------------------------------------------------------------------------


def _result(gift: str) -> Scenario:
    def run(c: Column) -> str:
        order = c.order(c.key(), function=gift, meets="take over")
        first = c.worker("owner").call(order)
        again = c.worker("other").call(order)
        seen = "" if first.same else f"call {_shown(first)}; "
        seen += f"repeat {_shown(again)}"
        if again.refused:
            c.past_the_lease()
            seen += f", past the lease {_shown(c.worker('other').call(order))}"
        return _runs(seen, c, order)

    return run


for _gift in ("None", "0", "empty text", "Decimal", "datetime", "dataclass"):
    scenario(f"result: {_gift}")(_result(_gift))


# --- whose key it is -------------------------------------------------------------------------


@scenario("other tenant, same key")
def tenants(c: Column) -> str:
    key = c.key()
    orders = [c.order(key, "first"), c.order(key, "second", tenant="globex")]
    ends = [c.worker("owner").call(order) for order in orders]
    seen = "each its own answer" if [end.value for end in ends] == ["first", "second"] else ""
    return _runs(seen or f"the other {_got(ends[1])}", c, *orders)


@scenario("other payload, same key")
def payloads(c: Column) -> str:
    order = c.order(c.key(), checks=True)
    owner, other = c.worker("owner"), c.worker("other")
    owner.call(order)
    honest = other.call(order | {"word": "run again"})
    changed = other.call(order | {"word": "run again", "payload": {"cents": 9999}})
    return _runs(f"other payload {_got(changed)}; honest repeat {_got(honest)}", c, order)


# --- words for what was seen -----------------------------------------------------------------


def _got(end: End, **own: str) -> str:
    """How a call ended; ``own`` has other words for some answers, where whose they are is known."""
    if end.error == "Broken":
        return "got the owner's error"
    if end.error:
        return f"raised {end.error}" + (f" after {end.took:.0f} s" if end.took >= LONG else "")
    return own.get(end.value) or _ANSWERS.get(end.value, f"got {end.shown}")


_ANSWERS: Final = {
    "first": "got the owner's answer",
    "second": "got the second's answer",
    "third": "got the third's answer",
    "a waiter": "got the answer of one of them that ran",
    "repeat": "ran",
    "anew": "ran",
    "run again": "ran",
}


def _again(c: Column, worker: Worker, order: Order, **own: str) -> str:
    """How a repeat ends; one that is refused comes again when leases are over."""
    end = worker.call(order)
    if not end.refused:
        return _got(end, **own)
    c.past_the_lease()
    later = worker.call(order)
    then = "too" if later.error == end.error else _got(later, **own)
    return f"{_got(end)}, {_later(end)} {then}"


def _later(end: End) -> str:
    return "asked again" if end.took >= LONG else "past the lease"


def _of(end: End, order: Order) -> str:
    """Is it the answer of this order's own first run?"""
    return "right" if end.value == order["word"] and not end.error else _got(end)


def _shown(end: End) -> str:
    if end.error:
        return f"raised {end.error}"
    return "equal" if end.same else f"gave {end.shown}"


def _counted(phrases: list[str]) -> str:
    return ", ".join(f"{count} {phrase}" for phrase, count in Counter(phrases).most_common())


def _runs(seen: str, c: Column, *orders: Order) -> str:
    runs = c.runs(*orders)
    return f"{seen}; {runs} run{'s' if runs != 1 else ''}"
