"""A batch of messages: one call for each message, and one answer for each. No I/O."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from .._core.call import Call
from .._core.commands import Raised
from .._core.consuming.recovery import Recover, decide
from .._core.handler_profile import HandlerProfile
from .._values.keys import Key, KeyLike
from .._values.outcomes import Failure, Outcome
from .._values.settings import expect, is_whole
from ._base import ReceiverBase

__all__ = ["calls_of", "checked_concurrency", "merged"]


def calls_of(
    receiver: ReceiverBase,
    messages: Sequence[Any],
    handler: Callable[..., Any],
    key: Callable[[Any], KeyLike],
    profile: HandlerProfile,
    recover: Recover | None = None,
) -> tuple[list[Call], dict[int, Failure]]:
    """One call per message; a message without a valid key becomes a failure."""
    calls: list[Call] = []
    bad: dict[int, Failure] = {}
    for index, message in enumerate(messages):
        full: Key | None = None
        try:
            full = receiver._delivered_key(key(message))
            run = functools.partial(handler, message)
            calls.append(receiver._call(full, run, profile, (message,), {}))
            if recover is not None:
                calls[-1].decide = decide(recover, message, receiver._resolved)
        except Exception as error:
            bad[index] = Failure(error, full)
    return calls, bad


def merged(
    count: int, calls: list[Call], answers: list[Outcome[Any] | Raised], bad: dict[int, Failure]
) -> list[Outcome[Any] | Failure]:
    good = (
        Failure(answer.error, call.key) if isinstance(answer, Raised) else answer
        for call, answer in zip(calls, answers, strict=True)
    )
    return [bad[index] if index in bad else next(good) for index in range(count)]


def checked_concurrency(given: int) -> int:
    expect(is_whole(given), "concurrency", given, "use 1 or more")
    return given
