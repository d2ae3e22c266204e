"""The fast path: the usual delivery starts no flow; anything unusual continues in one, at that point.

That both paths do the same, event by event, is shown by the lab (`tests/lab/test_simulation.py`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from twicesafe import AsyncReceiver, Policy, Receiver
from twicesafe._core import delivery, settling
from twicesafe._core.protocol import Request
from twicesafe.errors import StoreUnavailableError
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore


class Flaky(MemoryStore):
    """Loses the replies to some operations, once each."""

    recalls = False

    def __init__(self, *lost: str) -> None:
        super().__init__()
        self.lost = list(lost)

    def perform(self, request: Request) -> Any:
        answer = super().perform(request)
        if request.op in self.lost:
            self.lost.remove(request.op)
            raise StoreUnavailableError("the reply was lost")
        return answer


class AsyncFlaky(AsyncMemoryStore):
    recalls = False


Deliver = Callable[..., Any]


def blocking(store: MemoryStore, policy: Policy, cache: int, handler: Deliver) -> list[Any]:
    with Receiver(store, policy=policy, cache=cache) as receiver:
        return [receiver.process("tx-1", handler).value for _ in range(2)]


def on_a_loop(store: MemoryStore, policy: Policy, cache: int, handler: Deliver) -> list[Any]:
    async def work() -> Any:
        return handler()

    async def main() -> list[Any]:
        async with AsyncReceiver(AsyncFlaky(store), policy=policy, cache=cache) as receiver:
            return [(await receiver.process("tx-1", work)).value for _ in range(2)]

    return asyncio.run(main())


@pytest.fixture(params=[blocking, on_a_loop])
def deliver_twice(request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def flows(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The flows that the fast path started."""
    started: list[str] = []

    def counted(module: Any, name: str) -> None:
        original = getattr(module, name)

        def start(*args: Any, **kwargs: Any) -> Any:
            if "_fast" in sys._getframe(1).f_code.co_name:  # else one flow goes on in another
                started.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, start)

    for name in ("deliver", "admit", "settle", "end_flight"):
        counted(delivery, name)
    for name in ("record_again", "end_flight"):
        counted(settling, name)
    return started


@pytest.mark.parametrize(
    "lost, cache, policy, expected",
    [
        pytest.param((), 0, Policy(), [], id="usual"),
        pytest.param((), 9, Policy(), ["end_flight"], id="the cache gets the recorded answer"),
        pytest.param(("claim",), 0, Policy(), ["admit"], id="an unanswered claim"),
        pytest.param(("complete",), 0, Policy(), ["record_again"], id="an unanswered recording"),
        pytest.param((), 0, Policy(timeout=30), ["deliver"] * 2, id="a timeout"),
        pytest.param(
            (), 0, Policy(outage="run"), ["deliver"] * 2, id="it may run without the store"
        ),
    ],
)
def test_only_the_unusual_starts_a_flow(
    deliver_twice: Callable[..., list[Any]],
    flows: list[str],
    lost: tuple[str, ...],
    cache: int,
    policy: Policy,
    expected: list[str],
):
    runs: list[int] = []

    def handler() -> str:
        runs.append(1)
        return "paid"

    assert deliver_twice(Flaky(*lost), policy, cache, handler) == ["paid", "paid"]
    assert len(runs) == 1
    assert flows == expected


def test_a_handler_that_raises_is_settled_by_the_flow(
    deliver_twice: Callable[..., list[Any]], flows: list[str]
):
    def handler() -> str:
        raise LookupError("no such order")

    with pytest.raises(LookupError):
        deliver_twice(Flaky(), Policy(), 0, handler)
    assert flows == ["settle"]


def claimed(store: MemoryStore, cache: int) -> list[Any]:
    results = []
    with Receiver(store, cache=cache) as receiver:
        for _ in range(2):
            with receiver.claim("tx-1") as claim:
                if claim.is_new:
                    claim.complete("paid")
            results.append(claim.result)
    return results


def claimed_on_a_loop(store: MemoryStore, cache: int) -> list[Any]:
    async def main() -> list[Any]:
        results = []
        async with AsyncReceiver(AsyncFlaky(store), cache=cache) as receiver:
            for _ in range(2):
                async with receiver.claim("tx-1") as claim:
                    if claim.is_new:
                        await claim.complete("paid")
                results.append(claim.result)
        return results

    return asyncio.run(main())


@pytest.mark.parametrize("claim_twice", [claimed, claimed_on_a_loop])
@pytest.mark.parametrize(
    "lost, cache, expected",
    [
        pytest.param((), 0, [], id="usual"),
        pytest.param((), 9, ["end_flight"], id="the cache gets the recorded answer"),
        pytest.param(("claim",), 0, ["admit"], id="an unanswered claim"),
        pytest.param(("complete",), 0, ["record_again"], id="an unanswered recording"),
    ],
)
def test_only_the_unusual_starts_a_flow_of_a_manual_claim(
    claim_twice: Callable[..., list[Any]],
    flows: list[str],
    lost: tuple[str, ...],
    cache: int,
    expected: list[str],
):
    assert claim_twice(Flaky(*lost), cache) == ["paid", "paid"]
    assert flows == expected
