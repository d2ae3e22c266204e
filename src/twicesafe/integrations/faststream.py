"""FastStream: a middleware that lets every subscriber handle a message once, on any of its brokers.

    broker = RedisBroker(middlewares=[IdempotentMessages(receiver)])       # an AsyncReceiver

    @broker.subscriber("orders")
    async def charge(order: Order) -> str: ...

Keys are made as by consumers: the header ``idempotency-key``, CloudEvents, the id that the producer gave
(``message_id``, ``Nats-Msg-Id``), or the position in the broker. FastStream's own ``message_id`` is not
used where FastStream makes one up, and its ``correlation_id`` never: several messages share it. Verdicts
become what FastStream does:

    ack            the recorded result is returned, and published by ``@broker.publisher``
    retry          `NackMessage`, after a pause of the back-off, at most 2 seconds
    dead_letter    ``dead_letter=`` takes it, then `AckMessage`; without it `RejectMessage`

What a subscriber raises to decide itself means the same here: with `AckMessage` the work is done, with
`RejectMessage` it is a dead letter, and `NackMessage`, `SkipMessage` or `StopConsume` end a failed attempt.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from .._core.consuming.message import Message, key_of
from .._core.consuming.recovery import DeadLetter, Recover, Retry, default_recovery
from .._core.consuming.verdicts import is_counted
from .._core.handler_profile import profile_of
from .._values.drivers import driver
from .._values.keys import KeyLike
from ..receiver import AsyncReceiver
from ..receiver._base import check_key, check_receiver
from ..receiver._queue_delivery import (
    LONGEST_PAUSE,
    delivery,
    pause_of,
    policy_for_redelivery,
    result_of,
    verdict_on_async,
)

with driver("faststream"):
    from faststream import BaseMiddleware, StreamMessage
    from faststream.exceptions import (
        AckMessage,
        IgnoredException,
        NackMessage,
        RejectMessage,
    )

__all__ = ["IdempotentMessages"]

DeadLetters: TypeAlias = Callable[[StreamMessage[Any], Exception], object]

_log = logging.getLogger("twicesafe")

ACKED: Final = "the subscriber raised AckMessage"
"""Recorded as the result when a subscriber raises `AckMessage`. A repeat raises it again, and publishes nothing."""


class IdempotentMessages:
    """Put it into the ``middlewares`` of a broker or a router.

    ``key``, ``recover`` and ``dead_letter`` get FastStream's message; ``dead_letter`` may be async.
    """

    def __init__(
        self,
        receiver: AsyncReceiver,
        *,
        key: Callable[[StreamMessage[Any]], KeyLike] | None = None,
        recover: Recover | None = None,
        dead_letter: DeadLetters | None = None,
    ) -> None:
        check_receiver(receiver, AsyncReceiver, type(self).__name__)
        check_key(key)
        policy = policy_for_redelivery(receiver.policy, "messages")
        self.receiver = receiver.options(policy=policy, fingerprint=lambda message: message.body)
        self.key = key or message_key
        self.recover = functools.partial(_decided, recover or default_recovery)
        self.dead_letter = dead_letter

    def __call__(self, msg: Any, /, *, context: Any) -> BaseMiddleware[Any, Any]:
        return _Delivery(msg, context=context, settings=self)


class _Delivery(BaseMiddleware[Any, Any]):
    """One message on its way through FastStream."""

    def __init__(self, msg: Any, /, *, context: Any, settings: IdempotentMessages) -> None:
        super().__init__(msg, context=context)
        self.settings = settings

    async def consume_scope(
        self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any]
    ) -> Any:
        settings, handler = self.settings, self.context.get_local("handler_")
        if handler is None:
            return await call_next(msg)  # the answer to a request of this process
        subscriber = handler.calls.name or "subscriber"
        if settings.key is message_key and _is_batch(msg):
            _log.error(
                "%s subscribes to batches, which have no ids, so it does not run; remove "
                "batch=True, or pass key= to IdempotentMessages",
                subscriber,
            )
            await asyncio.sleep(LONGEST_PAUSE)
            raise NackMessage
        place = _place(msg.raw_message)
        scope = (*settings.receiver.scope, subscriber, *([place] if place else []))
        owner = settings.receiver.options(scope=scope)

        def make() -> Any:
            run = functools.partial(_until_acked, call_next, msg)
            key = settings.key(msg)
            call = delivery(owner, key, settings.recover, msg, call_next, (msg,), run=run)
            call.declared = _declared(call_next)
            return call

        verdict = await verdict_on_async(owner, make)
        if verdict.action == "ack":
            result = result_of(verdict)
            if isinstance(result, str) and result == ACKED:
                raise AckMessage
            return result
        assert verdict.error is not None
        if is_counted(verdict) or verdict.action == "dead_letter":
            _log.error("%s failed: %s", subscriber, verdict.error, exc_info=verdict.error)
        if verdict.action == "dead_letter":
            if settings.dead_letter is None:
                raise RejectMessage
            if await _was_sent(settings.dead_letter, msg, verdict.error):
                raise AckMessage
        await asyncio.sleep(pause_of(verdict))
        cause = verdict.error.__cause__
        raise cause if isinstance(cause, IgnoredException) else NackMessage


def _declared(call_next: Callable[[Any], Any]) -> Any:
    """The type that the subscriber's function returns; the other middlewares are around it."""
    while isinstance(call_next, functools.partial) and call_next.args:
        call_next = call_next.args[0]
    wrapper = getattr(call_next, "__self__", None)
    function = inspect.unwrap(getattr(wrapper, "_original_call", call_next))
    return profile_of(function).declared


