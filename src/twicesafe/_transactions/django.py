"""Django: a database connection, or its alias, inside ``atomic()``.

The statements go through Django's own cursor, in the caller's thread, so its thread-local
connection, `atomic` and query log work as usual.
"""

from __future__ import annotations

import sys
from typing import Any, Final, cast

from .._engines.sql.commands import Change, Query
from ..errors import AtomicityBrokenError, TwicesafeError, UsageError
from .base import Dialect, Ends, Style, Transaction, TransactionState, plain, refuse_pipeline
from .mysql import with_hex

__all__ = ["DjangoTransaction"]

_VENDORS: Final[dict[str, Dialect]] = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "mysql": "mysql",
}


class DjangoTransaction(Transaction):
    style: Style = "%s"  # Django's, with every driver
    remedy = "use `with transaction.atomic():`"

    def __init__(self, connection: Any) -> None:
        if isinstance(connection, str):
            connection = _named(connection)
        vendor = connection.vendor
        if vendor not in _VENDORS:
            raise UsageError(
                f"this Django database is {vendor}, but a record can join only a transaction of "
                "SQLite, PostgreSQL, MySQL or MariaDB"
            )
        self.dialect = _VENDORS[vendor]
        self._connection = connection

    @staticmethod
    def ends(connection: Any) -> Ends:
        from django.db import transaction
        from django.db.backends.base.base import BaseDatabaseWrapper

        known = _named(connection) if isinstance(connection, str) else connection
        # `django.db.connection` is a proxy for the connection of the current thread, not a wrapper itself.
        if isinstance(known, BaseDatabaseWrapper) and _named(known.alias) is not known:
            raise UsageError(
                "this Django connection belongs to another thread (a step with a timeout runs in its own "
                f"thread); pass the alias instead: {known.alias!r}"
            )
        block = transaction.atomic(using=known.alias)
        return Ends(
            lambda: not known.in_atomic_block and known.get_autocommit(),
            block.__enter__,
            lambda: block.__exit__(None, None, None),
            lambda: block.__exit__(Exception, Exception(), None),
        )

    def driver(self) -> Any:
        self._connection.ensure_connection()
        return self._connection.connection

    def look(self, answered: bool = False) -> TransactionState:
        """Both Django and the server must report the caller's open transaction."""
        connection = self._connection
        if not connection.in_atomic_block:
            if connection.get_autocommit():
                return TransactionState.COMMITS
        elif connection.needs_rollback:
            return TransactionState.FAILED
        refuse_pipeline(self.driver(), "Django")
        state = super().look(answered)
        if (
            state is TransactionState.OPEN
            and self.dialect == "sqlite"
            and connection.in_atomic_block
            and self.driver().isolation_level is not None
        ):
            raise UsageError(
                "with AUTOCOMMIT off, atomic() on SQLite is a SAVEPOINT that may have no BEGIN before "
                "it: its end would commit the record separately from the rest; leave AUTOCOMMIT on"
            )
        return state

    def explained(self, error: Exception) -> TwicesafeError:
        if self._connection.needs_rollback and not isinstance(error, TwicesafeError):
            return AtomicityBrokenError(
                "Django has marked the transaction to be rolled back: set_rollback() was called, or an error "
                "inside atomic() was caught"
            )
        return super().explained(error)

    def execute(self, statement: Query | Change) -> Any:
        sent = with_hex(statement) if self.dialect == "mysql" else statement
        with self._connection.cursor() as cursor:
            cursor.execute(sent.sql, sent.args)
            if type(statement) is not Query:
                return cast("int", cursor.rowcount)
            return plain(cursor.fetchall()) if cursor.description else []


def _named(alias: str) -> Any:
    if "django.db" not in sys.modules:
        raise UsageError(
            "text is the alias of a Django database, but Django is not loaded; pass the "
            "connection itself"
        )
    from django.db import connections

    return connections[alias]
