"""Runs statements on one connection of psycopg, blocking or async, below the level of its cursors.

A cursor converts the text and looks up its plan at every execution; that takes longer than sending
the statement and reading its answer. Here a text is prepared once per connection. Values are
converted by psycopg's adapters, in binary.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from ..sql.commands import Change, Query, dollars

if TYPE_CHECKING:
    import psycopg

__all__ = ["StatementRunner"]

MOST: Final = 100
"""Statements that are prepared on one connection. Others, of rare searches, are not."""


class StatementRunner:
    """The statements of one connection. One runs at a time."""

    def __init__(
        self,
        connection: psycopg.BaseConnection[Any],
        prepares: bool,
        timeout: float = float("inf"),
    ) -> None:
        from psycopg import errors, generators, pq
        from psycopg.types.numeric import Int8BinaryDumper

        # All integers as one type: psycopg would choose among three by size, and prepare the
        # statement for each.
        connection.adapters.register_dumper(int, Int8BinaryDumper)
        self._connection, self._pgconn = connection, connection.pgconn
        self._most = MOST if prepares else 0
        self._timeout = timeout
        self._known: dict[str, _Statement] = {}
        self._names = itertools.count()
        self._execute, self._error_from = generators.execute, errors.error_from_result
        self._unanswered = errors.OperationalError
        self._good = frozenset({pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK})

    def run(self, command: Query | Change) -> Generator[Any, Any, Any]:
        """Send it. For the `wait` of the connection: it returns the rows, or how many were changed."""
        statement = self._known.get(command.sql)
        if statement is None:
            statement = _Statement(command.sql, len(command.args), self._connection)
            if len(self._known) < self._most:
                self._known[command.sql] = statement
        adapter, pgconn = statement.adapter, self._pgconn
        values = adapter.dump_sequence(command.args, statement.formats)
        asked = statement if type(command) is Query else None
        name = statement.names.get(adapter.types)
        if name is not None:
            pgconn.send_query_prepared(name, values, adapter.formats, 1)
        elif command.sql in self._known:
            return self._prepare(statement, values, asked)
        else:
            pgconn.send_query_params(statement.text, values, adapter.types, adapter.formats, 1)
        return self._answer(asked)

    def _prepare(
        self, statement: _Statement, values: Any, asked: _Statement | None
    ) -> Generator[Any, Any, Any]:
        adapter, name = statement.adapter, b"twicesafe_%d" % next(self._names)
        self._pgconn.send_prepare(name, statement.text, adapter.types)
        yield from self._answer(None)
        statement.names[adapter.types] = name
        self._pgconn.send_query_prepared(name, values, adapter.formats, 1)
        return (yield from self._answer(asked))

    def _answer(self, asked: _Statement | None) -> Generator[Any, Any, Any]:
        """The server may be stopped, or unreachable without an error: TCP alone would wait forever."""
        until = time.monotonic() + self._timeout
        waits = self._execute(self._pgconn)
        ready: Any = None
        result: Any = None
        while result is None:
            try:
                wanted = waits.send(ready)
            except StopIteration as end:
                result = end.value[-1]
            else:
                ready = yield wanted
                if not ready and time.monotonic() > until:
                    raise self._unanswered(f"no answer within {self._timeout:g} s")
        if result.status not in self._good:
            raise self._error_from(result, self._connection.info.encoding)
        return result.command_tuples or 0 if asked is None else asked.rows(result)


class _Statement:
    """One text. Its values and rows always have the same types, so their adapters are chosen once."""

    __slots__ = ("_reads", "adapter", "formats", "names", "text")

    def __init__(self, sql: str, values: int, connection: psycopg.BaseConnection[Any]) -> None:
        from psycopg.adapt import PyFormat, Transformer

        self.text = dollars(sql.replace("%b", "?")).encode()
        self.formats = [PyFormat.BINARY] * values
        self.adapter = Transformer(connection)
        self.names: dict[Any, bytes] = {}
        """By the types of the values: NULL has none."""
        self._reads = False

    def rows(self, result: Any) -> list[Any]:
        adapter = self.adapter
        adapter.set_pgresult(result, set_loaders=not self._reads)
        self._reads = True
        rows = adapter.load_rows(0, result.ntuples, tuple)
        adapter.set_pgresult(None, set_loaders=False)  # an idle connection keeps no answer
        return rows
