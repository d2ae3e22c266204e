"""The floor on Redis and Valkey: one small Lua script per phase, sent by redis-py as anybody would.

The record is one string: state, fence, end, owner, result. Time is the server's.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from .floors import BusyError, LostError

CONNECTIONS = 50

CLAIM = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local fence, text = 1, redis.call('GET', KEYS[1])
if text then
  local state, old, til = struct.unpack('<BI6I6', text)
  if til > now then
    if state == 1 then return {0, string.sub(text, 30)} end
    return {2}
  end
  fence = old + 1
end
redis.call('SET', KEYS[1], struct.pack('<BI6I6c16', 0, fence, now + ARGV[2], ARGV[1]))
return {1, fence}
"""

COMPLETE = """
local text = redis.call('GET', KEYS[1])
if not text then return 0 end
local state, fence, til, owner = struct.unpack('<BI6I6c16', text)
if state ~= 0 or fence ~= tonumber(ARGV[2]) or owner ~= ARGV[1] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('SET', KEYS[1], struct.pack('<BI6I6c16', 1, fence, now + ARGV[3], owner) .. ARGV[4],
  'PX', ARGV[3])
return 1
"""

LEASE, RETENTION = 30_000, 86_400_000
_owners = itertools.count(1)


def new_owner() -> bytes:
    return b"0123456789" + next(_owners).to_bytes(6, "big")


def verdict(reply: list[Any], owner: bytes) -> tuple[bytes, int, bytes | None]:
    if reply[0] == 1:
        return owner, reply[1], None
    if reply[0] == 2:
        raise BusyError
    return b"", 0, reply[1]


class RedisFloor:
    def __init__(self, url: str) -> None:
        import redis

        self._client = redis.Redis.from_url(url, max_connections=CONNECTIONS + 50)
        self._claim = self._client.script_load(CLAIM)
        self._complete = self._client.script_load(COMPLETE)

    def claim(self, key: str) -> tuple[bytes, int, bytes | None]:
        owner = new_owner()
        reply: Any = self._client.evalsha(self._claim, 1, "floor:" + key, owner, LEASE)
        return verdict(reply, owner)

    def complete(self, key: str, owner: bytes, fence: int, payload: bytes) -> None:
        args: tuple[Any, ...] = ("floor:" + key, owner, fence, RETENTION, payload)
        if not self._client.evalsha(self._complete, 1, *args):
            raise LostError

    def batch(self, keys: Sequence[str], payloads: Sequence[bytes]) -> None:
        """All of them new: claimed in one pipeline, completed in another."""
        owners = [new_owner() for _ in keys]
        with self._client.pipeline(transaction=False) as pipe:
            for key, owner in zip(keys, owners, strict=True):
                pipe.evalsha(self._claim, 1, "floor:" + key, owner, LEASE)
            won = pipe.execute()
            for key, owner, (_, fence), payload in zip(keys, owners, won, payloads, strict=True):
                args: tuple[Any, ...] = ("floor:" + key, owner, fence, RETENTION, payload)
                pipe.evalsha(self._complete, 1, *args)
            if not all(pipe.execute()):
                raise LostError

    def close(self) -> None:
        self._client.close()


class AsyncRedisFloor:
    """Call by call: each of many tasks sends its own command, on fifty connections at most."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Any = None

    async def _connected(self) -> Any:
        import redis.asyncio

        pool = redis.asyncio.BlockingConnectionPool.from_url(
            self._url, max_connections=CONNECTIONS, timeout=None
        )
        client = redis.asyncio.Redis(connection_pool=pool)
        self._claim = await client.script_load(CLAIM)
        self._complete = await client.script_load(COMPLETE)
        self._client = client
        return client

    async def claim(self, key: str) -> tuple[bytes, int, bytes | None]:
        client = self._client or await self._connected()
        owner = new_owner()
        reply = await client.evalsha(self._claim, 1, "floor:" + key, owner, LEASE)
        return verdict(reply, owner)

    async def complete(self, key: str, owner: bytes, fence: int, payload: bytes) -> None:
        args = ("floor:" + key, owner, fence, RETENTION, payload)
        if not await self._client.evalsha(self._complete, 1, *args):
            raise LostError

    async def batch(self, keys: Sequence[str], payloads: Sequence[bytes]) -> None:
        client = self._client or await self._connected()
        owners = [new_owner() for _ in keys]
        async with client.pipeline(transaction=False) as pipe:
            for key, owner in zip(keys, owners, strict=True):
                pipe.evalsha(self._claim, 1, "floor:" + key, owner, LEASE)
            won = await pipe.execute()
            for key, owner, (_, fence), payload in zip(keys, owners, won, payloads, strict=True):
                pipe.evalsha(self._complete, 1, "floor:" + key, owner, fence, RETENTION, payload)
            if not all(await pipe.execute()):
                raise LostError

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            await self._client.connection_pool.disconnect()
