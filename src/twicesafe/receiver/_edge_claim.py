"""Claims for the HTTP edges, which cannot use a `with` block.

A server may send the response after the middleware has returned, in another context or in a task of
its own. So an edge calls `enter` and `leave` itself, when the flow (`_core.http.flow`) says so. The
blocking and the async claim have the same methods, so one performer serves both.
"""

from __future__ import annotations

from typing import Any

from .._values.context import active
from ..events import Event
from ._claim import AsyncClaim, Claim, _Claim

__all__ = ["AsyncEdgeClaim", "EdgeClaim"]


class _EdgeClaim(_Claim[Any]):
    @property
    def is_held_by_caller(self) -> bool:
        """The caller already holds this claim: waiting for it would never end."""
        found, store = active.get(), self._receiver.store
        while found is not None:
            if found.key == self.key and not found.settled and _is_same_store(found.store, store):
                return True
            found = found.outer
        return False

    leave_context = _Claim._step_out
    """Take the claim out of the current context. It does not end."""

    def notify(self, event: Event) -> None:
        self._receiver._notify(event)


class EdgeClaim(_EdgeClaim, Claim[Any]):
    enter = Claim.__enter__
    leave = Claim._leave


class AsyncEdgeClaim(_EdgeClaim, AsyncClaim[Any]):
    enter = AsyncClaim.__aenter__
    leave = AsyncClaim._leave


def _is_same_store(one: Any, other: Any) -> bool:
    """True for the same store, also if it was opened twice."""
    return one is other or (
        one is not None and one.url == other.url and bool(other.capabilities.shared)
    )
