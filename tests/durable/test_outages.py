"""A store that fails at any one request of a run: no recorded step runs again, and the run comes to its end."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.durable.shop import POLICY, Boom, Shop
from twicesafe import CompensatedError, Policy, Receiver, State, Steps
from twicesafe._core.durable.run_requests import LoadRun
from twicesafe._values.steps import StepState
from twicesafe.errors import StoreUnavailableError, TwicesafeError
from twicesafe.events import RenewalRefused
from twicesafe.stores._batching import uncancellable
from twicesafe.stores.memory import MemoryStore

HOUR = 3_600_000
SOME = POLICY.replace(max_attempts=3, remember=(Boom,))
SHORT = SOME.replace(lease=0.05, max_lease=0.05)


class Outage:
    """Between a receiver and its store: the request of one number fails, or it and all that come after it.

    "before": it does not arrive. "after": only its answer is lost.
    """

    def __init__(self, shop: Shop, at: int, kind: str, lasts: bool) -> None:
        self._store = shop.receiver._runtime.store
        self._is_blocking = shop.mode == "blocking"
        self._left, self._kind, self._lasts = at, kind, lasts
        self.failed = ""
        """The first request that failed."""

    def _fails(self, request: Any) -> bool:
        self._left -= 1
        fails = self._left == -1 or (self._lasts and self._left < 0)
        if fails:
            self.failed = self.failed or request.op
        return fails

    def _wrapped(self, perform: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def fail_or(request: Any) -> Any:
            fails = self._fails(request)
            answer = None if fails and self._kind == "before" else perform(request)
            if fails:
                raise StoreUnavailableError("the store is away")
            return answer

        async def fail_or_async(request: Any) -> Any:
            fails = self._fails(request)
            answer = None if fails and self._kind == "before" else await perform(request)
            if fails:
                raise StoreUnavailableError("the store is away")
            return answer

        return fail_or if self._is_blocking else fail_or_async

    @contextlib.contextmanager
    def between(self) -> Iterator[None]:
        store = self._store
        store.perform = self._wrapped(store.perform)
        if not self._is_blocking:
            store.submit = lambda request: uncancellable(store.perform(request))
        try:
            yield
        finally:
            for name in ("perform", "submit"):
                store.__dict__.pop(name, None)


def checkout(shop: Shop, fails: bool, policy: Policy) -> Any:
    def inner(steps: Any, order: str) -> Any:
        yield steps.run("pack", shop.effect("pack", "parcel"))
        yield steps.sleep("dry", 3600)
        return "packed"

    packing = shop.durable(inner, policy=policy, name="inner", scope=("inner",))

    def outer(steps: Any, order: str) -> Any:
        paid = yield steps.run("charge", shop.effect("charge", 5), undo=shop.effect("refund"))
        at = yield steps.capture("at", lambda: 7)
        yield steps.sleep("night", 3600)
        said = yield steps.wait("go", timeout=7200)
        packed = yield packing(order)
        sent = yield steps.run("send", shop.effect("send", "sent"), undo=shop.effect("recall"))
        if fails:
            raise Boom
        return [paid, at, said, packed, sent]

    return shop.durable(outer, policy=policy)


def finished(shop: Shop, key: Any) -> bool:
    record = shop.run(shop.receiver.record(key))
    return record is not None and record.state in (State.COMPLETED, State.FAILED)


def recorded(shop: Shop, key: Any) -> set[str]:
    run = shop.run(shop.receiver._runtime.store.perform(LoadRun(key.id)))
    steps = [] if run is None else run.steps
    return {step.name for step in steps if step.state is StepState.DONE and step.kind == "run"}


def once(shop: Shop, run: Any, order: str) -> None:
    """One try of a caller, or of the completer if there is a record; whatever comes of it."""
    try:
        if shop.run(shop.receiver.record(run.key(order))) is None:
            shop.run(run(order))
        else:
            shop.run(shop.receiver.complete_abandoned())
    except TwicesafeError:
        return


def until_finished(shop: Shop, run: Any, order: str, outage: Outage | None) -> bool:
    """False: it did not end; or the outage came."""
    for turn in range(30):
        with outage.between() if outage else contextlib.nullcontext():
            once(shop, run, order)
        if outage and outage.failed:
            return False
        if finished(shop, run.key(order)):
            return True
        shop.clock.advance(ms=HOUR)
        if turn == 1:
            shop.run(shop.receiver.signal(run.key(order), "go", "now"))
    return False


KINDS = pytest.mark.parametrize("kind", ["before", "after"])
ENDS = pytest.mark.parametrize("fails", [False, True], ids=["completes", "undone"])


@KINDS
@ENDS
def test_each_request_of_a_run_may_fail_once(shop: Shop, fails: bool, kind: str) -> None:
    each_request_fails(shop, fails, kind, lasts=False)


@KINDS
@ENDS
def test_an_outage_may_begin_at_each_request_of_a_run(
    memory_shop: Shop, fails: bool, kind: str
) -> None:
    """It lasts longer than the lease, so the worker gives up."""
    each_request_fails(memory_shop, fails, kind, lasts=True)


def each_request_fails(shop: Shop, fails: bool, kind: str, *, lasts: bool) -> None:
    run = checkout(shop, fails, SHORT if lasts else SOME)
    for at in range(200):
        order, outage = f"o-{at}", Outage(shop, at, kind, lasts)
        shop.done.clear()
        if until_finished(shop, run, order, outage):
            break
        what = f"request {at}, {outage.failed}, {kind}"
        known, before = recorded(shop, run.key(order)), Counter(shop.done)
        shop.clock.advance(ms=HOUR)
        assert until_finished(shop, run, order, None), f"{what}: it did not end"
        for name in known:
            assert shop.done[name] == before[name], f"{what}: {name} ran again"
        assert all(times <= 1 + lasts for times in shop.done.values()), f"{what}: {shop.done}"
    assert 20 < at < 199


@KINDS
def test_a_submit_that_is_not_answered_is_sent_again(shop: Shop, kind: str) -> None:
    """P2: it is a claim. An idle connection that was cut is such an outage."""

    def pay(steps: Any, order: str) -> Any:
        return (yield steps.run("charge", shop.effect("charge", 5)))

    run = shop.durable(pay, policy=SOME)
    outage = Outage(shop, 0, kind, lasts=False)
    with outage.between():
        key = shop.run(run.submit("o-1"))
    assert outage.failed == "submit_run"
    shop.run(shop.receiver.complete_abandoned())
    assert (finished(shop, key), shop.done) == (True, {"charge": 1})


def test_an_undone_run_whose_end_was_recorded_is_not_lost() -> None:
    """Only the answer was lost, and before it was asked for again, the store refused to renew the lease."""

    class Cut(MemoryStore):
        cuts = 1

        def perform(self, request: Any) -> Any:
            answer = super().perform(request)
            if request.op == "complete" and self.cuts:
                self.cuts -= 1
                keeper = receiver._runtime.keeper
                keeper._renew(list(keeper._live), receiver._runtime.clock())
                raise StoreUnavailableError("cut")
            return answer

    seen: list[Any] = []
    receiver = Receiver(Cut(), policy=SOME.replace(max_attempts=1), observers=[seen.append])

    @receiver.durable(scope=())
    def checkout(steps: Steps, order: str) -> None:
        steps.run("charge", str, order, undo=len)
        raise Boom

    with pytest.raises(CompensatedError):
        checkout("o-1")
    assert not [event for event in seen if isinstance(event, RenewalRefused)]
