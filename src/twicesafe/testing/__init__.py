"""The proof kit, shipped with the package: for authors of stores and publishers, and for users with
handlers.

Names are loaded when asked for, since some of them need pytest and Hypothesis, which the package
itself does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .clock import FakeClock as FakeClock
    from .conformance import Place as Place
    from .conformance import StoreConformance as StoreConformance
    from .conformance import StoreUnderTest as StoreUnderTest
    from .conformance import check as check
    from .crash import Died as Died
    from .crash import Life as Life
    from .crash import crash_point as crash_point
    from .crash import crash_points as crash_points
    from .idempotence import assert_idempotent as assert_idempotent
    from .idempotence import assert_idempotent_async as assert_idempotent_async
    from .matrix import crash_matrix as crash_matrix
    from .model import StoreModel as StoreModel
    from .publishers import PublisherConformance as PublisherConformance
    from .publishers import PublisherUnderTest as PublisherUnderTest
    from .repeating import Delivered as Delivered
    from .repeating import assert_idempotent_for as assert_idempotent_for
    from .repeating import deliver_at_least_once as deliver_at_least_once
    from .repeating import run_twice as run_twice
    from .report import Matrix as Matrix

_HOMES: Final[dict[str, str]] = {
    "Delivered": "repeating",
    "Died": "crash",
    "FakeClock": "clock",
    "Life": "crash",
    "Matrix": "report",
    "Place": "conformance",
    "PublisherConformance": "publishers",
    "PublisherUnderTest": "publishers",
    "StoreConformance": "conformance",
    "StoreModel": "model",
    "StoreUnderTest": "conformance",
    "assert_idempotent": "idempotence",
    "assert_idempotent_async": "idempotence",
    "assert_idempotent_for": "repeating",
    "check": "conformance",
    "crash_matrix": "matrix",
    "crash_point": "crash",
    "crash_points": "crash",
    "deliver_at_least_once": "repeating",
    "run_twice": "repeating",
}

__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
