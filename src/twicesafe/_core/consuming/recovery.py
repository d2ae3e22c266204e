"""What happens after a failed attempt: a retry, or the dead letters. One rule for every broker.

A handler may decide it by raising `Retry` or `DeadLetter`. For any other error a consumer asks its
``recover=`` function, or `default_recovery`. The decision is made before the attempt is recorded, and the
record follows it. A key is parked when its message goes to the dead letters, and not before.

Attempts count starts of the handler. A crash counts; a redelivery that finds the work in progress or
the store down does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from ..._values.keys import chance, new_owner
from ..._values.settings import Duration, expect, seconds
from ...errors import CompensatedError, text_of
from ..resolved_policy import ResolvedPolicy

__all__ = ["DeadLetter", "Recover", "Retry", "decide", "default_recovery", "until_done"]

ASKED: Final = "the handler asked for a retry"


class Retry(Exception):  # noqa: N818 - a decision, not an error
    """Raise it in a handler: this attempt is over, try again ``after`` seconds.

    Without ``after`` the policy's back-off decides. It counts as an attempt: the last one goes to
    the dead letters.
    """

    def __init__(self, reason: str = "", *, after: Duration | None = None) -> None:
        super().__init__(reason or ASKED)
        self.after = None if after is None else seconds(after, "after")
        expect((self.after or 0) >= 0, "after", after, "use 0 or more seconds")


class DeadLetter(Exception):  # noqa: N818 - a decision, not an error
    """Raise it in a handler: no retry can help, so the message goes to the dead letters now."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler gave up on this message")


Recover: TypeAlias = Callable[[Any, Exception, int], Retry | DeadLetter]
"""(message, error, attempt) → `Retry` or `DeadLetter`. Called after every failed attempt."""


def default_recovery(message: Any, error: Exception, attempt: int) -> Retry | DeadLetter:
    """Retry with the policy's back-off; `decide` makes the last attempt a dead letter. A saga that
    was undone is the answer of its key: no retry can help."""
    return DeadLetter(text_of(error)) if isinstance(error, CompensatedError) else Retry()


def decide(
    recover: Recover, message: Any, policy: ResolvedPolicy
) -> Callable[[Exception, int], Exception]:
    """A function of an error and its attempt: the error that says what happens next."""
    return functools.partial(_decision, recover, message, policy)


def until_done(policy: ResolvedPolicy) -> Callable[[Exception, int], Exception]:
    """As `decide`, for what publishes a dead letter: there is no further place for it, so it is
    always tried again."""
    again = decide(default_recovery, None, policy)

    def decision(error: Exception, attempt: int) -> Exception:
        if isinstance(error, DeadLetter):
            return again(_because(error, Retry(text_of(error))), attempt)
        return again(error, attempt)

    return decision


def _decision(
    recover: Recover, message: Any, policy: ResolvedPolicy, error: Exception, attempt: int
) -> Exception:
    if policy.remember and isinstance(error, policy.remember):
        return error  # recorded as the answer of the key
    if isinstance(error, (Retry, DeadLetter)):
        given, cause = error, error.__cause__
    else:
        given, cause = _asked(recover, message, error, attempt), error
    # What is given may be used for many messages, so it is not changed.
    if isinstance(given, DeadLetter):
        return given if given is error else _because(cause, DeadLetter(text_of(given)))
    if attempt >= policy.max_attempts:
        last = DeadLetter(f"{attempt} attempts failed; the last one: {_said(given, cause)}")
        return _because(cause or given, last)
    after = given.after
    if after is None:
        after = policy.backoff.delay(attempt, chance(new_owner(), attempt))
    return _because(cause, Retry(_said(given, cause), after=after))


def _asked(recover: Recover, message: Any, error: Exception, attempt: int) -> Retry | DeadLetter:
    """The user's decision. If it fails, the attempt has failed like any other."""
    try:
        given: object = recover(message, error, attempt)
    except Exception as broken:
        return Retry(f"recover= raised {type(broken).__qualname__}: {text_of(broken)}")
    if isinstance(given, (Retry, DeadLetter)):
        return given
    return Retry(f"recover= must return Retry or DeadLetter, and returned {type(given).__name__}")


def _because(cause: BaseException | None, decision: Exception) -> Exception:
    decision.__cause__ = cause
    return decision


def _said(error: Exception, cause: BaseException | None) -> str:
    said = "" if cause is None else f"{type(cause).__qualname__}: {text_of(cause)}"
    own = error.args[0] if error.args[0] != ASKED else ""
    return "; ".join(filter(None, (said, own))) or ASKED
