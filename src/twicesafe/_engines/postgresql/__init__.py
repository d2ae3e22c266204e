"""PostgreSQL, with psycopg 3 or asyncpg, on the server's clock.

    postgresql://user@host/db             psycopg 3, blocking and async
    postgresql+asyncpg://user@host/db     asyncpg for the async store
    ?table=twicesafe&schema=app&pool=10&timeout=5&prepare=false&wake=false&migrate=false
    all other options go to the driver (sslmode, application_name …)

    programs          the requests: one statement each, for one request or for many
    statements        their SQL
    heap_walks        sweep and browse
    session           what a new connection checks and sets; how a pooler is detected
    store             the blocking store: a pool of connections
    async_store       the async stores
    loop_connections  the connections of one event loop; concurrent calls share statements
    connections       one async connection of either driver
    listener          wake-ups by NOTIFY
    in_transaction    the record in the caller's transaction
    generations       with ?generations=6h: partitions by time, so that one DROP removes many records
    outbox_programs   the outbox in the caller's database

Only contended keys pay for NOTIFY: a waiter marks the row, and only a marked row announces its end.
Behind a pooler in transaction mode use ``prepare=false&wake=false``; then waiters poll.
"""

from typing import Any

from .store import PostgresStore

__all__ = ["AsyncPostgresStore", "AsyncpgStore", "PostgresStore"]


def __getattr__(name: str) -> Any:
    if name in ("AsyncPostgresStore", "AsyncpgStore"):
        from . import async_store

        return getattr(async_store, name)
    raise AttributeError(name)
