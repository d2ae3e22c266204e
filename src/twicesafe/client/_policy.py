"""RetryPolicy: how a client retries. Settings are checked when it is created.

    RetryPolicy()                                     the IETF draft's header
    RetryPolicy(http=HttpPolicy.stripe())             header, methods and marker of a profile
    RetryPolicy(attempts=3, deadline=10)

The settings of the HTTP exchange (header, methods, marker, longest key, quotes) are the server's
`HttpPolicy`. Define it once and use it on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from .._core.http.policy import HttpPolicy
from .._values.keys import Key
from .._values.policy import Backoff
from .._values.settings import Duration, expect, is_whole, seconds, suggesting
from ..signing import KeySigner

__all__ = ["TRY_AGAIN", "RetryPolicy", "policy_of"]

TRY_AGAIN: Final = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses after which the same request may succeed."""

_DRAFT: Final = HttpPolicy()
_FULL_JITTER: Final = Backoff(first=0.2, factor=2, most=10, jitter=1)


def _fresh() -> str:
    return Key.random().value


@suggesting("retry setting")
@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How a client retries. Immutable; `replace` makes variants."""

    http: HttpPolicy = _DRAFT
    """What server and client agree on: header, methods, replay marker, key format."""
    attempts: int = 6
    """The most times a call is sent, including the first."""
    deadline: Duration = 60
    """How long a call may take, including the waits between attempts."""
    backoff: Backoff = _FULL_JITTER
    """The wait before a retry, with full jitter, added to Retry-After."""
    retry_on: frozenset[int] = TRY_AGAIN
    """Statuses that are retried, unless the answer says otherwise."""
    buffer: int = 1_048_576
    """Answers up to this many bytes are read before they are returned; if one is cut, the call is retried.
    A longer answer or an event stream is returned unread; if it is cut, the caller gets the error."""
    new_key: Callable[[], str] = _fresh
    """Makes the key of a call that has none."""
    propagate: bool = True
    """While a protected request or message is handled, derive the key from its key."""

    signer: KeySigner | None = None
    """Signs the keys, for servers that require it; the signature is sent beside the key."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "deadline", seconds(self.deadline, "deadline"))
        statuses: object = self.retry_on
        several = isinstance(statuses, Iterable) and not isinstance(statuses, (str, bytes))
        expect(several, "retry_on", statuses, "use a set of statuses")
        object.__setattr__(self, "retry_on", frozenset(self.retry_on))
        _check(self)

    def replace(self, **changes: Any) -> Self:
        """This policy with some settings changed."""
        return replace(self, **changes)


def policy_of(given: RetryPolicy | None) -> RetryPolicy:
    """The policy that a client was given, or the default one."""
    if given is None:
        return RetryPolicy()
    expect(isinstance(given, RetryPolicy), "policy", given, "use a RetryPolicy(…)")
    return given


def _check(policy: RetryPolicy) -> None:
    expect(isinstance(policy.http, HttpPolicy), "http", policy.http, "use an HttpPolicy(…)")
    expect(policy.http.header, "http", "…", "it has no header, so the key cannot be sent")
    expect(isinstance(policy.backoff, Backoff), "backoff", policy.backoff, "use a Backoff(…)")
    for name, least in (("attempts", 1), ("buffer", 0)):
        value = getattr(policy, name)
        expect(is_whole(value, least), name, value, f"use a whole number, {least} or more")
    deadline = seconds(policy.deadline)
    expect(deadline > 0, "deadline", policy.deadline, "use a positive number of seconds")
    for status in policy.retry_on:
        expect(status in range(400, 600), "retry_on", status, "use statuses from 400 to 599")
    signer = policy.signer
    signs = signer is None or isinstance(signer, KeySigner)
    expect(signs, "signer", type(signer).__qualname__, "use a KeySigner")
    expect(callable(policy.new_key), "new_key", policy.new_key, "use a callable")
    known = isinstance(policy.propagate, bool)
    expect(known, "propagate", policy.propagate, "use True or False")
