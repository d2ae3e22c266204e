"""Redis and Valkey: one string per key, one Lua script per operation, on the server's clock.

    redis://user:password@host:6379/0          one server; rediss:// for TLS
    redis+sentinel://host1:26379,host2/main    the primary that the sentinels name
    redis+cluster://host1:6379,host2           a Cluster; every operation is one slot
    ?prefix=ts&timeout=5&pool=50&wait_replicas=1&wait_timeout=1&wake=false …

    settings       the URL                             error_messages    what an error means
    programs       the requests: one script call each  scripts           lua/*.lua as scripts
    arguments      the arguments of scripts            record_layout     reads the bytes of a record
    key_search     browse, count, survey, audit log    key_scans         names of keys, and the sweep
    record_scan    reads all records, in slices        scan_questions    what a scan looks for
    run_programs   durable runs                        run_layout        reads the steps of a run
    due_index      which runs are due                  doctor            checks the server's settings
    moved_slots    keys that move during a search
    routing        sends commands to their servers     rounds            until all replies count
    routed_commands  what the router sends             servers           which server, for how long
    store          threads: pools of connections       wakeups           wakes waiters by PUBLISH
    async_store    event loops                         loop_connections  the connections of one loop
    async_connection  one async connection

The lease is a field of the record. Only finished records have a TTL. What a failover can lose is in
docs/how-to/redis.md.
"""

from typing import Any

from .store import RedisStore

__all__ = ["AsyncRedisStore", "RedisStore"]


def __getattr__(name: str) -> Any:
    if name == "AsyncRedisStore":
        from .async_store import AsyncRedisStore

        return AsyncRedisStore
    raise AttributeError(name)
