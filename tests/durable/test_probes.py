"""Probes: what a step's "did it happen?" may answer, and what is done when it gives no answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.durable.shop import POLICY, Boom, Shop
from twicesafe import (
    AsyncReceiver,
    AsyncSteps,
    Backoff,
    CompensatedError,
    CompensationFailedError,
    HeldError,
    LeaseLostError,
    State,
    UsageError,
    current_claim,
)

QUICK = Backoff(first=0.001, most=0.001)


class Interrupt(BaseException):
    pass


class Bank:
    """A saga of two steps: reserve, then charge, whose worker dies in it or whose answer is late."""

    def __init__(self, shop: Shop, answers: list[Any], **options: Any) -> None:
        self.shop, self.answers, self.options = shop, answers, options
        self.dies, self.times_out = False, 0
        self.charged = self.asked = 0
        self.undone: list[Any] = []
        self.policy = POLICY.replace(wait=0, max_attempts=2)

    def charge(self, cents: int) -> str:
        self.charged += 1
        if self.dies:
            claim = current_claim()
            claim.of_run.pid = claim.pid = -1  # type: ignore[union-attr]
        if self.times_out:
            self.times_out -= 1
            raise TimeoutError("no answer")
        return "charged"

    def probe(self, cents: int) -> Any:
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def function(self, act: Any) -> Any:
        async def awaited(*args: Any) -> Any:
            return act(*args)

        return act if self.shop.mode == "blocking" else awaited

    def run(self, probes: bool = True) -> Any:
        charge, undo = self.function(self.charge), self.function(self.undone.append)
        if probes:
            self.options["probe"] = self.function(self.probe)

        def checkout(steps: Any, order: str) -> Any:
            yield steps.run("reserve", self.shop.effect("reserve", "shelf"), undo=undo)
            steps = steps.options(**self.options) if self.options else steps
            return (yield steps.run("charge", charge, 500, undo=undo))

        return self.shop.durable(checkout, policy=self.policy)

    def crashed(self) -> Any:
        """The run, after its first worker died in "charge"."""
        run = self.run()
        self.dies = True
        with pytest.raises(LeaseLostError):
            self.shop.run(run("a"))
        self.dies = False
        self.shop.clock.advance(ms=31_000)
        return run


@pytest.mark.parametrize("answer", ["x", ["found"], {"a": 1}, True, False, 0, (), (1, 2)])
def test_an_answer_that_is_not_a_tuple_of_one_is_refused(memory_shop: Shop, answer: Any) -> None:
    """``(value,) = "x"`` would record a wrong result."""
    bank = Bank(memory_shop, [answer, ("found",)])
    bank.policy = POLICY.replace(wait=0, max_attempts=3)
    run = bank.crashed()
    with pytest.raises(UsageError, match=r"probe of the step 'charge'.*\(result,\)"):
        memory_shop.run(run("a"))
    memory_shop.clock.advance(ms=10)
    assert memory_shop.run(run("a")) == "found"
    assert bank.charged == 1


@pytest.mark.parametrize("wrong", [Boom("the bank is down"), "no tuple"])
def test_a_probe_without_an_answer_at_the_last_attempt_leaves_its_step_in_doubt(
    shop: Shop, wrong: Any
) -> None:
    """The step may have happened, so the run is not remembered as undone."""
    bank = Bank(shop, [wrong, wrong, ("found",)])
    run = bank.crashed()
    with pytest.raises(CompensationFailedError, match="its probe failed") as told:
        shop.run(run("a"))
    assert (told.value.step, bank.undone) == ("charge", [])
    shop.run(shop.receiver.release(run.key("a"), by="ann", why="the bank is back"))
    with pytest.raises(CompensatedError):
        shop.run(run("a"))
    assert (bank.undone, bank.charged) == (["found", "shelf"], 1)


@pytest.mark.parametrize("happened", [("found",), None])
def test_a_step_whose_last_answer_is_late_is_probed_before_the_run_is_undone(
    shop: Shop, happened: Any
) -> None:
    bank = Bank(shop, [happened])
    bank.policy, bank.times_out = POLICY.replace(max_attempts=1), 1
    run = bank.run()
    with pytest.raises(CompensatedError, match="TimeoutError"):
        shop.run(run("a"))
    assert bank.undone == ([*happened, "shelf"] if happened else ["shelf"])


def test_under_hold_a_step_whose_last_answer_is_late_parks_the_run(shop: Shop) -> None:
    bank = Bank(shop, [])
    bank.policy, bank.times_out = POLICY.replace(max_attempts=1, takeover="hold"), 1
    run = bank.run(probes=False)
    with pytest.raises(CompensationFailedError, match="it ended with a TimeoutError"):
        shop.run(run("a"))
    assert bank.undone == []
    shop.run(shop.receiver.skip(run.key("a"), "charge", by="ann", why="undone by hand"))
    with pytest.raises(CompensatedError):
        shop.run(run("a"))
    assert bank.undone == ["shelf"]


@pytest.mark.parametrize("happened", [("found",), None])
def test_between_two_tries_an_unknown_outcome_is_probed(memory_shop: Shop, happened: Any) -> None:
    bank = Bank(memory_shop, [happened], attempts=3, backoff=QUICK)
    bank.times_out = 1
    assert memory_shop.run(bank.run()("a")) == ("found" if happened else "charged")
    assert (bank.charged, bank.asked) == (1 if happened else 2, 1)


def test_under_hold_an_unknown_outcome_is_not_tried_again(memory_shop: Shop) -> None:
    shop = memory_shop
    bank = Bank(shop, [], attempts=3, backoff=QUICK)
    bank.policy, bank.times_out = POLICY.replace(max_attempts=2, takeover="hold"), 1
    run = bank.run(probes=False)
    with pytest.raises(TimeoutError):
        shop.run(run("a"))
    shop.clock.advance(ms=10)
    with pytest.raises(HeldError):
        shop.run(run("a"))
    assert bank.charged == 1


def test_an_interrupt_in_a_probe_leaves_the_undoing_to_the_next_worker(memory_shop: Shop) -> None:
    shop = memory_shop
    bank = Bank(shop, [Boom("down"), Interrupt(), ("found",)])
    run = bank.crashed()
    with pytest.raises(Interrupt):
        shop.run(run("a"))
    assert shop.run(shop.receiver.record(run.key("a"))).state is State.RELEASED
    with pytest.raises(CompensatedError):
        shop.run(run("a"))
    assert bank.undone == ["found", "shelf"]


def test_the_time_out_of_a_step_holds_for_its_probe() -> None:
    never = asyncio.Event()

    async def charge() -> str:
        claim = current_claim()
        claim.of_run.pid = claim.pid = -1  # type: ignore[union-attr]
        return "charged"

    async def probe() -> None:
        await never.wait()

    async def main() -> None:
        receiver = AsyncReceiver.open("memory://", policy=POLICY.replace(lease=0.05, wait=30))

        @receiver.durable(key="order", scope=("x",))
        async def checkout(steps: AsyncSteps, order: str) -> str:
            return await steps.options(probe=probe, timeout=0.01).run("charge", charge)

        with pytest.raises(LeaseLostError):
            await checkout("a")
        with pytest.raises(TimeoutError):
            await checkout("a")
        await receiver.close()

    asyncio.run(main())


def test_a_step_that_is_cancelled_before_its_next_try_stays_in_doubt() -> None:
    """It timed out, and its run fails in another branch: the probe is asked before the run is undone."""

    async def main() -> None:
        receiver = AsyncReceiver.open("memory://", policy=POLICY.replace(max_attempts=1))
        happened, undone, tried = [], [], asyncio.Event()

        async def charge() -> str:
            happened.append("charged")
            tried.set()
            raise TimeoutError

        async def refund(value: str) -> None:
            undone.append(value)

        async def fail() -> None:
            await tried.wait()
            await asyncio.sleep(0)
            raise ValueError

        @receiver.durable(key="order", scope=("shop",))
        async def checkout(steps: Any, order: str) -> None:
            tries = steps.options(
                attempts=2, backoff=Backoff(first=60, most=60), probe=lambda: ("charged",)
            )
            async with asyncio.TaskGroup() as group:
                group.create_task(tries.run("charge", charge, undo=refund))
                group.create_task(fail())

        with pytest.raises(CompensatedError):
            await checkout("o")
        assert (happened, undone) == (["charged"], ["charged"])

    asyncio.run(main())
