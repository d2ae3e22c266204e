"""The test kit: conformance suites for stores, publishers and consumers, crash tests for your handlers.

Names are imported on first use, because some of them need pytest or Hypothesis, which twicesafe itself
does not.

    _conformance/, _publishers/, _sources/    the suites for authors of stores, publishers and sources
    _model              a store against a model, with random requests
    _matrix             `crash_matrix`; `_report`: what it found
    _idempotence        `assert_idempotent`; `_repeating`: repeated deliveries, `_interleaving`: concurrent ones
    _tracing            crash points before the lines of a handler; `_handler_source` finds them
    _killing            real kills; `_simulated_process`: simulated ones; `_trial_keys`: their keys
    _comparison         compares what trials left behind
    _memory_broker      a broker in memory, for consumers; `_clock`: a clock that a test advances
    plugin              fixtures for pytest
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ._clock import FakeClock as FakeClock
    from ._conformance import Place as Place
    from ._conformance import StoreConformance as StoreConformance
    from ._conformance import StoreUnderTest as StoreUnderTest
    from ._conformance import check as check
    from ._crash import Died as Died
    from ._crash import Life as Life
    from ._crash import crash_point as crash_point
    from ._crash import crash_points as crash_points
    from ._idempotence import assert_idempotent as assert_idempotent
    from ._idempotence import assert_idempotent_async as assert_idempotent_async
    from ._matrix import crash_matrix as crash_matrix
    from ._memory_broker import MemoryBroker as MemoryBroker
    from ._model import StoreModel as StoreModel
    from ._publishers import PublisherConformance as PublisherConformance
    from ._publishers import PublisherUnderTest as PublisherUnderTest
    from ._repeating import Delivered as Delivered
    from ._repeating import assert_idempotent_for as assert_idempotent_for
    from ._repeating import deliver_at_least_once as deliver_at_least_once
    from ._repeating import run_twice as run_twice
    from ._report import Matrix as Matrix
    from ._sources import ConsumerConformance as ConsumerConformance
    from ._sources import SourceUnderTest as SourceUnderTest

_HOMES: Final[dict[str, str]] = {
    "ConsumerConformance": "_sources",
    "Delivered": "_repeating",
    "Died": "_crash",
    "FakeClock": "_clock",
    "Life": "_crash",
    "Matrix": "_report",
    "MemoryBroker": "_memory_broker",
    "Place": "_conformance",
    "PublisherConformance": "_publishers",
    "PublisherUnderTest": "_publishers",
    "SourceUnderTest": "_sources",
    "StoreConformance": "_conformance",
    "StoreModel": "_model",
    "StoreUnderTest": "_conformance",
    "assert_idempotent": "_idempotence",
    "assert_idempotent_async": "_idempotence",
    "assert_idempotent_for": "_repeating",
    "check": "_conformance",
    "crash_matrix": "_matrix",
    "crash_point": "_crash",
    "crash_points": "_crash",
    "deliver_at_least_once": "_repeating",
    "run_twice": "_repeating",
}

__all__ = [*_HOMES]  # noqa: PLE0604


if not TYPE_CHECKING:  # a type checker must not believe that every name exists

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
