"""Connecting an async store on an event loop, before any lease is running.

All callers that wait for an attempt to connect share its result: one attempt for each would take too long.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from ..errors import TwicesafeError

__all__ = ["LoopConnection"]


class LoopConnection:
    """Whether the store is connected on this event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = weakref.ref(loop)
        self.made = False
        self._turn = asyncio.Lock()
        self._tries = 0
        self._error: Exception | None = None

    async def connect(self, store: Any) -> Exception | None:
        """Connect, unless it is connected already; returns the error, if any."""
        if store.immediate:
            self.made = True
        if self.made:
            return None
        tries = self._tries
        async with self._turn:
            if self._tries == tries:
                await self._try(store)
            error = self._error
        return error.again() if isinstance(error, TwicesafeError) else error

    async def _try(self, store: Any) -> None:
        try:
            await store.ready()
        except Exception as error:
            self._error = error
        else:
            self.made, self._error = True, None
        self._tries += 1  # not if it was cancelled: then the next one tries
