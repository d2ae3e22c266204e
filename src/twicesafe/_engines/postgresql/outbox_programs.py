"""The outbox of PostgreSQL: one statement adds a message, keeps the order, and wakes who sleeps.

The gate of a lane is an advisory lock of the transaction, so it costs no row and no extra trip. A
transaction holds at most as many as there are gates, however many messages it adds. Gates go by the
table's own number: who finds it by its schema and who finds it by the search path meet there.

NOTIFY is not free: commits that announce something queue up behind each other. So only a relay that
sleeps is announced to, and one that is busy is not: it looks by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from ..._core.outbox_requests import BELL, GATES
from ...stores._base import Program
from ..sql.commands import Change, Query, dollars
from ..sql.migrations import Schema
from ..sql.outbox_programs import WRITTEN, Added, OutboxPrograms, gates_of, is_outbox, values_of
from .programs import CHANNEL, NOW, PostgresPrograms, PostgresSchema
from .settings import percents

__all__ = ["PostgresOutbox", "PostgresOutboxSchema", "awaiting", "program_for"]

_OURS: Final = 0x7C5AF << 42
"""Advisory locks are shared with everyone in the database: ours begin here."""

_TYPES: Final = ("smallint", "bytea", "text", "text", "text", "text", "text", "bytea")


class PostgresOutboxSchema(PostgresSchema):
    def __init__(self, table: str, schema: str, mark: Callable[[str], str]) -> None:
        super().__init__(table, schema, mark)
        Schema.__init__(self, "postgresql_outbox", f"{self.table}_outbox")


class PostgresOutbox(OutboxPrograms):
    dialect: ClassVar[str] = "postgresql"

    def __init__(
        self,
        table: str,
        schema: str,
        mark: Callable[[str], str],
        now: str = NOW,
        migrates: bool = True,
    ) -> None:
        super().__init__(PostgresOutboxSchema(table, schema, mark), mark, migrates)
        self._now, self._named = now, (table, schema)
        asked = ", ".join(f"?::{kind}[]" for kind in _TYPES)
        self._add = mark(f"""
            WITH gate AS MATERIALIZED (
                SELECT pg_advisory_xact_lock(
                    {_OURS:d} + '{self.t}'::regclass::oid::bigint * {GATES:d} + gate)
                FROM unnest(?::bigint[]) AS gate
            ), put AS (
                INSERT INTO {self.t} (created_at, {WRITTEN})
                SELECT {self.instant()}, {WRITTEN} FROM (SELECT count(*) FROM gate) AS passed,
                    unnest({asked}) WITH ORDINALITY AS a ({WRITTEN}, place)
                ORDER BY place
            )
            SELECT pg_notify('{CHANNEL}', '{BELL.hex()}' || encode(owner, 'hex'))::text
            FROM {self.t}_relays WHERE asleep""")
        self._sleep = mark(
            f"UPDATE {self.t}_relays SET asleep = true WHERE owner = ? AND NOT asleep"
        )
        self._ready = mark(f"""
            SELECT EXISTS (
                SELECT FROM {self.t} o {self._in_trouble}
                WHERE slot IN (SELECT slot FROM {self.t}_slots WHERE owner = ?)
                AND {self.may_go()})""")

    def speaking(self, style: str) -> PostgresOutbox:
        marks = {"%s": percents, "$1": dollars}
        return PostgresOutbox(*self._named, marks[style], self._now, self.migrates)

    def now(self) -> str:
        return self._now

    def among(self, column: str, numbers: Sequence[int]) -> tuple[str, tuple[Any, ...]]:
        return f"{column} = ANY(?::bigint[])", (list(numbers),)

    def not_among(self, column: str, lanes: Sequence[bytes]) -> tuple[str, tuple[Any, ...]]:
        return f"{column} <> ALL(?::bytea[])", (list(lanes),)

    def upsert(self, table: str, columns: str, values: str, overwritten: Sequence[str]) -> str:
        changes = ", ".join(f"{name} = excluded.{name}" for name in overwritten)
        first = columns.partition(",")[0]
        return (
            f"INSERT INTO {table} ({columns}) VALUES ({values})"
            f" ON CONFLICT ({first}) DO UPDATE SET {changes}"
        )

    def add(self, added: Sequence[Added], created_at: int) -> Program[None]:
        """`created_at` is not used: the server tells the time."""
        columns = zip(*map(values_of, added), strict=True)
        yield Query(self._add, (gates_of(added), *map(list, columns)))

    def awaits(self, owner: bytes) -> Program[bool]:
        """From now on, what is added is announced. False: something is there already."""
        yield Change(self._sleep, (owner,))
        return not (yield Query(self._ready, (owner,)))[0][0]


def program_for(programs: PostgresPrograms, outbox: PostgresOutbox, request: Any) -> Program[Any]:
    """Records and the outbox are in one database, and asked through one store."""
    return outbox.perform(request) if is_outbox(request.op) else programs.perform(request)


def awaiting(programs: PostgresPrograms, outbox: PostgresOutbox, id: bytes) -> Program[bool]:  # noqa: A002
    """Before a wait: for the end of a key's work, or for what a relay's bell announces."""
    if id[: len(BELL)] == BELL:
        return outbox.awaits(id[len(BELL) :])
    return programs.awaits(id)
