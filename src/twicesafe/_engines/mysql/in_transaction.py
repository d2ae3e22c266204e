"""Transaction mode on MariaDB and MySQL: the record is written in the caller's transaction.

The insert returns the new or the existing record, and waits for a transaction that locks the key. Our
savepoint shows whether the handler ended the transaction (a change of the schema also
commits). It ends with its transaction, and a new transaction does not have it. On MariaDB, savepoint
and insert are one statement, and so are release and update. MySQL needs one statement for each, has no
``RETURNING``, and waits for the session's `innodb_lock_wait_timeout`.

The caller's session has the caller's settings. So texts are sent as bytes, which works with any
character set, and times are computed from UTC, which works in any time zone. ``SET timestamp`` stops the
clock of a session, all but SYSDATE. An empty text is x'', because '' may mean NULL (EMPTY_STRING_IS_NULL).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from ..._core.inbox_requests import Enter, Entered, Leave
from ..._core.protocol import Claimed, Verdict
from ..._values.records import Row
from ...errors import AtomicityBrokenError, TooLargeError
from ...stores._base import Program
from ..sql.commands import COLUMNS, Change, Query, scope_text
from ..sql.in_transaction import InTransaction, look, savepoint
from ..sql.layouts import NARROW, Layout
from .one_column import RECORD, record_from
from .programs import UTC_NOW, MysqlPrograms
from .sweep import GATE

__all__ = ["MysqlInTransaction"]

BATCH: Final = 1000
"""The most records in one statement."""

LARGE: Final = 256 * 1024
"""Size of a statement in bytes above which we ask the server for its limit."""


_TEXTS: Final = [COLUMNS.split(", ").index(name) for name in ("scope", "value", "error")]


def _text(kept: str | bytes) -> str:
    return kept.decode() if isinstance(kept, bytes) else kept


class _Programs(MysqlPrograms):
    def bind(self, text: str) -> Any:
        return text.encode()

    def row(self, columns: Any, id: bytes = b"") -> Row:  # noqa: A002
        """The caller's driver or session may read texts as bytes."""
        texts = {place: _text(columns[place]) for place in _TEXTS}
        return super().row([texts.get(place, each) for place, each in enumerate(columns)], id)


