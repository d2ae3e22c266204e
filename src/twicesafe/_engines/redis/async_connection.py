"""One async connection: redis-py opens it (TLS, user, database), then hiredis parses the replies.

redis-py reads replies one by one, each with a timer. For batches of hundreds it is faster to parse
replies as they arrive. So after connecting, the transport gets our own protocol, with one future and
one timer per batch.
"""

from __future__ import annotations

import asyncio
from typing import Any

from .servers import WHO_ARE_YOU, Servers
from .settings import Address, Settings
from .store import packer

__all__ = ["Link"]

_NOTHING = object()


class Link(asyncio.Protocol):
    """Sends one batch at a time and collects its replies. If it was lost, its next use reconnects."""

    def __init__(self, settings: Settings, address: Address, servers: Servers) -> None:
        from redis.asyncio.connection import Connection, SSLConnection
        from redis.exceptions import ResponseError

        self.up = False
        self._timeout = settings.patience(address)
        self._error = ResponseError
        self._address = address
        self._servers = servers if servers.checks_new_connections and not address.sentinel else None
        kind = SSLConnection if settings.tls else Connection
        self._connection: Any = kind(**settings.connection(address))
        self._pack = packer(self._connection)
        self._transport: Any = None
        self._reader: Any = None
        self._replies: list[Any] = []
        self._expected = 0
        self._pending: asyncio.Future[list[Any]] | None = None
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
                (info,) = await self.send([WHO_ARE_YOU])
                if isinstance(info, Exception):
                    raise info
                self._servers.check_server(self._address, info)
            except BaseException:
                await self.close()
                raise
        self.up = True

    def send(self, lines: list[tuple[Any, ...]]) -> asyncio.Future[list[Any]]:
        """Send now; the future gets the replies, including errors of the server."""
        loop = asyncio.get_running_loop()
        self._replies = []
        self._expected = len(lines)
        self._pending = pending = loop.create_future()
        self._timer = loop.call_later(self._timeout, self._timed_out)
        pack = self._pack
        self._transport.write(
            pack(lines[0]) if len(lines) == 1 else b"".join([pack(line) for line in lines])
        )
        return pending

    async def close(self) -> None:
        self._end(ConnectionError("closed"))
        await self._connection.disconnect(nowait=True)

    # -- the protocol ---------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        reader, replies = self._reader, self._replies
        reader.feed(data)
        while (reply := reader.gets(False)) is not _NOTHING:
            replies.append(reply)
        if len(replies) >= self._expected and self._pending is not None:
            pending, self._pending = self._pending, None
            if self._timer is not None:
                self._timer.cancel()
            if not pending.done():
                pending.set_result(replies)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionError(f"{self._address} closed the connection"))

    def _timed_out(self) -> None:
        self._end(TimeoutError(f"{self._address} did not answer within {self._timeout:g} s"))

    def _end(self, why: Exception) -> None:
        self.up = False
        if self._timer is not None:
            self._timer.cancel()
        pending, self._pending = self._pending, None
        if pending is not None and not pending.done():
            pending.set_exception(why)
        if self._transport is not None:
            self._transport.abort()
