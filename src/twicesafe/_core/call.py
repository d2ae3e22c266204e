"""A call: one delivery, as `_core` sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from .._values.clocks import WorkerClock
from .._values.keys import Key
from ..events import Event
from .resolved_policy import ResolvedPolicy

__all__ = ["Call", "cause_of"]


class Call(msgspec.Struct, eq=False):
    """One delivery: what to run, under which key, with which policy."""

    key: Key
    run: Callable[[], Any]
    policy: ResolvedPolicy
    declared: Any
    fingerprint: bytes | None
    field_names: Callable[[], Sequence[str]] | None
    clock: WorkerClock
    notify: Callable[[Event], None]
    observed: bool
    looked: bool = False
    """The store was looked at, and had no record of the key (`Store.recall`)."""
    flight: Any = None
    """The flight that this call leads: other callers in this process may wait for its answer."""


def cause_of(error: BaseException) -> str:
    return type(error.__cause__ or error).__name__
