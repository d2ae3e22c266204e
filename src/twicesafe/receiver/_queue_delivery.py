"""Deliveries for queues: each ends in a verdict. Message handlers, task queues and functions share this.

policy_for_redelivery    the policy of work that its queue delivers again
delivery                 a call of the work, with the decision after a failed attempt
verdict_on, verdicts_on  run it, and say what to tell the queue: nothing is raised
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from .._core.batch import deliver_many
from .._core.call import Call
from .._core.consuming.recovery import DeadLetter, Recover, Retry, decide
from .._core.consuming.verdicts import Verdict, verdict_of
from .._core.handler_kind import refuse_generator
from .._core.handler_profile import HandlerProfile, profile_of
from .._values.keys import KeyLike
from .._values.outcomes import Failure, Outcome
from .._values.policy import Policy
from ..errors import ConfigurationError
from ._base import value_or_raise
from ._batches import calls_of, merged

if TYPE_CHECKING:
    from ._receiver import AsyncReceiver, Receiver

__all__ = [
    "attempt_error",
    "delivery",
    "pause_of",
    "policy_for_redelivery",
    "queue_decides",
    "result_of",
    "verdict_on",
    "verdict_on_async",
    "verdicts_on",
]


LONGEST_PAUSE: Final = 2.0


def policy_for_redelivery(policy: Policy, what: str) -> Policy:
    """This policy for work that its queue delivers again: a duplicate is rejected, not kept waiting."""
    if policy.outage == "run":
        raise ConfigurationError(
            f"outage='run' is not for {what}: while the store is down, the broker keeps the "
            "message, so there is no need to run it unprotected; use outage='refuse'"
        )
    return policy.replace(in_flight="reject")


def queue_decides(message: Any, error: Exception, attempt: int) -> Retry | DeadLetter:
    """Retry at once: the task queue itself decides when it delivers again, and how often."""
    return Retry(after=0)


def delivery(
    receiver: Receiver | AsyncReceiver,
    key: KeyLike | None,
    recover: Recover,
    message: Any,
    function: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    run: Callable[[], Any] | None = None,
    *,
    cut_off: tuple[type[Exception], ...] = (),
) -> Call:
    """The call of ``function(*args, **kwargs)`` under this key; ``recover`` gets the message.

    ``run``: what to run instead, if the queue has its own way to call the function. ``cut_off``:
    the errors by which the queue ends a function that takes too long.
    """
    given = kwargs or {}
    profile = profile_of(function)
    if profile.problem == "generator":
        raise refuse_generator(function)
    run = run or functools.partial(function, *args, **given)
    call = receiver._call(receiver._delivered_key(key), run, profile, args, given)
    call.decide = decide(recover, message, receiver._resolved)
    call.cut_off += cut_off
    return call


def result_of(verdict: Verdict[Any]) -> Any:
    """The result to return for "ack". A result that was not kept is None for every repeat."""
    if verdict.outcome is not None:
        return verdict.outcome.value
    return getattr(verdict.error, "value", None)


def attempt_error(verdict: Verdict[Any]) -> Exception | None:
    """For a queue with its own retries: what to raise. None: nothing failed, or the handler raised
    `Retry`; deliver again after ``verdict.retry_after``."""
    error = verdict.error
    assert error is not None
    cause = error.__cause__
    if isinstance(error, (Retry, DeadLetter)) and isinstance(cause, Exception):
        return cause
    return None if verdict.action == "retry" else error


def pause_of(verdict: Verdict[Any]) -> float:
    """Seconds to wait before a message is given back to a queue without delays. The worker itself
    waits, so the time is short."""
    return min(verdict.retry_after or 0.0, LONGEST_PAUSE)


def verdict_on(receiver: Receiver, make: Callable[[], Call]) -> Verdict[Any]:
    """Deliver the call that `make` returns; an error of `make` is a verdict, too."""
    try:
        call = make()
    except Exception as error:
        return _unusable(error)
    try:
        return verdict_of(receiver._known(call) or value_or_raise(receiver._runtime.run(call)))
    except Exception as error:
        return verdict_of(error)


async def verdict_on_async(receiver: AsyncReceiver, make: Callable[[], Call]) -> Verdict[Any]:
    """Async version of `verdict_on`."""
    try:
        call = make()
    except Exception as error:
        return _unusable(error)
    try:
        known = receiver._known(call)
        return verdict_of(known or value_or_raise(await receiver._runtime.run(call)))
    except Exception as error:
        return verdict_of(error)


def verdicts_on(
    receiver: Receiver,
    messages: Sequence[Any],
    handler: Callable[[Any], Any],
    *,
    key: Callable[[Any], KeyLike],
    profile: HandlerProfile,
    recover: Recover,
    concurrency: int,
) -> list[Verdict[Any]]:
    """One verdict per message, in order; claimed and recorded together, as by `process_many`."""
    calls, bad = calls_of(receiver, messages, handler, key, profile, recover)
    answers = receiver._runtime.run(deliver_many(calls, concurrency)) if calls else []
    outcomes = merged(len(messages), calls, answers, bad)
    return [
        _unusable(bad[index].error) if index in bad else _verdict(one)
        for index, one in enumerate(outcomes)
    ]


def _unusable(error: BaseException) -> Verdict[Any]:
    """The message has no usable key, or its content cannot be compared: no redelivery can help."""
    assert isinstance(error, Exception)
    return Verdict("dead_letter", error=error)


def _verdict(one: Outcome[Any] | Failure) -> Verdict[Any]:
    if not isinstance(one, Failure):
        return verdict_of(one)
    assert isinstance(one.error, Exception)  # an interrupt or an exit ends the whole batch
    return verdict_of(one.error)
