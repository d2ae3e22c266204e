"""A call: one delivery, as `_core` sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._values.clocks import WorkerClock
from .._values.keys import Key
from ..events import Event
from .resolved_policy import ResolvedPolicy

__all__ = ["Call", "cause_of"]


class Call:
    """One delivery: what to run, under which key, with which policy."""

    __slots__ = (
        "clock",
        "declared",
        "field_names",
        "fingerprint",
        "key",
        "notify",
        "observed",
        "policy",
        "run",
    )

    def __init__(
        self,
        key: Key,
        run: Callable[[], Any],
        policy: ResolvedPolicy,
        declared: Any,
        fingerprint: bytes | None,
        field_names: Callable[[], Sequence[str]] | None,
        clock: WorkerClock,
        notify: Callable[[Event], None],
        observed: bool,
    ) -> None:
        self.key = key
        self.run = run
        self.policy = policy
        self.declared = declared
        self.fingerprint = fingerprint
        self.field_names = field_names
        self.clock = clock
        self.notify = notify
        self.observed = observed


def cause_of(error: BaseException) -> str:
    return type(error.__cause__ or error).__name__
