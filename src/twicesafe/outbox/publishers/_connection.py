"""An async publisher on one connection: opened on first use, replaced after an outage.

RabbitMQ and NATS differ in how they connect and in what their drivers raise. The rest is here: when
a connection is replaced, how long anything may take, and what an error means for the relay.

    cannot connect                          outage, no message is to blame
    no confirmation in time                 outage; a message may be to blame, compared with others
    the connection broke                    outage; a message that fails alone again is to blame
    the broker or driver names the message  the message's own failure
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, ClassVar

from ..._core.outbox.publisher import Answer
from ..._core.outbox.requests import Message
from ...errors import BrokerUnavailableError
from ._function import AsyncCallablePublisher
from ._urls import CHECK_BROKER

__all__ = ["ConnectionPublisher"]


class ConnectionPublisher(AsyncCallablePublisher, abc.ABC):
    """Sends the messages of a call at once, and waits for the confirmation of each."""

    broker: ClassVar[str]
    """Its name in errors."""

    def __init__(self, url: str, batch: int, timeout: float) -> None:
        super().__init__(self._send_one, batch=batch)
        self._url, self._timeout = url, timeout
        self._connection: Any = None

    # -- what a broker does in its own way --------------------------------------------------------

    @abc.abstractmethod
    async def _connect(self) -> None:
        """Set `_connection` before it connects, so that a failed attempt is closed, too."""

    @abc.abstractmethod
    def _is_open(self) -> bool:
        """Whether `_connection` can be used, as far as the driver knows."""

    @abc.abstractmethod
    def _lost(self) -> tuple[type[Exception], ...]:
        """What the driver raises when it cannot connect, or when the connection breaks."""

    @abc.abstractmethod
    async def _confirmed(self, message: Message) -> None:
        """Send one message and wait for its confirmation; raises the driver's errors.

        After `_timeout` seconds it raises `TimeoutError`, by the driver's own means if it has some.
        """

    def _refusal(self, error: Exception) -> Exception | None:
        """The message's own failure, or an outage, if this error says so; None: it does not."""
        return None

    # -- what they share ----------------------------------------------------------------------------

    async def publish(self, messages: Sequence[Message]) -> list[Answer]:
        await self._connected()
        answers = await super().publish(messages)
        if any(isinstance(answer, BrokerUnavailableError) for answer in answers):
            await self._drop()  # the broker may have closed it; after a timeout nothing is known
        return answers

    async def check(self) -> None:
        await self._drop()
        await self._connected()

    async def close(self) -> None:
        await self._drop()

    async def _connected(self) -> None:
        if self._connection is not None:
            if self._is_open():
                return
            await self._drop()
        lost: tuple[type[Exception], ...] = (OSError, *self._lost())
        try:
            async with asyncio.timeout(self._timeout):
                await self._connect()
        except BaseException as error:
            await self._drop()
            if not isinstance(error, lost):  # a TimeoutError is an OSError
                raise
            raise BrokerUnavailableError(
                f"{self.broker} cannot be reached: {type(error).__name__}; {CHECK_BROKER}",
                blames="none",
            ) from error

    async def _send_one(self, message: Message) -> None:
        try:
            await self._confirmed(message)
        except Exception as error:
            known = self._refusal(error)
            if known is error:
                raise
            if known is not None:
                raise known from error
            if isinstance(error, TimeoutError):
                # Some drivers do not wake the waiting task when the connection ends.
                hung_up = self._connection is None or not self._is_open()
                raise BrokerUnavailableError(
                    f"{self.broker} did not confirm in time",
                    blames="alone" if hung_up else "compared",
                ) from error
            if isinstance(error, (OSError, *self._lost())):
                raise BrokerUnavailableError(
                    f"{self.broker} did not confirm: {type(error).__name__}", blames="alone"
                ) from error
            raise

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it may already be gone
                async with asyncio.timeout(self._timeout):
                    await connection.close()
