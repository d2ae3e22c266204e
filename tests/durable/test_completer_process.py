"""The completer and what its runs do to its process: forks and exits."""

from __future__ import annotations

import asyncio
import os
import signal
import warnings
from collections.abc import Callable

import pytest

from tests.durable.shop import POLICY
from tests.polling import until
from twicesafe import AsyncReceiver, AsyncSteps, Receiver, State, Steps


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("mode", ["blocking", "async"])
@pytest.mark.parametrize("place", ["function", "step"])
def test_a_child_that_a_run_of_the_completer_forks_does_not_become_a_completer(
    mode: str, place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It would wait for ever, or look for due runs beside its parent."""
    parent, codes = os.getpid(), []

    def fork() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: a fork beside threads
            child = os.fork()
        if child:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            return
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)  # if it waits for ever

    try:
        if mode == "blocking":
            _fork_in_a_run(place, fork)
        else:
            asyncio.run(_fork_in_an_async_run(place, fork))
    finally:
        if os.getpid() != parent:
            os._exit(99)
    assert codes == [1]
    assert "only the parent may end the claim" in capfd.readouterr().err


def _fork_in_a_run(place: str, fork: Callable[[], None]) -> None:
    with Receiver.open("memory://", policy=POLICY) as receiver:

        @receiver.durable(key="order", scope=("forks",))
        def checkout(steps: Steps, order: str) -> None:
            if place == "function":
                fork()
            else:
                steps.run("fork", fork)

        checkout.submit("o")
        with receiver.completer(every=0.01):
            until(lambda: list(receiver.records(state=State.COMPLETED)))


async def _fork_in_an_async_run(place: str, fork: Callable[[], None]) -> None:
    async with AsyncReceiver.open("memory://", policy=POLICY) as receiver:

        async def fork_async() -> None:
            fork()

        @receiver.durable(key="order", scope=("forks",))
        async def checkout(steps: AsyncSteps, order: str) -> None:
            if place == "function":
                fork()
            else:
                await steps.run("fork", fork_async)

        await checkout.submit("o")
        report = await receiver.complete_abandoned()
        assert report.completed == 1


def test_a_run_that_exits_counts_as_failed() -> None:
    with Receiver.open("memory://", policy=POLICY.replace(max_attempts=1)) as receiver:

        @receiver.durable(key="order", scope=("exits",))
        def checkout(steps: Steps, order: str) -> None:
            raise SystemExit(3)

        checkout.submit("o")
        completer = receiver.completer(every=0.01)
        with completer:
            until(lambda: completer._report.failed)
        assert completer._report.found == 1
