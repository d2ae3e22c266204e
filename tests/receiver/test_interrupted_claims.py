"""An interrupt that meets claims: all that was asked for, and for which no handler started, goes back.

One claim or the claims of a batch; on the wire, in the pause before they are asked again, or asked
again after some were answered. Under `takeover="hold"` a claim that is left behind would be held
for an operator, although nothing was done. (All of a batch can start at once here: with "hold" no
others are claimed.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.receiver.bench import Bench, Counter
from tests.receiver.faults import Outage
from tests.receiver.test_cancellation import Pause
from twicesafe import State, StoreUnavailableError
from twicesafe._core.commands import Sleep
from twicesafe._core.protocol import ClaimRequest

SYNC = pytest.mark.parametrize("bench", ["memory-sync", "sqlite-sync"], indirect=True)
ASYNC = pytest.mark.parametrize("bench", ["memory-async", "sqlite-async"], indirect=True)
SIDES = pytest.mark.parametrize("side", ["before", "after"])
COUNTS = pytest.mark.parametrize("count", [1, 3])

KEYS = "abcdef"


class Handler:
    def __init__(self) -> None:
        self.ran: list[str] = []

    def __call__(self, message: str) -> str:
        self.ran.append(message)
        return message


@pytest.fixture
def handler(bench: Bench) -> Handler:
    bench.policy(takeover="hold")
    return Handler()


def nothing_is_left(bench: Bench, handler: Handler, keys: str) -> None:
    """No handler ran, no key is held back, and the next delivery is the first attempt."""
    assert handler.ran == []
    records = [bench.record(key) for key in keys]
    assert {record.state for record in records if record is not None} <= {State.RELEASED}
    bench.store.before = bench.store.after = lambda request: None
    bench.clock.advance(3600)
    outcomes = bench.process_many(keys, handler, key=str)
    assert [(outcome.value, outcome.attempt) for outcome in outcomes] == [(key, 1) for key in keys]


def half_answered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store wins the first claims, and cannot be reached for the last ones, once."""
    perform_many: Callable[..., Any] = bench.store.perform_many
    cut: list[bool] = []

    def halved(answers: list[Any]) -> list[Any]:
        return answers[:3] + [StoreUnavailableError("cut") for _ in answers[3:]]

    def many(requests: Any) -> Any:
        if cut or type(requests[0]) is not ClaimRequest:
            return perform_many(requests)
        cut.append(True)
        return awaited(requests) if bench.is_async else halved(perform_many(requests))

    async def awaited(requests: Any) -> list[Any]:
        return halved(await perform_many(requests))

    monkeypatch.setattr(bench.store, "perform_many", many)


# --- blocking ----------------------------------------------------------------------------------


@SYNC
@SIDES
@COUNTS
def test_interrupted_while_the_claims_of_a_batch_are_on_the_wire(
    bench: Bench, handler: Handler, side: str, count: int
) -> None:
    def interrupt(request: Any) -> None:
        if request.op == "claim":
            raise KeyboardInterrupt

    setattr(bench.store, side, interrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.process_many(KEYS[:count], handler, key=str)
    nothing_is_left(bench, handler, KEYS[:count])


@SYNC
@COUNTS
def test_interrupted_in_the_pause_before_claims_are_asked_again(
    bench: Bench, handler: Handler, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("twicesafe._runtime.blocking.time.sleep", sleep)
    bench.store.after = Outage("claim", times=1)
    with pytest.raises(KeyboardInterrupt):
        bench.process_many(KEYS[:count], handler, key=str)
    nothing_is_left(bench, handler, KEYS[:count])


@SYNC
def test_interrupted_when_only_some_claims_are_asked_again(
    bench: Bench, handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_answered(bench, monkeypatch)
    asked: list[Any] = []

    def interrupt(request: Any) -> None:
        if request.op == "claim":
            asked.append(request)
            if len(asked) > len(KEYS):
                raise KeyboardInterrupt

    bench.store.after = interrupt
    with pytest.raises(KeyboardInterrupt):
        bench.process_many(KEYS, handler, key=str, concurrency=len(KEYS))
    nothing_is_left(bench, handler, KEYS)


@SYNC
def test_interrupted_between_the_answer_and_the_first_handler(
    bench: Bench, handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when some of them are kept already."""
    keeper = bench.receiver._runtime.keeper
    add_all = keeper.add_all

    def interrupt(claims: Any) -> None:
        monkeypatch.setattr(keeper, "add_all", add_all)
        add_all(claims[:1])
        raise KeyboardInterrupt

    monkeypatch.setattr(keeper, "add_all", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.process_many(KEYS, handler, key=str, concurrency=len(KEYS))
    assert not keeper._live
    nothing_is_left(bench, handler, KEYS)


# --- async ---------------------------------------------------------------------------------------


def cancelled(bench: Bench, handler: Handler, keys: str, reached: Callable[[], Any]) -> None:
    async def run() -> None:
        here = reached()
        task = asyncio.ensure_future(
            bench.receiver.process_many(
                keys, bench.in_mode(handler), key=str, concurrency=len(keys)
            )
        )
        await here.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 120)

    bench._wait(run())


@ASYNC
@SIDES
@COUNTS
def test_cancelled_while_the_claims_of_a_batch_are_on_the_wire(
    bench: Bench, handler: Handler, side: str, count: int
) -> None:
    def reached() -> asyncio.Event:
        pause = Pause("claim")
        setattr(bench.store, side, pause)
        return pause.reached

    cancelled(bench, handler, KEYS[:count], reached)
    nothing_is_left(bench, handler, KEYS[:count])


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> Callable[[], asyncio.Event]:
    """Reached when a claim is about to be asked again, after a pause without end."""

    def reached() -> asyncio.Event:
        here = asyncio.Event()

        def sleep(seconds: float, firm: bool = False) -> Sleep:
            here.set()
            return Sleep(3600, firm)

        for module in ("batch", "delivery"):
            monkeypatch.setattr(f"twicesafe._core.{module}.Sleep", sleep)
        return here

    return reached


@ASYNC
@COUNTS
def test_cancelled_in_the_pause_before_claims_are_asked_again(
    bench: Bench, handler: Handler, count: int, paused: Callable[[], asyncio.Event]
) -> None:
    bench.store.after = Outage("claim", times=1)
    cancelled(bench, handler, KEYS[:count], paused)
    nothing_is_left(bench, handler, KEYS[:count])


@ASYNC
def test_cancelled_when_only_some_claims_are_asked_again(
    bench: Bench,
    handler: Handler,
    paused: Callable[[], asyncio.Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half_answered(bench, monkeypatch)
    cancelled(bench, handler, KEYS, paused)
    nothing_is_left(bench, handler, KEYS)


@ASYNC
def test_a_single_claim_is_given_back_from_the_pause_too(
    bench: Bench, paused: Callable[[], asyncio.Event]
) -> None:
    bench.policy(takeover="hold")
    bench.store.after = Outage("claim", times=1)

    async def run() -> None:
        here = paused()
        work = bench.in_mode(Counter().quick)
        task = asyncio.ensure_future(bench.receiver.process("k", work))
        await here.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 120)
        record = await bench.receiver.record("k")
        assert (record.state, record.attempt) == (State.RELEASED, 0)

    bench._wait(run())
