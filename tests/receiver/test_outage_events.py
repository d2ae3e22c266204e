"""An outage reaches observers and the log once, in whatever way the work was delivered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.receiver.faults import AsyncFaultyStore, FaultyStore, Outage
from twicesafe import AsyncReceiver, Policy, Receiver, events
from twicesafe.errors import StoreUnavailableError
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore

POLICY = Policy(lease=0.3, takeover="hold")


def failing() -> None:
    raise ValueError


def claim(receiver: Receiver, end: Callable[[Any], Any]) -> None:
    with receiver.claim("k") as claim:
        end(claim)


async def claim_async(receiver: AsyncReceiver, end: Callable[[Any], Any]) -> None:
    async with receiver.claim("k") as claim:
        await (end(claim) or _nothing())


async def _nothing() -> None: ...


ENDS: list[tuple[str, Callable[[Any], Any]]] = [
    ("claim", lambda claim: claim.complete(1)),
    ("complete", lambda claim: claim.complete(1)),
    ("abandon", lambda claim: claim.release()),
    ("abandon", lambda claim: None),
    ("fail", lambda claim: claim.hold("unsure")),
]


def told(events_: list[events.Event]) -> list[tuple[str, str]]:
    return [(e.operation, e.error) for e in events_ if isinstance(e, events.StoreFailed)]


@pytest.mark.parametrize("operation, end", ENDS)
def test_a_claim_by_hand(operation: str, end: Callable[[Any], Any], caplog: Any):
    caplog.set_level("WARNING", "twicesafe")
    store, heard = FaultyStore(MemoryStore()), []
    store.before = Outage(operation)
    receiver = Receiver(store, policy=POLICY, observers=[heard.append])
    with pytest.raises(StoreUnavailableError):
        claim(receiver, end)
    assert told(heard) == [(operation, "ConnectionError")]
    assert sum("StoreFailed" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("operation, end", ENDS)
async def test_an_async_claim_by_hand(operation: str, end: Callable[[Any], Any]):
    store, heard = AsyncFaultyStore(AsyncMemoryStore()), []
    store.before = Outage(operation)
    receiver = AsyncReceiver(store, policy=POLICY, observers=[heard.append])
    with pytest.raises(StoreUnavailableError):
        await claim_async(receiver, end)
    assert told(heard) == [(operation, "ConnectionError")]


@pytest.mark.parametrize("operation, runs", [("claim", True), ("complete", True), ("fail", False)])
def test_one_call_and_a_batch(operation: str, runs: bool):
    for many in (False, True):
        store, heard = FaultyStore(MemoryStore()), []
        store.before = Outage(operation)
        receiver = Receiver(store, policy=POLICY, observers=[heard.append])
        handler: Any = (lambda *_: 1) if runs else (lambda *_: failing())
        if many:
            receiver.process_many(["a"], handler, key=str)
        else:
            with pytest.raises((StoreUnavailableError, ValueError)):
                receiver.process("a", handler)
        assert told(heard) == [(operation, "ConnectionError")]
