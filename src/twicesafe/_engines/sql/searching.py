"""The programs that search the records of a SQL store: browse, count, and the audit log of all keys.

Every condition is written once, as SQL that means the same as `_core.record_filter.matches`. No
condition needs an index, because every claim would pay for it: a search reads the table from its
newest end. With the optional index on values (docs/decisions/0023-search-without-an-index.md) the
engine looks a value up instead.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from ..._core.protocol import AuditLog, Browse, Count, Filter, Page
from ..._core.record_filter import readable
from ..._values.keys import Key
from ..._values.records import AuditEntry, Row, State, moment
from ...stores._base import Program
from .commands import Query, number_of, scope_of, scope_prefix, state_of

__all__ = ["LOOKED_UP", "SqlSearch"]

LOOKED_UP: Final = 500
"""Keys that one statement looks up."""


class SqlSearch:
    """A base class of `SqlPrograms`, which defines the rest."""

    columns: str
    everything: str
    audit: str
    identity: Any
    place: ClassVar[str] = ", n"
    """What is selected besides the columns, to continue after this row."""

    def mark(self, sql: str) -> str:
        raise NotImplementedError

    def clock(self) -> Program[int]:
        raise NotImplementedError

    def row(self, columns: Any, id: bytes = b"") -> Row:  # noqa: A002
        raise NotImplementedError

    def id_place(self) -> str:
        raise NotImplementedError

    def bind(self, text: str) -> Any:
        raise NotImplementedError

    def text(self, kept: Any) -> str:
        raise NotImplementedError

    # -- what an engine may replace ---------------------------------------------------------------

    def column(self, name: str) -> str:
        """SQL for the value of a column."""
        return name

    def equals(self, sql: str, text: str) -> tuple[str, tuple[Any, ...]]:
        """A condition that this is the text, byte by byte."""
        return f"{sql} = ?", (self.bind(text),)

    def newest_first(self) -> str:
        return "n DESC"

    def past(self, after: str) -> tuple[str, tuple[Any, ...]]:
        """The condition of the rows after this cursor."""
        return "n < ?", (int(after),)

    def cursor(self, columns: Any) -> str:
        return str(columns[-1])

    # -- searching ----------------------------------------------------------------------------

    def browse(self, ask: Browse) -> Program[Page]:
        now = yield from self.clock()
        where, args = self._conditions(ask, now)
        if ask.after:
            past, values = self.past(ask.after)
            where, args = f"{where} AND {past}", (*args, *values)
        found = yield Query(
            self.mark(
                f"SELECT {self.columns}{self.place} FROM {self.everything} WHERE {where}"
                f" ORDER BY {self.newest_first()} LIMIT ?"
            ),
            (*args, ask.limit + 1),
        )
        extra = -1 if self.place else None
        unreadable: dict[str, None] = {}
        rows = readable(
            found[: ask.limit],
            lambda columns: self.row(columns[:extra]),
            lambda columns: bytes(columns[0]).hex(),
            unreadable,
        )
        after = self.cursor(found[ask.limit - 1]) if len(found) > ask.limit else ""
        return Page(rows, after, tuple(unreadable))

    def count(self, ask: Count) -> Program[int]:
        now = yield from self.clock()
        where, args = self._conditions(ask, now)
        some = f"SELECT 1 FROM {self.everything} WHERE {where} LIMIT ?"
        found = yield Query(
            self.mark(f"SELECT count(*) FROM ({some}) AS found"), (*args, ask.limit)
        )
        return found[0][0]  # type: ignore[no-any-return]

    def _conditions(self, ask: Filter, now: int) -> tuple[str, tuple[Any, ...]]:
        column = self.column
        parts: list[tuple[str, tuple[Any, ...]]] = [
            (f"NOT ({column('expires_at')} BETWEEN 1 AND ?)", (now,))
        ]
        if ask.states:
            numbers = ", ".join(str(number_of(state)) for state in ask.states)
            parts.append((f"state IN ({numbers})", ()))
        if ask.stuck:
            running = number_of(State.IN_PROGRESS)
            parts.append((f"state = {running} AND {column('lease_until')} <= ?", (now,)))
        if ask.scope:
            parts.append(self._starts_with("scope", scope_prefix(ask.scope)))
        if ask.value is not None:
            parts.append(self.equals("value", ask.value))  # the column itself: it may be indexed
        if ask.error:
            parts.append(self._starts_with("error", ask.error))
        if ask.changed_after is not None:
            parts.append(("changed_at >= ?", (ask.changed_after,)))
        if ask.changed_before is not None:
            parts.append(("changed_at < ?", (ask.changed_before,)))
        if ask.cause is not None:
            parts.append((f"{column('cause')} = {number_of(ask.cause)}", ()))
        if ask.digits:
            place = self.id_place()
            ends = (bytes.fromhex(ask.digits.ljust(64, digit)) for digit in "0f")
            parts.append((f"id BETWEEN {place} AND {place}", tuple(map(self.identity, ends))))
        where = " AND ".join(sql for sql, _ in parts)
        return where, tuple(value for _, values in parts for value in values)

    def _starts_with(self, name: str, text: str) -> tuple[str, tuple[Any, ...]]:
        return self.equals(f"substr({self.column(name)}, 1, {len(self.bind(text)):d})", text)

    # -- the audit log ------------------------------------------------------------------------

    def audit_log(self, ask: AuditLog) -> Program[list[AuditEntry]]:
        entries = yield Query(
            self.mark(
                f"SELECT id, at, action, done_by, why, state_before FROM {self.audit} WHERE at >= ?"
                " ORDER BY n DESC LIMIT ?"
            ),
            (ask.since, ask.limit),
        )
        keys = yield from self._keys_of({bytes(entry[0]) for entry in entries})
        log = []
        for kept, at, action, by, why, before in entries:
            key = keys.get(bytes(kept)[:16])
            log.append(
                AuditEntry(
                    id=bytes(kept) if key is None else key.id,
                    at=moment(at),
                    action=action,
                    by=self.text(by),
                    why=self.text(why),
                    state_before=state_of(before),
                    scope=() if key is None else key.scope,
                    value="" if key is None else key.value,
                )
            )
        return log

    def _keys_of(self, ids: set[bytes]) -> Program[dict[bytes, Key]]:
        """The keys of these ids, by their first 16 bytes. A forgotten one has none."""
        wanted = sorted(ids)
        keys: dict[bytes, Key] = {}
        for start in range(0, len(wanted), LOOKED_UP):
            some = tuple(self.identity(id_) for id_ in wanted[start : start + LOOKED_UP])
            which = ", ".join([self.id_place()] * len(some))
            texts = f"{self.column('scope')}, {self.column('value')}"
            rows = yield Query(
                self.mark(f"SELECT {texts} FROM {self.everything} WHERE id IN ({which})"), some
            )
            for scope, value in rows:
                if value:
                    key = Key(self.text(value), scope_of(self.text(scope)))
                    keys[key.id[:16]] = key
        return keys
