"""RetryPolicy: how a client retries, checked when it is made.

    RetryPolicy()                                     the IETF draft's header
    RetryPolicy(http=HttpPolicy.stripe())             header, methods and marker of a profile
    RetryPolicy(attempts=3, deadline=10)

What is about the wire (header, methods, marker, longest key, quotes) is the server's `HttpPolicy`:
say it once and give it to both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self

from .._core.http.policy import HttpPolicy
from .._values.keys import Key
from .._values.policy import Backoff, Duration, refuse_unknown, seconds
from ..errors import ConfigurationError

__all__ = ["TRY_AGAIN", "RetryPolicy"]

TRY_AGAIN: Final = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses after which the same request may succeed."""

_DRAFT: Final = HttpPolicy()
_FULL_JITTER: Final = Backoff(first=0.2, factor=2, most=10, jitter=1)


def _fresh() -> str:
    return Key.random().value


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How a client retries. Immutable; `replace` makes variants."""

    http: HttpPolicy = _DRAFT
    """What server and client agree on: header, methods, marker of a replay, form of keys."""
    attempts: int = 6
    """How often a call is sent at most, the first time included."""
    deadline: Duration = 60
    """How long a call may take with its waits; no attempt begins, and no wait ends, after it."""
    backoff: Backoff = _FULL_JITTER
    """The wait before a retry: any part of it (full jitter), on top of what Retry-After says."""
    retry_on: frozenset[int] = TRY_AGAIN
    """Statuses that are retried, unless the answer says otherwise."""
    buffer: int = 1_048_576
    """So much of an answer is read before it is handed over: one that is cut there is retried. A
    longer one and an event stream are handed over as they come, and a cut is the caller's to see."""
    new_key: Callable[[], str] = _fresh
    """Makes the key of a call that has none."""
    propagate: bool = True
    """Inside a protected request or message, derive the key from the current one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "deadline", seconds(self.deadline, "deadline"))
        statuses: object = self.retry_on
        several = isinstance(statuses, Iterable) and not isinstance(statuses, (str, bytes))
        _require(several, "retry_on", statuses, "use a set of statuses")
        object.__setattr__(self, "retry_on", frozenset(self.retry_on))
        _check(self)

    def replace(self, **changes: Any) -> Self:
        """This policy with some settings changed."""
        refuse_unknown(changes, [field.name for field in fields(self)], "retry")
        return replace(self, **changes)


def _require(holds: object, name: str, value: object, remedy: str) -> None:
    if not holds:
        raise ConfigurationError(f"{name}={value!r} makes no sense: {remedy}")


def _check(policy: RetryPolicy) -> None:
    _require(isinstance(policy.http, HttpPolicy), "http", policy.http, "use an HttpPolicy(…)")
    _require(policy.http.header, "http", "…", "it has no header to send a key in")
    _require(isinstance(policy.backoff, Backoff), "backoff", policy.backoff, "use a Backoff(…)")
    for name, least in (("attempts", 1), ("buffer", 0)):
        value = getattr(policy, name)
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
        _require(whole, name, value, f"use a whole number, {least} or more")
    deadline = seconds(policy.deadline)
    _require(deadline > 0, "deadline", policy.deadline, "use a positive number of seconds")
    for status in policy.retry_on:
        _require(status in range(400, 600), "retry_on", status, "use statuses from 400 to 599")
    _require(callable(policy.new_key), "new_key", policy.new_key, "use a callable")
    known = isinstance(policy.propagate, bool)
    _require(known, "propagate", policy.propagate, "use True or False")
