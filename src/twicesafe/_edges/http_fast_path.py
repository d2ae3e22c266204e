"""The usual request on an event loop, as plain calls: the flow of `_core.http.flow` without a generator.

Both functions make the decisions of the flow, in its order, with its functions, and continue in it where
anything unusual happens: the receiver refuses the claim, or the store does not record the response.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from .._core.driving import drive_async
from .._core.http.flow import (
    Asking,
    Exchange,
    PassThrough,
    Respond,
    RunHandler,
    begin,
    claimed,
    identify,
    not_claimed,
)
from .._core.http.message import HttpRequest
from .._core.http.problems import RequestRefused
from .._core.http.rules import Looked
from ..errors import TwicesafeError
from .http_guard import HttpGuard, perform

__all__ = ["admit_fast", "settle_fast"]


async def admit_fast(
    guard: HttpGuard,
    request: HttpRequest,
    read: Callable[..., Awaitable[bytes | None]],
    *words: Any,
) -> PassThrough | Respond | RunHandler | None:
    """`drive_async(guard.admit(request, read), perform)`, in less time. `read` gets `words`."""
    rules = guard.rules
    found = begin(rules, request)
    if not isinstance(found, Looked):
        return found
    try:
        body = await read(*words)
    except RequestRefused as refused:
        return Respond(rules.refuse(request, refused.problem))
    asks = identify(rules, guard.claim, request, found, body)
    if not isinstance(asks, Asking):
        return asks
    try:
        await asks.claim.enter()
    except TwicesafeError as error:
        return await drive_async(not_claimed(rules, asks, error), perform)
    return claimed(rules, asks)


async def settle_fast(exchange: Exchange) -> None:
    """`drive_async(exchange.settle(), perform)`, in less time."""
    command = exchange.ending()
    exchange.settled = True
    try:
        await perform(command)
    except TwicesafeError as error:
        await drive_async(exchange.told(error), perform)
    else:
        if exchange.recording.redact_error is not None:
            await drive_async(exchange.told(None), perform)
