"""One async connection: redis-py opens it (TLS, user, database), then hiredis parses the replies.

redis-py reads replies one by one, each with a timer. For batches of hundreds it is faster to parse
replies as they arrive. So after connecting, the transport gets our own protocol, with one future and
one timer per batch.
"""

from __future__ import annotations

import asyncio
from typing import Any

from .servers import GREETING, Servers
from .settings import Address, Settings
from .store import packer

__all__ = ["Link"]

_NOTHING = object()


class Link(asyncio.Protocol):
    """Sends one batch at a time and collects its replies. After a cut, the next use reconnects."""

    def __init__(self, settings: Settings, address: Address, servers: Servers) -> None:
        from redis.asyncio.connection import Connection, SSLConnection
        from redis.exceptions import ResponseError

        self.up = False
        self._timeout = settings.patience(address)
        self._error = ResponseError
        self._address = address
        self._servers = servers if servers.asks_first and not address.sentinel else None
        kind = SSLConnection if settings.tls else Connection
        self._connection: Any = kind(**settings.connection(address))
        self._pack = packer(self._connection)
        self._transport: Any = None
        self._reader: Any = None
        self._replies: list[Any] = []
        self._expected = 0
        self._landing: asyncio.Future[list[Any]] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def connect(self) -> None:
        from hiredis import Reader

        await self._connection.disconnect(nowait=True)
        await self._connection.connect()
        self._reader = Reader(replyError=self._error, notEnoughData=_NOTHING)
        self._transport = self._connection._writer.transport
        self._transport.set_protocol(self)
        if self._servers is not None:  # check which server this is before sending any request
            try:
                (said,) = await self.send([GREETING])
                if isinstance(said, Exception):
                    raise said
                self._servers.greet(self._address, said)
            except BaseException:
                await self.close()
                raise
        self.up = True

    def send(self, lines: list[tuple[Any, ...]]) -> asyncio.Future[list[Any]]:
        """Send now; the future gets the replies, including errors of the server."""
        loop = asyncio.get_running_loop()
        self._replies = []
        self._expected = len(lines)
        self._landing = landing = loop.create_future()
        self._timer = loop.call_later(self._timeout, self._late)
        pack = self._pack
        self._transport.write(
            pack(lines[0]) if len(lines) == 1 else b"".join([pack(line) for line in lines])
        )
        return landing

    async def close(self) -> None:
        self._end(ConnectionError("closed"))
        await self._connection.disconnect(nowait=True)

    # -- the protocol ---------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        reader, replies = self._reader, self._replies
        reader.feed(data)
        while (reply := reader.gets(False)) is not _NOTHING:
            replies.append(reply)
        if len(replies) >= self._expected and self._landing is not None:
            landing, self._landing = self._landing, None
            if self._timer is not None:
                self._timer.cancel()
            if not landing.done():
                landing.set_result(replies)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionError(f"{self._address} closed the connection"))

    def _late(self) -> None:
        self._end(TimeoutError(f"{self._address} did not answer within {self._timeout:g} s"))

    def _end(self, why: Exception) -> None:
        self.up = False
        if self._timer is not None:
            self._timer.cancel()
        landing, self._landing = self._landing, None
        if landing is not None and not landing.done():
            landing.set_exception(why)
        if self._transport is not None:
            self._transport.abort()
