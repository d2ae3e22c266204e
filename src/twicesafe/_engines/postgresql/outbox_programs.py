"""The outbox of PostgreSQL: one statement adds a message, keeps the order, and wakes relays.

The gate of a lane is an advisory lock of the transaction, so it needs no row and no extra round
trip. A transaction holds at most as many as there are gates, however many messages it adds. Gates
are numbered by the table's oid, so it does not matter whether the table is found by its schema or by
the search path.

NOTIFY is not free: commits that notify wait for each other. So only sleeping relays are notified; a
busy one fetches anyway.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from ..._core.outbox.requests import GATES, Added, OutboxRequest, Reply, Settle, Unpark
from ...errors import StoreError
from ...stores._base import Program
from ..sql.commands import Change, Query, dollars
from ..sql.migrations import Schema
from ..sql.outbox_dialect import WRITTEN, gates_of, values_of
from ..sql.outbox_programs import OutboxPrograms, RunProgram, SqlOutboxPort
from .schema import PostgresSchema
from .settings import code_of, percents
from .statements import CHANNEL, NOW

__all__ = ["PostgresOutbox", "PostgresOutboxPort", "PostgresOutboxSchema", "wakeup_id"]

T = TypeVar("T")

_UNTRANSLATABLE: Final = "22P05"
"""SQLSTATE: the encoding of the database lacks a character."""

_OURS: Final = 0x7C5AF << 42
"""The first of our advisory locks: all users of the database share their numbers."""

_WAKEUP: Final = hashlib.sha256(b"twicesafe.outbox.wakeup.1").digest()[:16]
"""Prefix of what is announced to a sleeping relay; its owner token follows."""

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
        super().__init__(PostgresOutboxSchema(table, schema, mark), mark, now, migrates)
        self._named = (table, schema)
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
            SELECT pg_notify('{CHANNEL}', '{_WAKEUP.hex()}' || encode(owner, 'hex'))::text
            FROM {self.t}_relays WHERE asleep""")
        self._sleep = mark(
            f"UPDATE {self.t}_relays SET asleep = true WHERE owner = ? AND NOT asleep"
        )
        self._ready = mark(f"""
            SELECT EXISTS (
                SELECT FROM {self.t} o {self.in_trouble}
                WHERE slot IN (SELECT slot FROM {self.t}_slots WHERE owner = ?)
                AND {self.may_go()})""")

    def with_placeholders(self, style: str) -> PostgresOutbox:
        marks = {"%s": percents, "$1": dollars}
        return PostgresOutbox(*self._named, marks[style], self.now, self.migrates)

    def noted(self, text: str) -> bytes:
        return text.encode()

    def among(self, column: str, numbers: Sequence[int]) -> tuple[str, tuple[Any, ...]]:
        return f"{column} = ANY(?::bigint[])", (list(numbers),)

    def not_among(self, column: str, lanes: Sequence[bytes]) -> tuple[str, tuple[Any, ...]]:
        return f"{column} <> ALL(?::bytea[])", (list(lanes),)

    def add(self, added: Sequence[Added]) -> Program[None]:
        columns = zip(*map(values_of, added), strict=True)
        yield Query(self._add, (gates_of(added), *map(list, columns)))

    def outbox_settle(self, ask: Settle) -> Program[int]:
        if not ask.setbacks:
            return super().outbox_settle(ask)
        setbacks = [msgspec.structs.replace(it, error=_escaped(it.error)) for it in ask.setbacks]
        plain = msgspec.structs.replace(ask, setbacks=setbacks)
        return _first_possible(super().outbox_settle(ask), super().outbox_settle(plain))

    def outbox_unpark(self, ask: Unpark) -> Program[bool]:
        plain = msgspec.structs.replace(ask, by=_escaped(ask.by), why=_escaped(ask.why))
        return _first_possible(super().outbox_unpark(ask), super().outbox_unpark(plain))

    def awaits(self, owner: bytes) -> Program[bool]:
        """From now on, `add` notifies this relay. False: a message is there already."""
        yield Change(self._sleep, (owner,))
        return not (yield Query(self._ready, (owner,)))[0][0]


def _first_possible(exact: Program[T], plain: Program[T]) -> Program[T]:
    """The plain program, if the encoding of the database lacks a character of the exact one."""
    try:
        return (yield from exact)
    except StoreError as error:
        if code_of(error) != _UNTRANSLATABLE:
            raise
    return (yield from plain)


def _escaped(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()


class PostgresOutboxPort(SqlOutboxPort):
    """Every request but `Unpark` may be repeated after a lost connection."""

    def __init__(
        self,
        programs: PostgresOutbox,
        run: RunProgram,
        repeat: Callable[[Callable[[], Program[Any]]], Any],
        wait: Callable[[bytes, float, Callable[[], Program[bool]]], None],
    ) -> None:
        super().__init__(programs)
        self._run, self._repeat, self._wait = run, repeat, wait
        self._awaits = programs.awaits

    def perform(self, request: OutboxRequest[Reply]) -> Reply:
        program: Callable[[Any], Program[Reply]] = getattr(self.programs, request.op)
        if type(request) is not Unpark:
            return self._repeat(lambda: program(request))  # type: ignore[no-any-return]
        self._repeat(self.programs.look)
        return self._run(program(request))

    def listen(self, owner: bytes, seconds: float) -> None:
        self._wait(wakeup_id(owner), seconds, lambda: self._awaits(owner))


def wakeup_id(owner: bytes) -> bytes:
    """The id under which this relay is notified."""
    return _WAKEUP + owner
