"""A call: one delivery, as `_core` sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Any

import msgspec

from .._values.clocks import WorkerClock
from .._values.keys import Key
from ..events import Event
from ..events._notifying import CarefulTracer
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
    observed: Sized | bool
    """The observers; false if there are none."""
    looked: bool = False
    """The store has just answered that the key is new (`Store.recall`)."""
    decide: Callable[[Exception, int], Exception] | None = None
    """Of the handler's error and its attempt: the error that says what happens next, for a message
    of a consumer (`consuming.recovery`)."""
    cut_off: tuple[type[BaseException], ...] = (TimeoutError,)
    """Errors that end the handler wherever it is, so its outcome is unknown."""
    spent: int = 0
    """Attempts that are counted elsewhere: those of an inbox's message whose worker died."""
    flight: Any = None
    """The flight that this call leads: other callers in this process may wait for its answer."""
    claimed_in: float | None = None
    """Seconds until the store answered the claim with the recorded answer."""
    durable: Any = None
    """Of a durable run: its `RunCall`."""
    tracer: CarefulTracer | None = None
    """Names the trace of a manual claim; only if it is observed. Handlers are wrapped instead."""


def cause_of(error: BaseException) -> str:
    return type(error.__cause__ or error).__name__
