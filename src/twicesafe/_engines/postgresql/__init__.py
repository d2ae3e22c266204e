"""PostgreSQL, with psycopg 3 or asyncpg, on the server's clock.

    postgresql://user@host/db             psycopg 3, blocking and async
    postgresql+asyncpg://user@host/db     asyncpg for the async store
    ?table=twicesafe&schema=app&pool=10&timeout=5&prepare=false&wake=false&migrate=false
    all other options go to the driver (sslmode, application_name …)

    settings          the URL, and what an error means
    store             the blocking store: a pool of connections
    async_store       the async stores, and their connections per event loop; concurrent calls share statements
    connections       one async connection of either driver
    statement_runner  runs statements on a connection of psycopg
    session           what a new connection checks and sets; how a pooler is detected
    wakeups           wakes waiters by NOTIFY
    schema, doctor    creates and checks the tables; checks the server

    programs          one table: its columns and its statements
    request_programs  how a request about one record is performed
    request_kinds     for each kind of request: the values it sends, and what a row of the answer means
    statements        the SQL of claim, complete, fail and renew
    columns           how the columns of a record are written and read
    sweep_and_search  the requests about many records: sweep and browse
    generations       with ?generations=6h: partitions by time, so that one DROP removes many records
    generation_sweep  opens, empties and drops these partitions
    moving            moves records out of the table of an older version

    in_transaction    the record in the caller's transaction
    outbox_programs   the outbox in the caller's database
    run_programs      durable runs; their SQL is in `run_statements`

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
