"""Message handlers as classes: define a message's key and its handling in one place.

    class Payments(MessageHandler[dict, str]):
        def key(self, message): return Key.from_message(type="payment", id=message["id"])
        def handle(self, message): return charge(message)
        def dead_letter(self, message, error): dead_letters.append(message)

    Payments(receiver)(message)        # an Outcome, or the error

    verdict = Payments(receiver).deliver(message)      # in your own consumer loop:
    verdict.action                     # "ack", "retry" (after verdict.retry_after) or "dead_letter"

The payload is fingerprinted by default: the same id with different content is refused.
"""

from __future__ import annotations

import abc
import functools
from typing import Any, Generic, TypeVar

from .._core.call import Call
from .._core.consuming.recovery import DeadLetter, Retry, default_recovery
from .._core.consuming.verdicts import Verdict
from .._core.handler_scope import module_of
from .._values.fingerprint import stated
from .._values.keys import KeyLike
from .._values.outcomes import Outcome
from ..errors import FingerprintMismatchError, HeldError, ParkedError
from ._base import check_receiver
from ._queue_delivery import delivery, verdict_on, verdict_on_async
from ._receiver import AsyncReceiver, Receiver

__all__ = ["AsyncMessageHandler", "MessageHandler"]

M = TypeVar("M")
T = TypeVar("T")

FINAL = (ParkedError, HeldError, FingerprintMismatchError)
"""Errors that redelivery cannot fix: the message is a dead letter."""


class _Described(abc.ABC, Generic[M, T]):
    @abc.abstractmethod
    def key(self, message: M) -> KeyLike:
        """Return the message's key: its id, `Key.from_message(…)` or `Key.from_content(…)`."""

    def fingerprint(self, message: M) -> object:
        """Return what must be equal in every delivery; None: no check. Default: the whole message."""
        return message

    def recover(self, message: M, error: Exception, attempt: int) -> Retry | DeadLetter:
        """For `deliver`: decide what follows a failed attempt. By default a retry with the policy's
        back-off; after a `CompensatedError`, which no retry changes, a dead letter. After the last attempt
        (`max_attempts`) the message is always a dead letter."""
        return default_recovery(message, error, attempt)

    def _call_for(self, receiver: Any, handle: Any, message: M) -> Call:
        self._check(receiver, message)
        return delivery(receiver, self.key(message), self.recover, message, handle, (message,))

    def _scoped(self, receiver: Any) -> Any:
        cls = type(self)
        scope = (*receiver.scope, f"{module_of(cls)}.{cls.__qualname__}")
        return receiver.options(scope=scope, fingerprint=self.fingerprint)

    def _check(self, receiver: Any, message: M) -> None:
        """Raise if this message can never be handled: its key is not valid, or its content cannot
        be fingerprinted."""
        receiver.key(self.key(message))
        stated(self.fingerprint(message))


class MessageHandler(_Described[M, T]):
    """Subclass it, create it with a `Receiver`, and call it with messages."""

    def __init__(self, receiver: Receiver) -> None:
        check_receiver(receiver, Receiver, type(self).__name__)
        self.receiver: Receiver = self._scoped(receiver)

    @abc.abstractmethod
    def handle(self, message: M) -> T:
        """Do the work. It may run again after a failure or a crash."""

    def dead_letter(self, message: M, error: Exception) -> None:
        """Called for a message that redelivery cannot help: no valid key, a reused id, parked or
        held. The error is raised afterwards."""

    def deliver(self, message: M) -> Verdict[T]:
        """Handle a message of your own consumer loop; the verdict says what to tell the broker.

        The verdict is "ack" only when the record is durable. Your loop sends the dead letters: the
        method `dead_letter` is not called.
        """
        make = functools.partial(self._call_for, self.receiver, self.handle, message)
        return verdict_on(self.receiver, make)

    def __call__(self, message: M) -> Outcome[T]:
        """Handle a message, or answer a repeat of it."""
        try:
            self._check(self.receiver, message)
        except Exception as error:
            self.dead_letter(message, error)
            raise
        try:
            return self.receiver.process(self.key(message), self.handle, message)
        except FINAL as error:
            self.dead_letter(message, error)
            raise


class AsyncMessageHandler(_Described[M, T]):
    """Async version of `MessageHandler`: create it with an `AsyncReceiver`, and await its calls."""

    def __init__(self, receiver: AsyncReceiver) -> None:
        check_receiver(receiver, AsyncReceiver, type(self).__name__)
        self.receiver: AsyncReceiver = self._scoped(receiver)

    @abc.abstractmethod
    async def handle(self, message: M) -> T:
        """Do the work. It may run again after a failure or a crash."""

    async def dead_letter(self, message: M, error: Exception) -> None:
        """Called for a message that redelivery cannot help: no valid key, a reused id, parked or
        held. The error is raised afterwards."""

    async def deliver(self, message: M) -> Verdict[T]:
        """Handle a message of your own consumer loop; the verdict says what to tell the broker.

        The verdict is "ack" only when the record is durable. Your loop sends the dead letters: the
        method `dead_letter` is not called.
        """
        make = functools.partial(self._call_for, self.receiver, self.handle, message)
        return await verdict_on_async(self.receiver, make)

    async def __call__(self, message: M) -> Outcome[T]:
        """Handle a message, or answer a repeat of it."""
        try:
            self._check(self.receiver, message)
        except Exception as error:
            await self.dead_letter(message, error)
            raise
        try:
            return await self.receiver.process(self.key(message), self.handle, message)
        except FINAL as error:
            await self.dead_letter(message, error)
            raise
