"""The schema of MariaDB and MySQL: is it there, which version, and how it is migrated."""

from __future__ import annotations

from typing import ClassVar, Final

from ...errors import StoreUnavailableError
from ...stores._base import Program
from ..sql.commands import Query
from ..sql.migrations import Schema, migrate

__all__ = ["BEGIN", "MysqlSchema"]

BEGIN: Final = "START TRANSACTION"


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

    def migrate(self, patience: int) -> Program[list[str]]:
        """Changes of the schema commit by themselves here, so a named lock keeps other processes out."""
        if (yield from self.version()) >= self.newest:
            return []
        name = f"CONCAT('twicesafe:', LEFT(SHA1(CONCAT(DATABASE(), '.{self.table}')), 40))"
        got = (yield Query(f"SELECT GET_LOCK({name}, {patience:d})"))[0][0]
        if got != 1 and (yield from self.version()) < self.newest:
            raise StoreUnavailableError(
                f"another process has been migrating {self.table} for {patience} s; try again"
            )
        done = yield from migrate(self, BEGIN)
        # After an error the session is closed, which releases the lock too.
        yield Query(f"SELECT RELEASE_LOCK({name})")
        return done
