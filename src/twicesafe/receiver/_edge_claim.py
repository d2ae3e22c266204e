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
    _is_left = False

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

    def _end_duplicate(self) -> None:
        """What leaving the block does for a duplicate: it holds nothing and records nothing."""
        self._flow_run.end()
        self._flow_run.deliver()


class EdgeClaim(_EdgeClaim, Claim[Any]):
    def enter(self) -> None:
        """Make the claim. That of a duplicate ends at once."""
        self.__enter__()
        if self._held is None:
            self._end_duplicate()

    def leave(self, error: BaseException | None = None) -> None:
        """Close the claim. With an error, the attempt failed. A second call does nothing."""
        if not self._is_left:
            self._is_left = True
            self.__exit__(None, error, None)


class AsyncEdgeClaim(_EdgeClaim, AsyncClaim[Any]):
    async def enter(self) -> None:
        await self.__aenter__()
        if self._held is None:
            self._end_duplicate()

    async def leave(self, error: BaseException | None = None) -> None:
        if not self._is_left:
            self._is_left = True
            await self.__aexit__(None, error, None)


def _is_same_store(one: Any, other: Any) -> bool:
    """True for the same store, also if it was opened twice."""
    return one is other or (
        one is not None and one.url == other.url and bool(other.capabilities.shared)
    )
