"""The outbox programs of MariaDB and MySQL. A lane's gate is a row, locked until the transaction commits.

Messages with a key need one statement more, which locks the gate. In a single statement, the row's
number could be taken before the gate is locked. Rows are locked and deleted by number (`row_lookup`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Protocol, TypeVar

from ..._core.outbox.requests import Added, OutboxRequest, Reply, Unpark
from ...errors import UsageError
from ...stores._base import Program
from ..sql.commands import Change, Query
from ..sql.outbox_dialect import COLUMNS, WRITTEN, all_values_of, gates_of, inlined, lanes_inlined
from ..sql.outbox_programs import OutboxPrograms, SqlOutboxPort
from .programs import NOW, UTC_NOW, MysqlPrograms
from .row_lookup import numbered
from .schema import MysqlSchema

__all__ = ["MysqlOutbox", "MysqlOutboxPort"]

T = TypeVar("T")

ROWS: Final = 200
"""In one INSERT."""

HEAVY: Final = 256 * 1024
"""Bytes in one INSERT of several messages, before the driver writes them as hex. A message with
more is sent alone."""


class MysqlOutbox(OutboxPrograms):
    dialect: ClassVar[str] = "mysql"
    begin: ClassVar[str] = MysqlPrograms.begin
    share: ClassVar[str] = " LOCK IN SHARE MODE"

    def __init__(self, table: str, now: str = NOW, migrates: bool = True) -> None:
        super().__init__(MysqlSchema("mysql_outbox", f"{table}_outbox"), _percents, now, migrates)
        self._added_at = UTC_NOW if now == NOW else now
        """The time in the caller's session."""

    def with_placeholders(self, style: str) -> MysqlOutbox:
        return self  # all its drivers use %s

    def among(self, column: str, numbers: Sequence[int]) -> tuple[str, tuple[Any, ...]]:
        return inlined(column, numbers)

    def not_among(self, column: str, lanes: Sequence[bytes]) -> tuple[str, tuple[Any, ...]]:
        return lanes_inlined(column, lanes)

    upsert = staticmethod(MysqlPrograms.upsert)

    def deletion(self, table: str, numbers: Sequence[int]) -> Change:
        return Change(f"DELETE o FROM {numbered(table, 'o', 'n', numbers)}")

    def copying(self, source: str, target: str, numbers: Sequence[int]) -> Change:
        columns = ", ".join(f"o.{name}" for name in COLUMNS.split(", "))
        return Change(
            f"INSERT INTO {target} ({COLUMNS}) SELECT {columns}"
            f" FROM {numbered(source, 'o', 'n', numbers)}"
        )

    def add(self, added: Sequence[Added]) -> Program[None]:
        """Texts are sent as bytes, whatever the character set of the caller's session is."""
        gates = gates_of(added)
        if gates:
            rows = numbered(f"{self.t}_gates", "g", "gate", gates)
            yield Query(f"SELECT g.gate FROM {rows} FOR UPDATE")
        for part in _parts(added):
            yield from _check_size(part)
            row = f"({self._added_at}{', ?' * 8})"
            yield Change(
                self.mark(
                    f"INSERT INTO {self.t} (created_at, {WRITTEN}) VALUES {', '.join([row] * len(part))}"
                ),
                tuple(
                    value.encode() if isinstance(value, str) else value
                    for value in all_values_of(part)
                ),
            )


class _Run(Protocol):
    def __call__(self, program: Callable[[], Program[T]], again: bool = ...) -> T: ...


class MysqlOutboxPort(SqlOutboxPort):
    """Every request but `Unpark` may be repeated after a lost connection."""

    def __init__(self, programs: MysqlOutbox, run: _Run) -> None:
        super().__init__(programs)
        self._run = run

    def perform(self, request: OutboxRequest[Reply]) -> Reply:
        program: Callable[[Any], Program[Reply]] = getattr(self.programs, request.op)
        once = type(request) is Unpark
        if once:
            self._run(self.programs.look)
        return self._run(lambda: program(request), again=not once)


def _percents(sql: str) -> str:
    return sql.replace("?", "%s")


def _parts(added: Sequence[Added]) -> list[list[Added]]:
    parts: list[list[Added]] = [[]]
    weight = 0
    for one in added:
        weight += _weight(one)
        if parts[-1] and (len(parts[-1]) == ROWS or weight > HEAVY):
            parts.append([])
            weight = _weight(one)
        parts[-1].append(one)
    return parts


def _weight(one: Added) -> int:
    return len(one.message.body) + len(one.headers)


def _check_size(part: Sequence[Added]) -> Program[None]:
    """Refuse a large message before the server closes the connection, which would look like an outage."""
    weight = _weight(part[0])
    if weight > HEAVY and 2 * weight + 4096 > (
        most := (yield Query("SELECT @@max_allowed_packet"))[0][0]
    ):
        raise UsageError(
            f"the message has {weight} bytes, which are sent as hex, and max_allowed_packet of the server is {most}: "
            "send a reference to the body, or raise max_allowed_packet"
        )
