"""PostgreSQL by asyncpg, on a connection or on one taken from a pool."""

from __future__ import annotations

from typing import Any

from .._engines.sql.commands import Change, Query
from .base import AsyncTransaction, Dialect, Ends, Style, plain

__all__ = ["AsyncpgTransaction"]


class AsyncpgTransaction(AsyncTransaction):
    dialect: Dialect = "postgresql"
    style: Style = "$1"
    remedy = "use `async with connection.transaction():`"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def driver(self) -> Any:
        return self._connection

    @staticmethod
    def ends(connection: Any) -> Ends:
        block = connection.transaction()
        return Ends(
            lambda: not connection.is_in_transaction(), block.start, block.commit, block.rollback
        )

    async def execute(self, statement: Query | Change) -> Any:
        if type(statement) is Query:
            return plain(await self._connection.fetch(statement.sql, *statement.args))
        status = await self._connection.execute(statement.sql, *statement.args)
        last = status.rpartition(" ")[2]  # "UPDATE 1"
        return int(last) if last.isdigit() else 0
