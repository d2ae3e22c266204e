"""Running a handler under its claim: the same in every runtime.

The claim is active (`current_claim`) only while the handler runs. Whatever the handler raises is
the reply, cancellations and interrupts too. The flow must learn that the attempt is over, so that
tasks and threads that the handler left running see `lost`. The flow's caller raises it afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from .._core.commands import Raised, Reply, Returned
from .._core.handler_kind import refuse_coroutine
from .._values.context import ActiveClaim, active

if TYPE_CHECKING:
    import asyncio

__all__ = ["invoke", "invoke_async", "time_limit"]

time_limit: ContextVar[asyncio.Timeout | None] = ContextVar("time_limit", default=None)
"""The time-out of the async handler that runs now: it knows whether it was the one that cancelled."""


def invoke(claim: ActiveClaim | None, run: Callable[[], Any]) -> Reply:
    """Run a blocking handler in the caller's own thread."""
    token = None
    if claim is not None:
        claim.outer = active.get()
        token = active.set(claim)
    try:
        value = run()
    except BaseException as error:
        return Raised(error)
    finally:
        if token is not None:
            active.reset(token)
    if type(value) is CoroutineType:
        return Raised(refuse_coroutine(value))
    return Returned(value)


async def invoke_async(
    claim: ActiveClaim | None, run: Callable[[], Any], seconds: float | None = None
) -> Reply:
    """Run an async handler in the caller's own task. It is cancelled after `seconds`."""
    token = None
    if claim is not None:
        claim.outer = active.get()
        token = active.set(claim)
    try:
        value = run()
        if type(value) is CoroutineType or hasattr(value, "__await__"):
            if seconds is None:
                value = await value
            else:
                import asyncio

                async with asyncio.timeout(seconds) as limit:
                    outer = time_limit.set(limit)
                    try:
                        value = await value
                    finally:
                        time_limit.reset(outer)
    except BaseException as error:
        return Raised(error)
    finally:
        if token is not None:
            active.reset(token)
    if type(value) is CoroutineType:
        return Raised(refuse_coroutine(value))
    return Returned(value)
