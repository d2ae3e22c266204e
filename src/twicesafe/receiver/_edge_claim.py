"""Claims for edges that cannot use a `with` block: HTTP, and the tools of agents.

A server may send the response after the middleware has returned, in another context or in a task of
its own. So an edge calls `enter` and `leave` itself, when the flow (`_core.http.flow`) says so. The
blocking and the async claim have the same methods, so one performer serves both.
"""

from __future__ import annotations

from typing import Any, Final

from .._core.driving import drive, drive_async
from ..events import Event
from ._claim import AsyncClaim, Claim, _Claim

__all__ = ["AsyncEdgeClaim", "EdgeClaim"]

AT_ONCE: Final = 0
"""Milliseconds of retention: the record has expired when the next claim comes."""


class _EdgeClaim(_Claim[Any]):
    is_held_by_caller = _Claim._is_held_by_caller

    leave_context = _Claim._step_out
    """Take the claim out of the current context, without ending it."""

    def notify(self, event: Event) -> None:
        self._receiver._notify(event)


class EdgeClaim(_EdgeClaim, Claim[Any]):
    enter = Claim.__enter__
    leave = Claim._leave

    def withdraw(self) -> None:
        """Release the claim and all it recorded, because nothing was done: to the next claim the key is new."""
        flow = self._releasing(AT_ONCE)
        assert self._flow_run is not None
        drive(flow, self._flow_run.perform)
        self._gave_up()


class AsyncEdgeClaim(_EdgeClaim, AsyncClaim[Any]):
    enter = AsyncClaim.__aenter__
    leave = AsyncClaim._leave

    async def withdraw(self) -> None:
        """Release the claim and all it recorded, because nothing was done: to the next claim the key is new."""
        flow = self._releasing(AT_ONCE)
        assert self._flow_run is not None
        await drive_async(flow, self._flow_run.perform)
        self._gave_up()
