"""The pytest plugin: fixtures for the test kit.

pytest loads it in every run where twicesafe is installed. So it imports no more than `import twicesafe`
does, until a fixture is used.

    def test_charge(assert_idempotent, ledger):
        assert_idempotent(charge, order, snapshot=ledger.lines, setup=ledger.clear)

    def test_charge_at_every_line(crash_matrix, ledger):
        crash_matrix(charge, order, snapshot=ledger.lines, setup=ledger.clear, lines=True).check()

    @pytest.mark.twicesafe(takeover="hold")     # settings of a Policy, for both fixtures below
    def test_takeover(idempotent_receiver, store_clock):
        store_clock.advance(31)         # every lease of 30 s has expired, without waiting
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .._values.policy import Policy
    from ..receiver import Receiver
    from ._clock import FakeClock

__all__ = [
    "assert_idempotent",
    "assert_idempotent_async",
    "assert_idempotent_for",
    "crash_matrix",
    "deliver_at_least_once",
    "idempotent_receiver",
    "run_twice",
    "store_clock",
]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "twicesafe(**settings): the Policy of the fixtures idempotent_receiver and crash_matrix",
    )


@pytest.fixture
def store_clock() -> FakeClock:
    """The clock of the store of `idempotent_receiver`. It does not move until you ``advance`` it."""
    from ._clock import FakeClock

    return FakeClock()


@pytest.fixture
def idempotent_receiver(
    request: pytest.FixtureRequest, store_clock: FakeClock
) -> Iterator[Receiver]:
    """A receiver in memory, empty for each test, whose leases and retention follow `store_clock`."""
    from ..receiver import Receiver
    from ..stores.memory import MemoryStore

    with Receiver(MemoryStore(now=store_clock), policy=_marked(request)) as receiver:
        yield receiver


def _marked(request: pytest.FixtureRequest) -> Policy | None:
    from .._values.policy import Policy

    mark = request.node.get_closest_marker("twicesafe")
    if mark is not None and mark.args:
        raise pytest.UsageError(
            f"the mark twicesafe takes named settings, such as takeover='hold', not {mark.args}"
        )
    return None if mark is None else Policy(**mark.kwargs)


@pytest.fixture
def assert_idempotent() -> Any:
    """`twicesafe.testing.assert_idempotent`, without an import."""
    from ._idempotence import assert_idempotent

    return assert_idempotent


@pytest.fixture
def assert_idempotent_async() -> Any:
    """`twicesafe.testing.assert_idempotent_async`, without an import."""
    from ._idempotence import assert_idempotent_async

    return assert_idempotent_async


@pytest.fixture
def crash_matrix(request: pytest.FixtureRequest) -> Any:
    """`twicesafe.testing.crash_matrix`, under the policy of the mark ``twicesafe``, if there is one."""
    from ._matrix import crash_matrix

    return functools.partial(crash_matrix, policy=_marked(request))


@pytest.fixture
def run_twice() -> Any:
    """`twicesafe.testing.run_twice`, without an import."""
    from ._repeating import run_twice

    return run_twice


@pytest.fixture
def deliver_at_least_once() -> Any:
    """`twicesafe.testing.deliver_at_least_once`, without an import."""
    from ._repeating import deliver_at_least_once

    return deliver_at_least_once


@pytest.fixture
def assert_idempotent_for() -> Any:
    """`twicesafe.testing.assert_idempotent_for`, without an import."""
    from ._repeating import assert_idempotent_for

    return assert_idempotent_for
