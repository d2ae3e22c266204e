"""Running a handler under its claim: the same in every runtime.

The claim is active (`current_claim`) only while the handler runs. Whatever the handler raises is
the reply, cancellations and interrupts too: the flow must learn that the attempt is over, so that
tasks and threads that the handler left running see `lost`. The flow's caller raises it afterwards.
"""

from __future__ import annotations

from types import CoroutineType

from .._core.commands import Invoke, Raised, Reply, Returned
from .._core.handler_profile import unfinished
from .._values.context import active

__all__ = ["invoke", "invoke_async"]


def invoke(command: Invoke) -> Reply:
    """Run a blocking handler in the caller's own thread."""
    claim, token = command.claim, None
    if claim is not None:
        claim.outer = active.get()
        token = active.set(claim)
    try:
        value = command.run()
    except BaseException as error:
        return Raised(error)
    finally:
        if token is not None:
            active.reset(token)
    undone = unfinished(value)
    return Returned(value) if undone is None else Raised(undone)


async def invoke_async(command: Invoke) -> Reply:
    """Run an async handler in the caller's own task. It is cancelled when its timeout is over."""
    claim, token = command.claim, None
    if claim is not None:
        claim.outer = active.get()
        token = active.set(claim)
    try:
        value = command.run()
        if type(value) is CoroutineType or hasattr(value, "__await__"):
            if command.timeout is None:
                value = await value
            else:
                import asyncio

                async with asyncio.timeout(command.timeout):
                    value = await value
    except BaseException as error:
        return Raised(error)
    finally:
        if token is not None:
            active.reset(token)
    undone = unfinished(value)
    return Returned(value) if undone is None else Raised(undone)