async def _until_acked(call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any]) -> Any:
    try:
        return await call_next(msg)
    except AckMessage:
        return ACKED


def _decided(recover: Recover, msg: Any, error: Exception, attempt: int) -> Retry | DeadLetter:
    """The subscriber's own decision, if it raised one of FastStream's exceptions for this."""
    if isinstance(error, RejectMessage):
        return DeadLetter("the subscriber rejected this message")
    return Retry() if isinstance(error, IgnoredException) else recover(msg, error, attempt)


def _is_batch(msg: StreamMessage[Any]) -> bool:
    return bool(msg.batch_headers) or isinstance(msg.raw_message, (list, tuple))


async def _was_sent(dead_letter: DeadLetters, msg: StreamMessage[Any], error: Exception) -> bool:
    """Whether the letter was taken; if not, the message is delivered again, and then its letter."""
    try:
        told = dead_letter(msg, error)
        if inspect.isawaitable(told):
            await told
    except Exception:
        _log.exception("the dead letter of %s was not sent", msg.message_id)
        return False
    return True


def message_key(msg: StreamMessage[Any]) -> KeyLike:
    """The key of a message: the producer's id, or its position in the broker."""
    headers = {name.lower(): str(value) for name, value in msg.headers.items()}
    raw = msg.raw_message
    id_ = headers.get("message_id") or headers.get("nats-msg-id") or _text(raw, "message_id")
    return key_of(Message(id_ or None, "", b"", headers=headers, position=_position(raw)))


def _place(raw: Any) -> str:
    """Where a producer's ids are unique: one subscriber may listen to several topics or streams."""
    if isinstance(raw, dict):
        return str(raw.get("channel", ""))
    try:
        return _text(raw, "topic") or str(raw.metadata.stream)
    except Exception:
        return ""


def _position(raw: Any) -> str:
    if isinstance(raw, dict):  # Redis: the ids of stream entries; lists and channels have none
        return "/".join(bytes(one).decode() for one in raw.get("message_ids", ()))
    parts = [_text(raw, name) for name in ("topic", "partition", "offset")]  # Kafka
    if all(parts):  # with the time: a topic or a stream that is created again counts from the start
        return "@".join(filter(None, ("/".join(parts), _text(raw, "timestamp"))))
    try:
        about = raw.metadata  # NATS JetStream
        return f"{about.stream}/{about.sequence.stream}@{about.timestamp.isoformat()}"
    except Exception:
        return ""


def _text(raw: Any, name: str) -> str:
    """A field of the driver's message; of confluent-kafka they are methods."""
    value = getattr(raw, name, None)
    value = value() if callable(value) else value
    return "" if value is None else str(value)
