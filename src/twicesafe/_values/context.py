"""Context: what a running handler may ask about the claim it runs under.

`current_claim()` gives the key, the fence to hand to resources that take each fence once and none
smaller after it (in an inbox it numbers committed records: a run that is rolled back has none), the
attempt and its cause, and `lost`, which turns true *before* the store lets the claim go: when the
lease runs out, and when the attempt ends without an answer, for what it left running.
`key_scope()` names tenant and operation once for all keys made inside it, except absolute ones.
"""

from __future__ import annotations

import contextlib
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from ..errors import LeaseLostError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .clocks import WorkerClock
    from .keys import Key
    from .records import Cause

__all__ = [
    "MARGIN",
    "ActiveClaim",
    "active",
    "current_claim",
    "current_key",
    "key_scope",
    "scope_of_context",
]


MARGIN: Final = 0.1
"""The share of a lease that a worker does not use, so that it stops before the store lets go."""


class ActiveClaim:
    """One won claim, seen from the worker that holds it."""

    __slots__ = (
        "__weakref__",
        "_clock",
        "attempt",
        "cause",
        "expires",
        "fence",
        "gone",
        "key",
        "lease",
        "max_lease",
        "outer",
        "over",
        "owner",
        "pid",
        "renewed",
        "settled",
        "started",
        "store",
    )

    def __init__(
        self,
        key: Key,
        owner: bytes,
        fence: int,
        attempt: int,
        cause: Cause | None,
        started: float,
        lease: float,
        max_lease: float,
        clock: WorkerClock,
    ) -> None:
        self.key = key
        self.owner = owner
        self.fence = fence
        self.attempt = attempt
        self.cause = cause
        self.started = started
        self.renewed = started
        """When the request that the store last granted was sent."""
        self.lease = lease
        self.max_lease = max_lease
        self.expires = started + lease * (1 - MARGIN)
        """The worker's own end of the lease: before the store's."""
        self.gone = False
        """The store said that another owner, or nobody, has the key."""
        self.over = False
        """The attempt ended without an answer to record: the key is given back, or held."""
        self.settled = False
        """The handler ended and the store was told: nothing is left to keep."""
        self.outer: ActiveClaim | None = None
        self.store: Any = None
        """Where it is recorded, if it was made by hand."""
        self.pid = 0
        self._clock = clock

    @property
    def lost(self) -> bool:
        """Stop: somebody else may be running this key by now, or soon."""
        return self.gone or self.over or self._clock() >= self.expires

    @property
    def deadline(self) -> float:
        """`time.monotonic()` at which the lease ends for this worker, unless it is renewed."""
        return time.monotonic() + (self.expires - self._clock())

    def check(self) -> None:
        """Raise `LeaseLostError` if the claim is lost: call it before an effect."""
        if self.lost:
            raise LeaseLostError(
                "this worker's claim is lost: another one may run the key; do no further effect",
                key=self.key,
            )

    def __repr__(self) -> str:
        return f"<claim {self.key.short} fence={self.fence} attempt={self.attempt}>"


active: ContextVar[ActiveClaim | None] = ContextVar("twicesafe_claim", default=None)
_scope: ContextVar[tuple[str, ...]] = ContextVar("twicesafe_scope", default=())


def current_claim() -> ActiveClaim | None:
    """The claim under which this code runs; None outside a handler."""
    return active.get()


def current_key() -> Key | None:
    """The key under which this code runs; `current_key().derive("step")` for what it calls."""
    claim = active.get()
    return None if claim is None else claim.key


@contextlib.contextmanager
def key_scope(*parts: str) -> Iterator[tuple[str, ...]]:
    """Inside, every key that is not absolute gets these scope parts in front (tenant, operation); scopes nest."""
    scope = (*_scope.get(), *parts)
    token = _scope.set(scope)
    try:
        yield scope
    finally:
        _scope.reset(token)


def scope_of_context() -> tuple[str, ...]:
    return _scope.get()
