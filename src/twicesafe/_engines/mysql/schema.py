"""The schema of MariaDB and MySQL: is it there, which version, and how it is migrated."""

from __future__ import annotations

import re
from typing import ClassVar, Final, TypeVar

from ...errors import StoreUnavailableError
from ...stores._base import Program
from ..sql.commands import Change, Query
from ..sql.migrations import RecordsSchema, Schema, migrate

__all__ = ["BEGIN", "MysqlRecordsSchema", "MysqlSchema"]

T = TypeVar("T")

BEGIN: Final = "START TRANSACTION"

_IF: Final = re.compile(r"/\* if (\w+) \*/")
"""A statement that needs this table. If it is missing, the statement has run before."""


class MysqlSchema(Schema):
    number: ClassVar[str] = "`schema`"
    repeatable: ClassVar[bool] = True

    def exists(self) -> Program[bool]:
        meta = f"{self.table}_meta"
        query = (
            "SELECT 1 FROM information_schema.tables"
            " WHERE table_schema = DATABASE() AND table_name = %s"
        )
        if not (yield Query(query, (meta,))):
            return False
        return bool((yield Query(f"SELECT 1 FROM {meta}")))  # empty: a migration was interrupted

    def is_needed(self, statement: str) -> Program[bool]:
        named = _IF.match(statement)
        if named is None:
            return True
        query = (
            "SELECT 1 FROM information_schema.tables"
            " WHERE table_schema = DATABASE() AND table_name = %s"
        )
        return bool((yield Query(query, (named[1],))))

    def migrate(self, timeout: int) -> Program[list[str]]:
        """Changes of the schema commit by themselves here, so a named lock keeps other processes out."""
        version = yield from self.version()
        if version >= self.opening_goal(version):
            return []
        return (yield from self.alone(migrate(self, BEGIN), timeout))

    def alone(self, steps: Program[T], timeout: int) -> Program[T]:
        """Run this while no other process migrates."""
        name = f"CONCAT('twicesafe:', LEFT(SHA1(CONCAT(DATABASE(), '.{self.table}')), 40))"
        got = (yield Query(f"SELECT GET_LOCK({name}, {timeout:d})"))[0][0]
        if got != 1 and (yield from self.version()) < self.newest:
            raise StoreUnavailableError(
                f"another process has been migrating {self.table} for {timeout} s; try again"
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


class MysqlRecordsSchema(MysqlSchema, RecordsSchema):
    pass
