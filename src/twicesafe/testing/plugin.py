"""The pytest plugin. pytest loads it in every run where twicesafe is installed, so it is light: it
imports nothing of its own until a fixture is used.

    def test_charge(assert_idempotent, ledger):
        assert_idempotent(charge, order, snapshot=ledger.lines, setup=ledger.clear)

    def test_takeover(idempotent_receiver, store_clock):
        store_clock.advance(31)         # every lease of 30 s is over; nobody waited
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..receiver import Receiver
    from .clock import FakeClock

__all__ = ["assert_idempotent", "assert_idempotent_async", "idempotent_receiver", "store_clock"]


@pytest.fixture
def store_clock() -> FakeClock:
    """The clock of `idempotent_receiver`'s store: it stands still until you ``advance`` it."""
    from .clock import FakeClock

    return FakeClock()


@pytest.fixture
def idempotent_receiver(store_clock: FakeClock) -> Iterator[Receiver]:
    """A receiver in memory, empty for each test, whose leases and retention follow `store_clock`."""
    from ..receiver import Receiver
    from ..stores.memory import MemoryStore

    with Receiver(MemoryStore(now=store_clock)) as receiver:
        yield receiver


@pytest.fixture
def assert_idempotent() -> Any:
    """`twicesafe.testing.assert_idempotent`, without an import."""
    from .idempotence import assert_idempotent

    return assert_idempotent


@pytest.fixture
def assert_idempotent_async() -> Any:
    """`twicesafe.testing.assert_idempotent_async`, without an import."""
    from .idempotence import assert_idempotent_async

    return assert_idempotent_async
