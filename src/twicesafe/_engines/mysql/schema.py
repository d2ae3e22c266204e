"""The schema of MariaDB and MySQL: is it there, which version, and how it is migrated."""

from __future__ import annotations

import re
from typing import ClassVar, Final, TypeVar

from ...errors import StoreUnavailableError
from ...stores._base import Program
from ..sql.commands import Change, Query
from ..sql.migrations import RecordsSchema, Schema

__all__ = ["BEGIN", "MysqlRecordsSchema", "MysqlSchema"]

T = TypeVar("T")

BEGIN: Final = "START TRANSACTION"

LOCK_TIMEOUT: Final = 4
"""Seconds to wait for another process that migrates."""

_IF: Final = re.compile(r"/\* if (\w+) \*/")
"""A statement that needs this table. If it is missing, the statement has run before."""


class MysqlSchema(Schema):
    number: ClassVar[str] = "`schema`"
    repeatable: ClassVar[bool] = True

    def exists(self) -> Program[bool]:
        meta = f"{self.table}_meta"
        # Empty: a migration was interrupted.
        return (yield from _has_table(meta)) and bool((yield Query(f"SELECT 1 FROM {meta}")))

    def is_needed(self, statement: str) -> Program[bool]:
        named = _IF.match(statement)
        return named is None or (yield from _has_table(named[1]))

    def migrate(self, begin: str) -> Program[list[str]]:
        """Changes of the schema commit by themselves here, so a named lock keeps other processes out."""
        return self.alone(super().migrate(begin))

    def alone(self, steps: Program[T]) -> Program[T]:
        """Run this while no other process migrates."""
        name = f"CONCAT('twicesafe:', LEFT(SHA1(CONCAT(DATABASE(), '.{self.table}')), 40))"
        for _ in range(LOCK_TIMEOUT):
            # A second at a time: a longer wait might outlast the time-out of the connection.
            if (yield Query(f"SELECT GET_LOCK({name}, 1)"))[0][0] == 1:
                break
        else:
            if (yield from self.version()) < self.newest:
                raise StoreUnavailableError(
                    f"another process has been migrating {self.table} for {LOCK_TIMEOUT} s; try again"
                )
        # Claims wait behind a change that waits for a table, by default for hours.
        yield Change("SET SESSION lock_wait_timeout = 1")
        try:
            done = yield from steps
        except Exception:
            # The same session may try again: a lock that is taken twice must be released twice.
            yield from self._let_go(name)
            raise
        yield from self._let_go(name)
        return done

    def _let_go(self, name: str) -> Program[None]:
        yield Change("SET SESSION lock_wait_timeout = DEFAULT")
        yield Query(f"SELECT RELEASE_LOCK({name})")


def _has_table(name: str) -> Program[bool]:
    query = (
        "SELECT 1 FROM information_schema.tables"
        " WHERE table_schema = DATABASE() AND table_name = %s"
    )
    return bool((yield Query(query, (name,))))


class MysqlRecordsSchema(MysqlSchema, RecordsSchema):
    pass