class MysqlInTransaction(InTransaction):
    """The programs for the caller's transaction."""

    programs: MysqlPrograms

    def __init__(
        self,
        table: str,
        mariadb: bool,
        now: str = UTC_NOW,
        gates: bool = False,
        layout: Layout = NARROW,
    ) -> None:
        """`gates`: the floors for transactions exist (see `sweep`)."""
        gate = GATE if gates else "1"
        programs = self.programs = _Programs(table, mariadb, now, gate, layout)
        self._mariadb = mariadb
        self._into = (
            f"INSERT INTO {programs.records} (id, owner, state, lease_until, expires_at, fingerprint,"
            " scope, value, fence, attempt, created_at, changed_at, hold, cause, error) VALUES "
        )
        self._one = _row(now, programs.next_fence)
        # A batch reads them once: the server's time for a subquery in each row grows by the square.
        self._read_once = f"SET @twicesafe_fence = {programs.next_fence}, @twicesafe_now = {now}"
        self._each = _row("@twicesafe_now", "@twicesafe_fence")
        self._or_look = f" ON DUPLICATE KEY UPDATE n = {programs.records}.n"
        self._answered = f"{RECORD.format(now=now)}, id, n"
        # By its number: at REPEATABLE READ a lookup by id also locks the gap below it, and the keys in
        # that gap could not be claimed until the caller commits.
        self._leave = (
            f"UPDATE {programs.records} SET state = 1, result = %s, lease_until = 0, changed_at = {now},"
            f" expires_at = {now} + %s WHERE n = %s AND owner = %s AND fence = %s AND state = 0"
        )

    def enter(self, asks: Sequence[Enter], wait: float) -> Program[list[Entered]]:
        yield from self.fetch(asks)
        ordered = sorted(asks, key=lambda ask: ask.id)  # sorted, so that two batches never deadlock
        answers: dict[bytes, Entered] = {}
        for start in range(0, len(ordered), BATCH):
            yield from self._enter(ordered[start : start + BATCH], wait, answers)
        return [answers[ask.id] for ask in asks]

    def _enter(
        self, ordered: Sequence[Enter], wait: float, answers: dict[bytes, Entered]
    ) -> Program[None]:
        """`enter` in one statement."""
        stored = self.programs.stored
        marks = {ask.id: None if ask.done else savepoint(ask.owner) for ask in ordered}
        row = self._one if len(ordered) == 1 else self._each
        sql = self._into + ", ".join([row] * len(ordered)) + self._or_look
        values = tuple(value for ask in ordered for value in _values_of(ask, stored(ask.id)))
        before = [f"SAVEPOINT {mark}" for mark in marks.values() if mark is not None]
        if row is self._each:
            before.append(self._read_once)
        if self._mariadb:
            sql += f" RETURNING {self._answered}"
            if before:
                sql = f"BEGIN NOT ATOMIC {'; '.join(before)}; {sql}; END"
            rows = yield Query(
                f"SET STATEMENT innodb_lock_wait_timeout = {math.ceil(wait):d} FOR {sql}", values
            )
        else:
            for statement in before:
                yield Change(statement)
            yield Change(sql, values)
            places = ", ".join(["%s"] * len(ordered))
            rows = yield Query(  # FOR UPDATE reads the newest version; we hold the lock anyway
                f"SELECT {self._answered} FROM {self.programs.records} WHERE id IN ({places}) FOR UPDATE",
                tuple(stored(ask.id) for ask in ordered),
            )
        width = self.programs.layout.width
        by_id = {row[1]: row for row in rows}
        for ask in ordered:
            record, _, number = by_id[stored(ask.id)]
            answer = None if record is None else _answer(ask, *record_from(record, ask.id, width))
            if answer is None:
                answer = yield from self._decide(ask)
            mark = marks[ask.id]
            answers[ask.id] = Entered(answer, mark and (mark, number))

    def leave(self, ask: Leave) -> Program[bool]:
        end = ask.ask
        point, number = ask.mark
        yield from _check_size(end.result)
        values = (end.result, end.retention, number, end.owner, end.fence)
        release = f"RELEASE SAVEPOINT {point}"
        try:
            if self._mariadb:
                both = f"BEGIN NOT ATOMIC {release}; {self._leave}; END"
                return bool((yield Change(both, values)))
            yield Change(release)
        except AtomicityBrokenError:
            return False
        return bool((yield Change(self._leave, values)))


def _row(now: str, fence: str) -> str:
    """The values of a new record."""
    return f"(%s, %s, %s, IF(%s, 0, {now}), IF(%s, {now} + %s, 0), %s, %s, %s, {fence}, 1, {now}, {now}, 1, 0, x'')"


def _check_size(result: bytes | None) -> Program[None]:
    """Raise `TooLargeError` before the server closes the connection, which would look like an outage.

    The limit belongs to the caller's connection, so it is read there, and only for a large result.
    """
    longest = 2 * len(result or b"") + 4096  # drivers send bytes escaped or as hex
    if longest > LARGE and longest > (most := (yield Query("SELECT @@max_allowed_packet"))[0][0]):
        raise TooLargeError(
            f"the result has {len(result or b'')} bytes and max_allowed_packet of the server is {most}"
        )


def _values_of(ask: Enter, id_: bytes) -> tuple[Any, ...]:
    key, done = ask.key, int(ask.done)
    return (
        *(id_, ask.owner, done, done, done, ask.retention, ask.fingerprint),
        *(scope_text(key.scope).encode(), key.value.encode()),
    )


def _answer(ask: Enter, row: Row, now: int) -> Claimed | None:
    """The answer from the record; None: decide under a lock."""
    if row.owner == ask.owner:
        return Claimed(Verdict.WON, row.fence, row.attempt, row.cause)
    return look(row, ask, now)
