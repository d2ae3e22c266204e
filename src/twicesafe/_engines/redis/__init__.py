"""Redis and Valkey: one string per key, one Lua script per operation, on the server's own clock.

    redis://user:password@host:6379/0          one server; rediss:// for TLS
    redis+sentinel://host1:26379,host2/main    the primary that the sentinels name
    redis+cluster://host1:6379,host2           a Cluster; every operation is one slot
    ?prefix=ts&timeout=5&pool=50&wait_replicas=1&wait_timeout=1&wake=false …

    settings    a URL taken apart                  rows        the record's layout, read
    scripts     lua/*.lua, ready to be sent     programs    what is asked, as data
    routing     which server, and what if not      wake        one ear per process
    blocking    threads: pools of connections      awaited     event loops: shared round trips

Leases are fields; a key's TTL is for records that are over, and only for them. What a failover can
lose is in docs/how-to/redis.md.
"""

from typing import Any

from .store import RedisStore

__all__ = ["AsyncRedisStore", "RedisStore"]


def __getattr__(name: str) -> Any:
    if name == "AsyncRedisStore":
        from .async_store import AsyncRedisStore

        return AsyncRedisStore
    raise AttributeError(name)
