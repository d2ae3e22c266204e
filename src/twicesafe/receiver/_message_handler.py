"""Message handlers as classes: say once what a message's key is and what to do with it.

    class Payments(MessageHandler[dict, str]):
        def key(self, message): return Key.from_message(type="payment", id=message["id"])
        def handle(self, message): return charge(message)
        def dead_letter(self, message, error): letters.append(message)

    Payments(receiver)(message)        # an Outcome, or the error

The payload is fingerprinted by default: the same id with other content is refused, not replayed.
"""

from __future__ import annotations

import abc
from typing import Any, Generic, TypeVar

from .._values.fingerprint import stated
from .._values.keys import KeyLike
from .._values.outcomes import Outcome
from ..errors import FingerprintMismatchError, HeldError, ParkedError
from ._receiver import AsyncReceiver, Receiver

__all__ = ["AsyncMessageHandler", "MessageHandler"]

M = TypeVar("M")
T = TypeVar("T")

FINAL = (ParkedError, HeldError, FingerprintMismatchError)
"""No redelivery will change these: the message is a dead letter."""


class _Described(abc.ABC, Generic[M, T]):
    @abc.abstractmethod
    def key(self, message: M) -> KeyLike:
        """The identity of a message: `Key.from_message`, its id, a hash of its content."""

    def fingerprint(self, message: M) -> object:
        """What must be equal in every delivery; None: no check. Default: the whole message."""
        return message

    def _scoped(self, receiver: Any) -> Any:
        cls = type(self)
        scope = (*receiver.scope, f"{cls.__module__}.{cls.__qualname__}")
        return receiver.options(scope=scope, fingerprint=self.fingerprint)

    def _check(self, receiver: Any, message: M) -> None:
        """Raise what keeps this message from ever being handled: no usable key, or content that
        cannot be compared."""
        receiver.key(self.key(message))
        stated(self.fingerprint(message))


class MessageHandler(_Described[M, T]):
    """The blocking twin: subclass it, give it a `Receiver`, call it with messages."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver: Receiver = self._scoped(receiver)

    @abc.abstractmethod
    def handle(self, message: M) -> T:
        """Do the work. It may start again after a failure or a crash."""

    def dead_letter(self, message: M, error: Exception) -> None:
        """A message that no redelivery can help: no usable key, a reused id, parked or held.
        After this call the error is raised."""

    def __call__(self, message: M) -> Outcome[T]:
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
    """The awaited twin: subclass it, give it an `AsyncReceiver`, await it with messages."""

    def __init__(self, receiver: AsyncReceiver) -> None:
        self.receiver: AsyncReceiver = self._scoped(receiver)

    @abc.abstractmethod
    async def handle(self, message: M) -> T:
        """Do the work. It may start again after a failure or a crash."""

    async def dead_letter(self, message: M, error: Exception) -> None:
        """A message that no redelivery can help: no usable key, a reused id, parked or held.
        After this call the error is raised."""

    async def __call__(self, message: M) -> Outcome[T]:
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
