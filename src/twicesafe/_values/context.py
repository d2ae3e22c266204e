"""Context: what a running handler can read about the claim it runs under.

`current_claim()` returns the key, the attempt, its cause and its fence. Pass the fence to resources
that accept each fence only once, and no lower one after it. In an inbox the fence numbers committed
records, so a run that is rolled back has no number. `lost` becomes true when the lease expires, or
when the attempt ends without an answer, *before* the store releases the claim. Tasks that the
handler left running can watch it and stop. `key_scope()` sets tenant and operation for all keys
made in its block, except absolute ones.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from ..errors import LeaseLostError, UsageError
from .keys import Key

if TYPE_CHECKING:
    from collections.abc import Callable

    from .clocks import WorkerClock
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
"""The fraction of a lease that a worker does not use, so that it stops before the lease ends."""


class ActiveClaim(msgspec.Struct, eq=False, weakref=True):
    """One won claim, seen from the worker that holds it."""

    key: Key
    owner: bytes
    fence: int
    attempt: int
    cause: Cause | None
    started: float
    lease: float
    max_lease: float
    clock: WorkerClock
    renewed: float
    """When the last granted claim or renewal request was sent."""
    expires: float
    """The end of the lease for this worker: earlier than in the store."""
    gone: bool = False
    """The store said that this owner no longer has the key."""
    over: bool = False
    """The attempt ended without an answer to record: the key is given back, or held."""
    ending: bool = False
    """The handler ended, and the store is asked to record it: only the answer says whether the claim was lost."""
    settled: bool = False
    """The handler ended and the store was asked to record it: nothing is left to renew."""
    outer: ActiveClaim | None = None
    """The claim that the caller runs under."""
    store: Any = None
    """The store of a manual claim."""
    pid: int = 0
    invoked: float = 0.0
    """When the handler could start, by the worker's clock; only if the call is observed."""
    ended: float = 0.0
    """When the handler ended; only if the call is observed."""
    origin: bytes = b""
    """The trace that this run belongs to, as an observer named it; kept with the result."""

    @property
    def lost(self) -> bool:
        """True: stop, because another worker may be running this key now or soon."""
        return self.gone or self.over or self.clock() >= self.expires

    def _has_ended(self) -> bool:
        # Only what its handler left running may still see this claim.
        return self.settled or self.over

    @property
    def deadline(self) -> float:
        """`time.monotonic()` at which the lease ends for this worker, unless it is renewed."""
        return time.monotonic() + (self.expires - self.clock())

    def check(self) -> None:
        """Raise `LeaseLostError` if the claim is lost: call it before an effect."""
        if self.lost:
            raise LeaseLostError(
                "this worker lost its claim, and another may run the key; stop now",
                key=self.key,
            )

    def _unlink_ended(self) -> None:
        """Drop the claims around this one that have ended. Else a chain of handlers, of which each starts the
        task that runs the next one, would keep all of them.
        """
        claim: ActiveClaim | None = self
        while claim is not None:
            outer = claim.outer
            while outer is not None and outer._has_ended():
                outer = outer.outer
            claim.outer = outer
            claim = outer

    def __repr__(self) -> str:
        return f"<claim {self.key.short} fence={self.fence} attempt={self.attempt}>"


active: ContextVar[ActiveClaim | None] = ContextVar("twicesafe_claim", default=None)
_scope: ContextVar[tuple[str, ...]] = ContextVar("twicesafe_scope", default=())


def current_claim() -> ActiveClaim | None:
    """The claim under which this code runs; None outside a handler."""
    return active.get()


def current_key() -> Key | None:
    """The key under which this code runs, or None; `current_key().derive("step")` for what it calls."""
    claim = active.get()
    return None if claim is None else claim.key


class _ScopeBlock:
    """What `key_scope` returns. It holds no state, so that threads and tasks may share one."""

    __slots__ = ("_parts",)

    def __init__(self, parts: tuple[str, ...]) -> None:
        self._parts = Key("-", parts).scope  # a scope is checked like any other

    def __enter__(self) -> tuple[str, ...]:
        scope = (*_scope.get(), *self._parts)
        _scope.set(scope)
        return scope

    def __exit__(self, *exc: object) -> None:
        scope = _scope.get()
        outer = len(scope) - len(self._parts)
        if scope[max(0, outer) :] != self._parts:
            raise UsageError(
                "a block of key_scope() ended in another thread or task than it began in, so keys in between "
                "may lack its scope; begin and end it in one function, or make the generator async (a blocking "
                "dependency of FastAPI runs in other threads)"
            )
        _scope.set(scope[:outer])

    def __call__(self, function: object) -> NoReturn:
        raise UsageError(
            "key_scope() is no decorator: an async function or a generator would run after its block ended, "
            "without the scope; write `with key_scope(…):` inside the function"
        )


def key_scope(*parts: str) -> _ScopeBlock:
    """Prefix every key in this block, except absolute ones, with these scope parts; scopes nest."""
    return _ScopeBlock(parts)


scope_of_context: Callable[[], tuple[str, ...]] = _scope.get
"""The scope of the enclosing `key_scope()` blocks."""
