"""Sagas: a run that fails for good is undone in reverse, each undo once, and no forward step beside it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.durable.shop import POLICY, Boom, Shop
from twicesafe import (
    AsyncReceiver,
    AsyncSteps,
    CompensatedError,
    CompensationFailedError,
    CorruptRecordError,
    LeaseLostError,
    MessageHandler,
    ParkedError,
    Receiver,
    RememberedFailureError,
    State,
    StepMismatchError,
    Steps,
    SuspendedError,
)
from twicesafe._core.durable.run_requests import RecordStep, StartRun
from twicesafe._core.protocol import Abandon, Ack
from twicesafe._values.steps import StepState
from twicesafe.consumers import DeadLetter

ONCE = POLICY.replace(max_attempts=1)


def saga(shop: Shop, names: str = "abc", fails: str = "c") -> Any:
    """Steps a, b, c, each with its undo; the named one fails."""
    effects = {name: shop.effect(name, f"{name}-result") for name in names}
    undone: list[Any] = []
    shop.failing[fails] = 99

    def undo(name: str) -> Any:
        act = shop.effect(f"undo-{name}")

        def back(value: Any) -> Any:
            undone.append(value)
            return act()

        return back

    def run(steps: Any, order: str) -> Any:
        for name in names:
            yield steps.run(name, effects[name], undo=undo(name))

    return run, undone


def test_a_final_failure_undoes_in_reverse(shop: Shop) -> None:
    body, undone = saga(shop)
    run = shop.durable(body, policy=ONCE)
    with pytest.raises(CompensatedError, match="Boom: c") as raised:
        shop.run(run("x"))
    assert isinstance(raised.value.__cause__, Boom)
    assert raised.value.reason == "Boom: c"
    assert undone == ["b-result", "a-result"]
    assert shop.order == ["a", "b", "c", "undo-b", "undo-a"]
    record = shop.run(shop.receiver.record(run.key("x")))
    assert (record.state, record.error) == (State.FAILED, "CompensatedError")
    with pytest.raises(CompensatedError, match="Boom: c"):
        shop.run(run("x"))
    assert shop.order == ["a", "b", "c", "undo-b", "undo-a"]


def test_attempts_come_first(shop: Shop) -> None:
    body, undone = saga(shop)
    run = shop.durable(body, policy=POLICY.replace(max_attempts=3))
    for _ in range(2):
        with pytest.raises(Boom):
            shop.run(run("x"))
        assert undone == []
        shop.clock.advance(ms=10)
    with pytest.raises(CompensatedError):
        shop.run(run("x"))
    assert (shop.done["a"], shop.done["c"], len(undone)) == (1, 3, 2)


def test_remembered_errors_are_final(shop: Shop) -> None:
    body, undone = saga(shop)
    run = shop.durable(body, policy=POLICY.replace(remember=(Boom,)))
    with pytest.raises(CompensatedError):
        shop.run(run("x"))
    assert len(undone) == 2
    plain = shop.durable(saga(shop, "c")[0], policy=POLICY.replace(remember=(Boom,)), scope=("p",))
    with pytest.raises(Boom):
        shop.run(plain("x"))
    with pytest.raises(RememberedFailureError):
        shop.run(plain("x"))


def test_an_undo_gets_the_result_as_it_was_recorded(shop: Shop) -> None:
    """The function may have changed its own: after a crash in between, the undo would have got another value."""
    paid, undone = shop.effect("pay", {"id": 7, "items": ["a", "b"]}), []

    def fails_first(value: Any) -> None:
        undone.append(dict(value))
        value.clear()
        if len(undone) == 1:
            raise Boom

    async def fails_first_async(value: Any) -> None:
        fails_first(value)

    back = fails_first if shop.mode == "blocking" else fails_first_async

    def run(steps: Any, order: str) -> Any:
        payment = yield steps.run("pay", paid, undo=back)
        payment["items"].clear()
        del payment["id"]
        yield steps.abort("no")

    run = shop.durable(run)
    with pytest.raises(CompensatedError):
        shop.run(run("x"))
    assert undone == [{"id": 7, "items": ["a", "b"]}] * 2


def test_a_dead_letter_is_final(shop: Shop) -> None:
    """It says that no retry can help, so what was done is undone; a run without an undo is parked, as any message is."""

    def gives_up(steps: Any, order: str) -> Any:
        for name in "ab":
            yield steps.run(name, shop.effect(name), undo=shop.effect(f"undo-{name}"))
        raise DeadLetter("no address")

    run = shop.durable(gives_up, policy=POLICY.replace(max_attempts=5))
    for _ in range(2):
        with pytest.raises(CompensatedError, match="DeadLetter: no address"):
            shop.run(run("x"))
    assert shop.order == ["a", "b", "undo-b", "undo-a"]

    def plain(steps: Any, order: str) -> Any:
        yield steps.run("a", shop.effect("plain"))
        raise DeadLetter("no address")

    plain = shop.durable(plain, policy=POLICY.replace(max_attempts=5), scope=("plain",))
    with pytest.raises(DeadLetter):
        shop.run(plain("x"))
    record = shop.run(shop.receiver.record(plain.key("x")))
    assert (record.state, record.error) == (State.PARKED, "DeadLetter")


def test_a_message_whose_saga_was_undone_is_a_dead_letter_at_once() -> None:
    with Receiver.open("memory://", policy=POLICY.replace(max_attempts=5)) as receiver:

        @receiver.durable(key="message", scope=("saga",))
        def ship(steps: Steps, message: str) -> None:
            steps.run("pay", lambda: 1, undo=lambda _: None)
            raise DeadLetter("no address")

        class Ships(MessageHandler[str, None]):
            def key(self, message: str) -> str:
                return message

            def handle(self, message: str) -> None:
                ship(message)

        for message in ("a", "a", "b"):
            verdict = Ships(receiver).deliver(message)
            assert verdict.action == "dead_letter"
        assert "no address" in str(verdict.error)


def test_abort_undoes_at_once(shop: Shop) -> None:
    act, back = shop.effect("act", 7), shop.effect("back")

    def run(steps: Any, order: str) -> Any:
        yield steps.run("act", act, undo=back)
        yield steps.abort("refused")

    run = shop.durable(run)
    for _ in range(2):
        with pytest.raises(CompensatedError, match="refused") as raised:
            shop.run(run("x"))
        assert (raised.value.reason, raised.value.retryable) == ("refused", False)
    assert shop.order == ["act", "back"]


class Unspeakable:
    def __str__(self) -> str:
        raise Boom


@pytest.mark.parametrize(
    "reason, kept",
    [("file \udcff", "file ?"), (Unspeakable(), "aborted"), ("x" * 9000, "x" * 2000)],
)
def test_a_reason_that_cannot_be_stored_does_not_prevent_the_undo(
    memory_shop: Shop, reason: Any, kept: str
) -> None:
    act, back = memory_shop.effect("act", 7), memory_shop.effect("back")

    def run(steps: Any, order: str) -> Any:
        yield steps.run("act", act, undo=back)
        yield steps.abort(reason)

    run = memory_shop.durable(run)
    for _ in range(2):
        with pytest.raises(CompensatedError) as raised:
            memory_shop.run(run("x"))
        assert raised.value.reason == kept
    assert memory_shop.order == ["act", "back"]


def test_an_undo_has_the_policys_attempts(shop: Shop) -> None:
    body, _ = saga(shop)
    shop.failing["undo-b"] = 2
    run = shop.durable(body, policy=POLICY.replace(remember=(Boom,), max_attempts=3))
    with pytest.raises(CompensatedError):
        shop.run(run("x"))
    assert (shop.done["undo-b"], shop.done["undo-a"]) == (3, 1)


def test_an_undo_that_keeps_failing_parks_and_release_goes_on(shop: Shop) -> None:
    body, undone = saga(shop)
    shop.failing["undo-a"] = 2
    run = shop.durable(body, policy=POLICY.replace(remember=(Boom,), max_attempts=2))
    with pytest.raises(CompensationFailedError, match="'a'") as raised:
        shop.run(run("x"))
    assert (raised.value.step, raised.value.reason) == ("a", "Boom: c")
    record = shop.run(shop.receiver.record(run.key("x")))
    assert (record.state, record.error) == (State.PARKED, "CompensationFailedError")
    with pytest.raises(ParkedError):
        shop.run(run("x"))
    shop.run(shop.receiver.release(run.key("x"), by="ann", why="the bank is back"))
    with pytest.raises(CompensatedError, match="Boom: c"):
        shop.run(run("x"))
    assert (shop.done["undo-b"], shop.done["undo-a"], shop.done["c"]) == (1, 3, 1)
    assert undone[-1] == "a-result"


def test_an_undo_that_calls_a_run_of_another_worker_suspends_the_saga(memory_shop: Shop) -> None:
    """The refund is slow, and has not failed: the saga must not be parked."""
    shop, refunded = memory_shop, memory_shop.effect("refunded")

    def refund(steps: Any, order: str) -> Any:
        yield steps.run("refund", refunded)

    policy = ONCE.replace(wait=0)
    refund = shop.durable(refund, scope=("refund",), name="refund", policy=policy)

    def checkout(steps: Any, order: str) -> Any:
        yield steps.run("charge", shop.effect("charge", "x"), undo=refund)
        yield steps.abort("out of stock")

    checkout = shop.durable(checkout, policy=policy, scope=("checkout",))
    key = refund.key("x")
    shop.store.perform(StartRun(key, b"o" * 16, 60_000, 5, function="refund"))
    for _ in range(3):
        with pytest.raises(SuspendedError):
            shop.run(checkout("x"))
        shop.clock.advance(ms=1_001)
    shop.store.perform(Abandon(key.id, b"o" * 16, 60_000))
    with pytest.raises(CompensatedError, match="out of stock"):
        shop.run(checkout("x"))
    assert shop.done["refunded"] == 1


def test_an_undo_that_calls_a_suspended_run_suspends_the_saga(shop: Shop) -> None:
    """A refund that a person must approve: no attempt is used up, and the other undos wait for it."""
    refunded = shop.effect("refunded")

    def refund(steps: Any, order: str) -> Any:
        yield steps.wait("approval", timeout=3600)
        yield steps.run("refund", refunded)

    refund = shop.durable(refund, scope=("refund",))
    first, charge, ship = shop.effect("first"), shop.effect("charge", "x"), shop.effect("ship")
    back = shop.effect("undo-first")
    shop.failing["ship"] = 99

    def checkout(steps: Any, order: str) -> Any:
        yield steps.run("first", first, undo=back)
        yield steps.run("charge", charge, undo=refund)
        yield steps.run("ship", ship)

    checkout = shop.durable(checkout, policy=ONCE, scope=("checkout",))
    for _ in range(3):
        with pytest.raises(SuspendedError):
            shop.run(checkout("x"))
        record = shop.run(shop.receiver.record(checkout.key("x")))
        assert (record.state, record.attempt) == (State.SUSPENDED, 0)
        shop.clock.advance(ms=31_000)
    assert shop.order == ["first", "charge", "ship"]
    assert shop.run(shop.receiver.signal(refund.key("x"), "approval", True))
    with pytest.raises(CompensatedError, match="Boom: ship"):
        shop.run(checkout("x"))
    assert shop.order == ["first", "charge", "ship", "refunded", "undo-first"]


@pytest.mark.parametrize("place", ["undo-b", "undo-a"])
def test_a_crash_while_undoing_is_taken_up_and_nothing_new_runs(
    memory_shop: Shop, place: str
) -> None:
    """The worker dies right after the effect of an undo: that undo runs again, the others do not."""
    shop = memory_shop
    body, _ = saga(shop, "abcd", "c")
    dies = [place]
    run = shop.durable(body, policy=ONCE.replace(wait=0))
    perform = shop.store.perform

    def dying(request: Any) -> Any:
        if dies and getattr(request, "name", "") == dies[0].replace("undo-", "undo:"):
            dies.clear()
            raise KeyboardInterrupt  # before it is recorded
        return perform(request)

    shop.store.perform = dying  # type: ignore[method-assign]
    if shop.mode == "blocking":
        # An interrupt during a recording is delayed, so it is recorded all the same.
        with pytest.raises((KeyboardInterrupt, CompensatedError)):
            shop.run(run("x"))
    else:
        with pytest.raises((KeyboardInterrupt, CompensatedError)):
            shop.run(run("x"))
    shop.clock.advance(ms=31_000)
    with pytest.raises(CompensatedError, match="Boom: c"):
        shop.run(run("x"))
    other = "undo-a" if place == "undo-b" else "undo-b"
    assert shop.done[other] == 1
    assert shop.done[place] in (1, 2)
    assert (shop.done["c"], shop.done["d"]) == (1, 0)


@pytest.mark.parametrize("has_undo", [True, False])
def test_attempts_that_interrupts_used_up_are_undone(shop: Shop, has_undo: bool) -> None:
    act, back = shop.effect("act", 7), shop.effect("back")

    def run(steps: Any, order: str) -> Any:
        yield steps.run("act", act, undo=back if has_undo else None)
        if len(attempts) < 2:
            attempts.append(steps.attempt)
            raise asyncio.CancelledError
        yield steps.run("later", shop.effect("later"))

    attempts: list[int] = []
    run = shop.durable(run, policy=POLICY.replace(max_attempts=2, wait=0))
    for _ in range(2):
        with pytest.raises(asyncio.CancelledError):
            shop.run(run("x"))
    with pytest.raises(CompensatedError if has_undo else ParkedError):
        shop.run(run("x"))
    assert (shop.done["act"], shop.done["back"], shop.done["later"]) == (1, int(has_undo), 0)


def test_attempts_that_crashes_used_up_are_undone(shop: Shop) -> None:
    act, back, later = shop.effect("act", 7), shop.effect("back"), shop.effect("later")

    def run(steps: Any, order: str) -> Any:
        yield steps.run("act", act, undo=back)
        if dies:
            steps._state.claim.pid = -1
        yield steps.run("later", later)

    dies = True
    run = shop.durable(run, policy=POLICY.replace(max_attempts=2, wait=0))
    for _ in range(2):
        with pytest.raises(LeaseLostError):
            shop.run(run("x"))
        shop.clock.advance(ms=31_000)
    dies = False
    ran = shop.done["later"]
    with pytest.raises(CompensatedError, match="used up"):
        shop.run(run("x"))
    assert (shop.done["act"], shop.done["back"], shop.done["later"]) == (1, 1, ran)


def dies_in_flight(shop: Shop, policy: Any = ONCE, **options: Any) -> Any:
    """A saga a, b, c whose worker dies in its only attempt: after the effect of b, before its record."""
    body, undone = saga(shop, "abc", "")

    def run(steps: Any, order: str) -> Any:
        return body(steps.options(**options) if options else steps, order)

    run = shop.durable(run, policy=policy.replace(wait=0))
    perform = shop.store.perform

    def dying(request: Any) -> Any:
        is_record = isinstance(request, RecordStep) and request.state is StepState.DONE
        return Ack.LOST if is_record and request.name == "b" else perform(request)

    shop.store.perform = dying  # type: ignore[method-assign]
    with pytest.raises(LeaseLostError):
        shop.run(run("x"))
    shop.store.perform = perform  # type: ignore[method-assign]
    shop.clock.advance(ms=31_000)
    return run, undone


def steps_of(shop: Shop, run: Any) -> dict[str, StepState]:
    record = shop.run(shop.receiver.record(run.key("x")))
    return {step.name: step.state for step in record.steps}


@pytest.mark.parametrize("policy", [ONCE, ONCE.replace(takeover="hold")])
def test_a_step_in_flight_at_the_last_attempt_parks_the_run(memory_shop: Shop, policy: Any) -> None:
    """Whether it happened is unknown, so the run must not be remembered as undone."""
    shop = memory_shop
    run, undone = dies_in_flight(shop, policy)
    for _ in range(2):
        with pytest.raises(CompensationFailedError, match="whether it happened is unknown") as told:
            shop.run(run("x"))
        assert told.value.step == "b"
        assert steps_of(shop, run)["b"] is StepState.STARTED
        assert (undone, shop.done["b"], shop.done["c"]) == ([], 1, 0)
        shop.run(shop.receiver.release(run.key("x"), by="ann", why="try again"))
    with pytest.raises(CompensationFailedError):
        shop.run(run("x"))
    shop.run(shop.receiver.skip(run.key("x"), "b", by="ann", why="undone by hand"))
    with pytest.raises(CompensatedError, match="used up"):
        shop.run(run("x"))
    assert (undone, shop.done["b"], shop.done["c"]) == (["a-result"], 1, 0)


@pytest.mark.parametrize("happened", [("b-seen",), None, Boom("the bank does not answer")])
def test_a_probe_says_whether_a_step_in_flight_is_to_be_undone(
    memory_shop: Shop, happened: Any
) -> None:
    shop = memory_shop

    def probe(*_: Any) -> Any:
        if isinstance(happened, Boom) and not asked:
            asked.append(1)
            raise happened
        return None if isinstance(happened, Boom) else happened

    async def probe_async(*_: Any) -> Any:
        return probe()

    asked: list[int] = []
    run, undone = dies_in_flight(shop, probe=probe if shop.mode == "blocking" else probe_async)
    if isinstance(happened, Boom):
        with pytest.raises(CompensationFailedError, match="its probe failed"):
            shop.run(run("x"))
        shop.run(shop.receiver.release(run.key("x"), by="ann", why="the bank is back"))
    with pytest.raises(CompensatedError, match="used up"):
        shop.run(run("x"))
    assert undone == (["b-seen", "a-result"] if happened == ("b-seen",) else ["a-result"])
    assert (shop.done["b"], shop.done["c"]) == (1, 0)


@pytest.mark.parametrize("takeover", ["retry", "hold"])
@pytest.mark.parametrize("probed", [True, False])
def test_a_step_that_its_task_group_cancelled_is_in_doubt(takeover: Any, probed: bool) -> None:
    """Its effect may have happened. A probe answers; under ``hold`` without one, the run is parked."""
    undone: list[str] = []

    async def main() -> None:
        receiver = AsyncReceiver.open("memory://", policy=ONCE.replace(takeover=takeover))
        charged = asyncio.Event()

        async def charge() -> None:
            charged.set()
            await asyncio.Event().wait()

        async def fail() -> None:
            await charged.wait()
            raise Boom

        async def find_charge() -> tuple[str]:
            return ("ch_1",)

        async def refund(charge_id: str) -> None:
            undone.append(charge_id)

        @receiver.durable(key="order", scope=("x",))
        async def checkout(steps: AsyncSteps, order: str) -> None:
            probing = steps.options(probe=find_charge) if probed else steps
            async with asyncio.TaskGroup() as group:
                group.create_task(probing.run("charge", charge, undo=refund))
                group.create_task(steps.run("fail", fail))

        await checkout("a")

    if probed:
        with pytest.raises(CompensatedError):
            asyncio.run(main())
        assert undone == ["ch_1"]
    elif takeover == "hold":
        with pytest.raises(CompensationFailedError, match="it ended with a CancelledError"):
            asyncio.run(main())
    else:  # a step that raises has failed
        with pytest.raises(ExceptionGroup):
            asyncio.run(main())
    assert probed or undone == []


def test_an_undo_that_the_code_lost_parks_the_run(shop: Shop) -> None:
    act, back, stop = shop.effect("act"), shop.effect("back"), shop.effect("stop")
    shop.failing["stop"] = 99
    version = 1

    def run(steps: Any, order: str) -> Any:
        if version == 1:
            yield steps.run("act", act, undo=back)
        yield steps.run("stop", stop)

    run = shop.durable(run, policy=POLICY.replace(max_attempts=2))
    with pytest.raises(Boom):
        shop.run(run("x"))
    shop.clock.advance(ms=10)
    version = 2
    with pytest.raises((CompensationFailedError, Boom)) as raised:
        shop.run(run("x"))
    assert isinstance(raised.value, CompensationFailedError)
    assert shop.done["back"] == 0
    assert shop.run(shop.receiver.record(run.key("x"))).state is State.PARKED


class Renamed:
    """A codec of the next deployment, which cannot read one of the recorded results."""

    def __init__(self) -> None:
        self.unknown = b""

    def encode(self, value: Any, declared: Any = Any) -> bytes:
        return str(value).encode()

    def decode(self, payload: bytes, declared: Any = Any) -> Any:
        if payload == self.unknown:
            raise ValueError("an unknown format")
        return payload.decode()


@pytest.mark.parametrize("changed", ["arguments", "result"])
def test_code_that_does_not_fit_a_run_undoes_nothing(shop: Shop, changed: str) -> None:
    """The order is fine and its deployment is not: the money stays, and an operator decides."""
    charge, back = shop.effect("charge", "paid"), shop.effect("back")
    pack, ship = shop.effect("pack", "box 7"), shop.effect("ship", "sent")
    shop.failing["ship"] = 1
    size, codec = ["small"], Renamed()

    def run(steps: Any, order: str) -> Any:
        yield steps.run("charge", charge, undo=back)
        yield steps.run("pack", pack, size[0])
        return (yield steps.run("ship", ship))

    run = shop.durable(run, policy=POLICY.replace(max_attempts=3, codec=codec))
    with pytest.raises(Boom):
        shop.run(run("x"))
    size[0], codec.unknown = ("large", b"") if changed == "arguments" else ("small", b"box 7")
    for _ in range(2):
        shop.clock.advance(ms=10)
        with pytest.raises(StepMismatchError if changed == "arguments" else CorruptRecordError):
            shop.run(run("x"))
    with pytest.raises(ParkedError):
        shop.run(run("x"))
    size[0], codec.unknown = "small", b""
    shop.run(shop.receiver.release(run.key("x"), by="ann", why="the old version is back"))
    assert shop.run(run("x")) == "sent"
    assert (shop.done["charge"], shop.done["pack"], shop.done["back"]) == (1, 1, 0)


def test_a_mismatch_is_no_reason_to_undo_before_the_last_attempt(shop: Shop) -> None:
    act, stop = shop.effect("act"), shop.effect("stop")
    shop.failing["stop"] = 1
    cents = [5]

    def run(steps: Any, order: str) -> Any:
        yield steps.run("act", act, cents[0])
        yield steps.run("stop", stop)

    run = shop.durable(run)
    with pytest.raises(Boom):
        shop.run(run("x"))
    shop.clock.advance(ms=10)
    cents[0] = 6
    with pytest.raises(StepMismatchError):
        shop.run(run("x"))
    assert shop.run(shop.receiver.record(run.key("x"))).state is State.RELEASED
