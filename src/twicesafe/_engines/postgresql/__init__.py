"""PostgreSQL, by psycopg 3 or asyncpg, on the server's own clock.

    postgresql://user@host/db             psycopg 3 in both colours
    postgresql+asyncpg://user@host/db     asyncpg for the async form
    ?table=twicesafe&schema=app&pool=10&timeout=5&prepare=false&wake=false&migrate=false
    whatever else stands in the query goes to the driver (sslmode, application_name …)

    programs    what is asked of the server, as data: one statement per phase
    statements  their SQL
    blocking    threads: a pool of connections
    awaited     event loops: a few lanes, in which concurrent calls share statements
    wires       one awaited connection of either driver
    generations what changes with ?generations=6h: a day of records goes by one DROP

Waiters are woken by NOTIFY, which only contended keys pay for: whoever waits marks the row, and
only a marked row announces its end. Behind a pooler in transaction mode say
``prepare=false&wake=false``; waiters poll then.
"""

from typing import Any

from .store import PostgresStore

__all__ = ["AsyncPostgresStore", "AsyncpgStore", "PostgresStore"]


def __getattr__(name: str) -> Any:
    if name in ("AsyncPostgresStore", "AsyncpgStore"):
        from . import async_store as awaited

        return getattr(awaited, name)
    raise AttributeError(name)
