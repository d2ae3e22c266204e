"""Dramatiq: a middleware that lets every actor run once per message, even if the broker delivers it again.

    broker.add_middleware(IdempotentActors(receiver))

    @dramatiq.actor(idempotency_key=lambda order: order["id"])     # default: the message id
    def charge(order): ...

    @dramatiq.actor(idempotent=False)                              # not this one

The middleware wraps the actor's function: an error in ``before_process_message`` would only be logged,
and the actor would run without its claim. So a repeat has a result, too. Verdicts become what Dramatiq
does:

    ack            the actor returns the recorded result
    retry          a failed attempt raises what the actor raised: Dramatiq's `Retries` decide.
                   Work in progress elsewhere, or a store that is down: the message is enqueued
                   again with a delay, and Dramatiq's retries are not used up
    dead_letter    the message fails as after its last retry: the broker keeps it in its dead letters, and
                   Dramatiq tells the actors of ``on_failure`` and ``on_retry_exhausted``
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NoReturn

from .._core.consuming.verdicts import Verdict
from .._values.drivers import driver
from .._values.keys import Key, KeyLike
from ..receiver import Receiver
from ..receiver._base import check_key, check_receiver
from ..receiver._queue_delivery import (
    attempt_error,
    delivery,
    policy_for_redelivery,
    queue_decides,
    result_of,
    verdict_on,
)

with driver("dramatiq"):
    from dramatiq import Actor, Broker, Middleware
    from dramatiq.broker import MessageProxy
    from dramatiq.middleware import Retries, SkipMessage
    from dramatiq.worker import Worker

__all__ = ["IdempotentActors"]

_current: ContextVar[MessageProxy | None] = ContextVar("twicesafe.dramatiq", default=None)
"""The message that this worker thread is about to hand to its actor."""

_given_up: ContextVar[Exception | None] = ContextVar("twicesafe.dramatiq.given_up", default=None)
"""The error after which this worker thread's message must not be retried."""


class IdempotentActors(Middleware):
    """Add it to a broker: its actors run once per message id, or per ``idempotency_key``."""

    def __init__(self, receiver: Receiver) -> None:
        check_receiver(receiver, Receiver, type(self).__name__)
        policy = policy_for_redelivery(receiver.policy, "task queues")
        self.receiver = receiver.options(policy=policy)

    @property
    def actor_options(self) -> set[str]:
        return {"idempotent", "idempotency_key"}

    def after_declare_actor(self, broker: Broker, actor: Actor[Any, Any]) -> None:
        if actor.options.get("idempotent", True) and not hasattr(actor.fn, "idempotent"):
            actor.fn = self._wrapped(broker, actor)
            asked = actor.options.get("retry_when") or _retry_when_of(broker)
            if asked is not None:
                actor.options["retry_when"] = _unless_given_up(asked)

    def before_worker_boot(self, broker: Broker, worker: Worker) -> None:
        for actor in broker.actors.values():  # those that were declared before this was added
            self.after_declare_actor(broker, actor)

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        _current.set(message)
        _given_up.set(None)

    def _wrapped(self, broker: Broker, actor: Actor[Any, Any]) -> Callable[..., Any]:
        function: Callable[..., Any] = actor.fn
        key: Callable[..., KeyLike] | None = actor.options.get("idempotency_key")
        check_key(key)
        owner = self.receiver.options(scope=(*self.receiver.scope, actor.actor_name))

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            message = _current.get()
            _current.set(None)
            if message is None or message.actor_name != actor.actor_name:
                return function(*args, **kwargs)  # called as a function, not by a worker

            def make() -> Any:
                given = Key(message.message_id) if key is None else key(*args, **kwargs)
                return delivery(owner, given, queue_decides, message, function, args, kwargs)

            verdict = verdict_on(owner, make)
            if verdict.action == "ack":
                return result_of(verdict)
            _act(broker, message, verdict)

        run.idempotent = True  # type: ignore[attr-defined]
        return run


def _act(broker: Broker, message: MessageProxy, verdict: Verdict[Any]) -> NoReturn:
    error = attempt_error(verdict)
    if error is None:
        wait = verdict.retry_after or 0
        broker.enqueue(message, delay=round(wait * 1000))  # type: ignore[arg-type]
        message.options["store_results"] = False  # of this delivery: the next one has the result
        raise SkipMessage(f"not now, again in {wait:g} seconds: {verdict.error}")
    if verdict.action == "dead_letter":
        # No retry can help. `throws` would say so, too, but callbacks get the options as JSON.
        message.options["max_retries"] = 0
        _given_up.set(error)
        message.fail()
    raise error


def _retry_when_of(broker: Broker) -> Callable[[int, BaseException], bool] | None:
    for one in broker.middleware:
        if isinstance(one, Retries):
            return one.retry_when
    return None


def _unless_given_up(
    asked: Callable[[int, BaseException], bool],
) -> Callable[[int, BaseException], bool]:
    """Dramatiq asks this function instead of `max_retries`."""

    def retry_when(retries: int, error: BaseException) -> bool:
        return error is not _given_up.get() and asked(retries, error)

    return retry_when
