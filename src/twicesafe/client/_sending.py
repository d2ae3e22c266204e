"""One call with all its retries, as a flow of commands: it decides, and the libraries do the I/O.

    SendAttempt(seconds)         send the request, within this time. Reply: ResponseSummary or Unanswered
    RetryPause(seconds, answer)  close that answer, then wait. Reply: nothing, or Unanswered if the library's
                                 time for the whole call is over

`drive` or `drive_async` runs the flow, so that every library, blocking or async, follows the same
rules. Errors that are not about the network (a bug, a cancellation) pass through it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias

import msgspec

from .._core.http.key_field import BadKey, field_of, parse_key, require_key
from .._values.clocks import WorkerClock, since_boot
from .._values.context import current_key
from .._values.keys import Key
from .._values.settings import seconds
from ..errors import InvalidKeyError
from ..propagation import numbered, outgoing_key
from ._budget import Budget
from ._final_answers import ResponseSummary, Unanswered, is_final, is_replay, retry_after
from ._policy import RetryPolicy
from ._sent import End, Sent

__all__ = [
    "SAFE",
    "CallEnded",
    "KeyedRequest",
    "RetryPause",
    "SendAttempt",
    "Sending",
    "call_of",
    "send",
]

SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"})


class SendAttempt(msgspec.Struct, frozen=True):
    seconds: float


class RetryPause(msgspec.Struct, frozen=True):
    seconds: float
    answer: ResponseSummary | None


class CallEnded(msgspec.Struct, frozen=True):
    reply: ResponseSummary | Unanswered
    sent: Sent


Sending: TypeAlias = Generator[
    SendAttempt | RetryPause, ResponseSummary | Unanswered | None, CallEnded
]


class KeyedRequest(msgspec.Struct, frozen=True):
    """A request that has a key."""

    key: str
    field: str | None
    """The value of the key header; None: the caller has set it."""
    fresh: bool
    """The key was made for this call: no other caller can have used it."""

    def __repr__(self) -> str:
        return f"<KeyedRequest {Key(self.key).short}>"


def call_of(
    policy: RetryPolicy, method: str, path: str, headers: Iterable[tuple[str, str]]
) -> KeyedRequest | None:
    """The call for a request; None: it needs no key and is sent unchanged."""
    if method in SAFE:
        return None
    http = policy.http
    names = {name.lower() for name in http.key_fields}
    given = [value.encode("utf-8", "replace") for name, value in headers if name.lower() in names]
    try:
        if given:
            return KeyedRequest(
                parse_key(given, strict=http.strict, most=http.max_key), None, False
            )
        if method not in http.methods:
            return None
        inside = policy.propagate and current_key() is not None
        key = (
            outgoing_key(numbered(f"{method} {path}"), policy=http)
            if inside
            else require_key(policy.new_key(), http.max_key)
        )
    except BadKey as bad:
        raise InvalidKeyError(f"{http.header}: {bad}; nothing was sent") from None
    return KeyedRequest(key, field_of(key, strict=http.strict), not inside)


def send(
    call: KeyedRequest,
    policy: RetryPolicy,
    budget: Budget,
    rewind: Callable[[], bool],
    *,
    now: WorkerClock = since_boot,
    wall: WorkerClock = time.time,
    chance: Callable[[], float] = random.random,
) -> Sending:
    """One call. `rewind` prepares the body for a retry; False: it cannot be sent again."""
    begun = now()
    deadline = seconds(policy.deadline)
    budget.earn()
    number = 0
    while True:
        number += 1
        reply = yield SendAttempt(max(0.001, begun + deadline - now()))
        assert reply is not None
        replayed = False
        wait = policy.backoff.delay(number, chance())
        if isinstance(reply, ResponseSummary):
            replayed = is_replay(reply, policy)
            running = number > 1 or not call.fresh
            if is_final(reply, policy, may_be_running=running):
                return CallEnded(reply, Sent(call.key, number, replayed, "answered"))
            wait += retry_after(reply.headers, wall())
        elif reply.final:
            return CallEnded(reply, Sent(call.key, number, False, "error"))
        end: End | None = None
        if number >= policy.attempts:
            end = "attempts"
        elif now() - begun + wait >= deadline:
            end = "deadline"
        elif (isinstance(reply, ResponseSummary) or reply.sent) and not rewind():
            end = "body"
        elif not budget.spend():
            end = "budget"
        if end is not None:
            return CallEnded(reply, Sent(call.key, number, replayed, end))
        stopped = yield RetryPause(wait, reply if isinstance(reply, ResponseSummary) else None)
        if stopped is not None:
            return CallEnded(stopped, Sent(call.key, number, replayed, "error"))
