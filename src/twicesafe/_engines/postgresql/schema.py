"""The schema of a PostgreSQL store: is it there, which version, and how it is migrated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...errors import ConfigurationError
from ...stores._base import Program
from ..sql.commands import Change, Query
from ..sql.migrations import RecordsSchema, Schema

__all__ = ["GENERATIONS", "PostgresRecordsSchema", "PostgresSchema"]

GENERATIONS: Final = 1000
"""Schema versions from here on belong to tables that keep generations."""


LOCK_TIMEOUT: Final = 200
"""Milliseconds that a step waits for a table that a transaction uses."""


class PostgresSchema(Schema):
    """The schema of the records, of the outbox, or of durable runs."""

    def __init__(self, table: str, schema: str, mark: Callable[[str], str]) -> None:
        super().__init__("postgresql", f"{schema}.{table}" if schema else table)
        self._schema = schema
        # Not to_regclass: inside a transaction it may remember that the table was not there.
        self._exists = mark(
            "SELECT count(*) FROM pg_catalog.pg_tables WHERE tablename = ?::text"
            " AND schemaname = coalesce(nullif(?::text, ''), current_schema())"
        )

    def exists(self) -> Program[bool]:
        bare = self.table.rpartition(".")[2]
        return bool((yield Query(self._exists, (f"{bare}_meta", self._schema)))[0][0])

    def script(self) -> str:
        place = f"CREATE SCHEMA IF NOT EXISTS {self._schema};\n" if self._schema else ""
        return place + super().script()

    def step(self) -> Program[str | None]:
        # Another process that migrates now waits here until we are done, and has nothing left to do.
        yield Query("SELECT pg_advisory_xact_lock(hashtext('twicesafe migration'))")
        if self._schema:
            yield Change(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
        return (yield from super().step())


class PostgresRecordsSchema(PostgresSchema, RecordsSchema):
    def version(self) -> Program[int]:
        found = yield from super().version()
        if found >= GENERATIONS:
            raise ConfigurationError(
                f"the tables {self.table}_… keep generations: add ?generations=… to the URL, with the "
                "value that the other processes use"
            )
        return found

    def apply(self, before: int, after: int) -> Program[None]:
        if before:  # claims wait behind us while we wait for a table
            yield Change(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT:d}")
        yield from super().apply(before, after)
