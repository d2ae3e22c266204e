"""An async source on one connection: opened on first use, replaced after an outage.

Redis, NATS and RabbitMQ differ in how they connect, fetch and settle. The rest is here: when a
connection is replaced, and that an outage is always a `BrokerUnavailableError`. A connection that
failed is dropped, and the next call opens another one.

A *receipt* is void when this consumer no longer holds its message: it is settled, another delivery has
replaced it, or its connection, consumer or time is over. Settling a void receipt does nothing and
raises no error: the broker has redelivered the message, or will.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, ClassVar
from urllib.parse import urlencode, urlsplit

from ..._core.consuming.source import Revoke
from ..._values.settings import expect
from ...errors import BrokerUnavailableError
from ...outbox.publishers._urls import CHECK_BROKER

__all__ = ["ConnectionSource", "named", "with_query"]


class ConnectionSource(abc.ABC):
    """What Redis, NATS and RabbitMQ share. None of them takes partitions away."""

    broker: ClassVar[str]
    """Its name in errors."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._connection: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that has the connection. Another one can neither use nor close it."""
        self._connecting = asyncio.Lock()

    # -- what a broker does in its own way --------------------------------------------------------

    @abc.abstractmethod
    async def _connect(self) -> None:
        """Set `_connection` before it connects, so that a failed attempt is closed, too."""

    @abc.abstractmethod
    def _is_open(self) -> bool:
        """Whether `_connection` can be used, as far as the driver knows."""

    @abc.abstractmethod
    def _lost(self) -> tuple[type[Exception], ...]:
        """What the driver raises when the broker is away or does not accept the request."""

    @abc.abstractmethod
    async def _disconnect(self, connection: Any) -> None: ...

    # -- what they share ----------------------------------------------------------------------------

    def listen(self, revoke: Revoke | None) -> None:  # noqa: B027 - not all brokers have partitions
        """Not used: this broker has no partitions."""

    async def release(self, partitions: frozenset[str]) -> None:  # noqa: B027
        """Not used: this broker has no partitions."""

    async def close(self) -> None:
        self._enter_loop()
        await self._drop(self._connection)

    def _enter_loop(self) -> None:
        """Forget what belongs to an earlier event loop: one consumer may run on several, one after the other."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._connection, self._connecting = loop, None, asyncio.Lock()

    @contextlib.asynccontextmanager
    async def _reached(self, doing: str) -> AsyncIterator[Any]:
        """An open connection; what breaks it while it is used becomes `BrokerUnavailableError`."""
        lost: tuple[type[Exception], ...] = (OSError, *self._lost())  # so is a TimeoutError
        connection: Any = None
        try:
            connection = await self._connected()
            yield connection
        except BrokerUnavailableError:
            await self._drop(connection)
            raise
        except lost as error:
            await self._drop(connection)
            raise BrokerUnavailableError(
                f"{self.broker} could not {doing}: {_said(error)}; {CHECK_BROKER}", blames="none"
            ) from error

    @contextlib.asynccontextmanager
    async def _looking(self, connection: Any, *, at_length: bool = False) -> AsyncIterator[None]:
        """Use a separate connection that consumes nothing, and close it at the end.

        ``at_length``: there are many requests, and each has its own time-out.
        """
        lost: tuple[type[Exception], ...] = (OSError, *self._lost())
        try:
            async with asyncio.timeout(None if at_length else self._timeout):
                yield
        except lost as error:
            raise BrokerUnavailableError(
                f"{self.broker} could not be asked: {_said(error)}; {CHECK_BROKER}", blames="none"
            ) from error
        finally:
            with contextlib.suppress(Exception):  # it may never have been open
                await self._disconnect(connection)

    async def _connected(self) -> Any:
        self._enter_loop()
        async with self._connecting:  # a fetch and another call may both find it closed
            if self._connection is not None and not self._is_open():
                await self._drop(self._connection)
            if self._connection is None:
                try:
                    async with asyncio.timeout(self._timeout):
                        await self._connect()
                except BaseException:
                    await self._drop(self._connection)
                    raise
            return self._connection

    async def _drop(self, connection: Any) -> None:
        """Close this connection, unless another one has replaced it."""
        if connection is None or connection is not self._connection:
            return
        self._connection = None
        with contextlib.suppress(Exception):  # it may already be gone
            async with asyncio.timeout(self._timeout):
                await self._disconnect(connection)


def named(options: dict[str, Any], *names: str) -> None:
    """Refuse a URL that does not say what these options must say."""
    for name in names:
        expect(options[name], f"option {name}", options[name], f"add {name}=… to the URL")


def with_query(url: str, **options: str) -> str:
    """The URL of the same broker, with these options instead of ours."""
    parts = urlsplit(url)
    query = "&".join(text for text in (parts.query, urlencode(options)) if text)
    # Not by `urlunsplit`: it drops the // of a URL without a host.
    return f"{parts.scheme}://{parts.netloc}{parts.path}{'?' * bool(query)}{query}"


def _said(error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
