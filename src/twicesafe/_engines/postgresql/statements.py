"""The SQL of claim, complete, fail and renew, each for one request and for many.

A claim is one statement that reads before it writes, so a duplicate writes nothing (no WAL, no row
lock). It inserts a missing record and takes over one that may be taken over. Both are one upsert, and
the takeover applies only to the version of the row that was read (its `ctid`). If the row changed
since, nothing is written, and the claim is tried again.

A single claim is first tried by a shorter statement, which cannot take over. The server needs a third less
time for it, because it prepares every expression of a statement before it executes it.

Every row is found by the index of ids. A plan may be made for an empty table and kept while the table
grows, so rows are looked up one by one (`LATERAL … OFFSET 0`), and an UPDATE of many finds its rows by
`ctid`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from .columns import Columns

__all__ = ["CHANNEL", "CLAIM", "EXPIRED", "ID", "NOW", "START", "TAKEABLE", "Statements"]

CHANNEL: Final = "twicesafe"
"""The channel of all notifications; the payload is the hex of the key's id, as it is stored."""

NOW: Final = "(date_part('epoch', clock_timestamp()) * 1000)::bigint"
"""Milliseconds of the server's clock; `now()` does not advance within a transaction."""

LOCK_TIMEOUT: Final = {True: 50, False: 1000}
"""Milliseconds to wait for a row that another transaction locks. True: for a claim, False: for others.
Other calls of this process may wait behind it. So a claim soon gets the answer that the key is in
progress; the writes of owners and operators are worth a longer wait."""

ID: Final = "{id}"
"""A placeholder for the type of an id."""

# One request is a row of values, many are arrays of columns: (name, type) in the order of the args.
CLAIM: Final = (
    ("ask", ID), ("me", "bytea"), ("lease", "bigint"), ("most", "bigint"),
    ("holds", "boolean"), ("print", "bytea"), ("in_scope", "bytea"), ("named", "bytea"),
)  # fmt: skip
_COMPLETE: Final = (
    ("id", ID), ("owner", "bytea"), ("fence", "bigint"), ("retention", "bigint"),
    ("result", "bytea"), ("state", "bigint"), ("error", "bytea"),
)  # fmt: skip
_FAIL: Final = (
    ("id", ID), ("owner", "bytea"), ("fence", "bigint"), ("delay", "bigint"),
    ("max_attempts", "bigint"), ("retention", "bigint"), ("error", "bytea"), ("hold", "boolean"),
)  # fmt: skip
_RENEW: Final = (("id", ID), ("owner", "bytea"), ("fence", "bigint"), ("lease", "bigint"))

# `s` joins each request with the record that was read. {r} is the record: as it was read, or as it is
# when it is locked.

_SEEN: Final = (
    "state", "fence", "attempt", "owner", "lease_until", "created_at", "changed_at", "expires_at",
    "hold", "cause", "fingerprint", "result", "error",
)  # fmt: skip

EXPIRED: Final = "{r}.expires_at BETWEEN 1 AND s.now"

COUNTED: Final = (
    "({r}.attempt - CASE WHEN {r}.state = 0 AND substr({r}.owner, 1, 5) = 'ahead'::bytea"
    " THEN 1 ELSE 0 END)"
)
"""The attempts so far, as `lifecycle` counts them: without a claim made before its start."""

TAKEABLE: Final = f"""({EXPIRED}
                OR ({{r}}.lease_until <= s.now AND {COUNTED} < s.most
                    AND ({{r}}.state IN (3, 7) OR ({{r}}.state = 0 AND NOT {{r}}.hold))
                    AND ({{r}}.fingerprint = s.print) IS NOT FALSE AND {{r}}.owner <> s.me))"""

_NEW: Final = f"({{r}}.state IS NULL OR {EXPIRED})"

START: Final = {
    "id": "s.ask",
    "owner": "s.me",
    "lease_until": "s.now + s.lease",
    "hold": "s.holds",
    "scope": "s.in_scope",
    "value": "s.named",
    "changed_at": "s.now",
    "expires_at": "0",
    "state": "0",
    "awaited": "false",
    "result": "NULL::bytea",
    "attempt": f"CASE WHEN {_NEW} THEN 1 ELSE {COUNTED} + 1 END",
    "created_at": f"CASE WHEN {_NEW} THEN {{new}} ELSE {{r}}.created_at END",
    "error": f"CASE WHEN {_NEW} THEN '' ELSE {{r}}.error END",
    "fingerprint": f"CASE WHEN {_NEW} THEN s.print ELSE coalesce(s.print, {{r}}.fingerprint) END",
    "cause": f"CASE WHEN {{r}}.state IS NULL THEN 0 WHEN {{r}}.state IN (3, 7) THEN {{r}}.cause"
    f" WHEN {EXPIRED} THEN 3 ELSE 2 END",
}
"""The columns of a record whose claim is won, all but its fence."""


NEW: Final = {
    **START,
    "attempt": "1",
    "created_at": "{new}",
    "error": "''",
    "fingerprint": "s.print",
    "cause": "0",
}
"""The same for a record that did not exist."""

_ANSWERED: Final = tuple(name for name in _SEEN if name not in ("created_at", "error"))
"""The columns of a record that an answer is made of."""


class Statements:
    """The statements of one table. Each is a pair: for one request, and for many."""

    placed: Mapping[str, str] = MappingProxyType({})
    """Columns that say where a record is stored."""

    def __init__(
        self, records: str, meta: str, mark: Callable[[str], str], now: str, columns: Columns
    ) -> None:
        self.records, self.meta, self._now, self._columns = records, meta, now, columns
        self.claim = mark(self._claim(False)), mark(self._claim(True))
        self.claim_new = mark(self._claim_new())
        """For one claim: enough for a new key, and for a duplicate."""
        self.complete = mark(self._complete(False)), mark(self._complete(True))
        self.fail = mark(self._fail(False)), mark(self._fail(True))
        self.renew = mark(self._renew(False)), mark(self._renew(True))

    def asks(self, columns: Sequence[tuple[str, str]], many: bool) -> str:
        """The requests as a table, with the server's time and a limit to waits for locks."""
        names = ", ".join(name for name, _ in columns)
        lock_wait = _limit_lock_waits(columns[0] == CLAIM[0])
        if many:
            arrays = ", ".join(f"?::{kind}[] AS {name}" for name, kind in self._kinds(columns))
            lists = ", ".join(f"c.{name}" for name, _ in columns)
            (key, _), *others = columns
            each = ", ".join(
                f"CASE cardinality(c.{name}) WHEN 1 THEN c.{name}[1] ELSE u.{name} END AS {name}"
                for name, _ in others
            )
            return f"""(SELECT u.{key}, {each}, {self._now} AS now, lock_wait
                FROM (SELECT {arrays}) c, unnest({lists}) AS u({names}),
                    (SELECT {lock_wait}) p(lock_wait))"""
        return f"(SELECT {self._values(columns)}, {self._now} AS now, {lock_wait} AS lock_wait)"

    def _values(self, columns: Sequence[tuple[str, str]]) -> str:
        return ", ".join(f"?::{kind} AS {name}" for name, kind in self._kinds(columns))

    def _kinds(self, columns: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        return [(name, kind.format(id=self._columns.id_type)) for name, kind in columns]

    # -- claim --------------------------------------------------------------------------------

    def _claim(self, many: bool) -> str:
        return f"""
        {self.taken(CLAIM, many)}
        SELECT {self.answer}
        FROM s LEFT JOIN won w ON {"w.id = s.ask" if many else "true"}"""

    def _claim_new(self) -> str:
        """Claims a record that does not exist; any other is only read. Only an insert waits for locks."""
        start = {**self.placed, **NEW}
        seen = ", ".join(f"{self._columns.seen(name)} AS {name}" for name in _ANSWERED)
        floor = f"SELECT floor FROM {self.meta} WHERE {_limit_lock_waits(True)} <> ''"
        return f"""
        WITH s AS MATERIALIZED (
            SELECT a.*, {seen}
            FROM (SELECT {self._values(CLAIM)}, {self._now} AS now) a
            LEFT JOIN {self.records} r ON r.id = a.ask)
        , won AS (
            INSERT INTO {self.records} AS r (fence, {", ".join(start)})
            SELECT m.floor + 1, {self._start("s", start)}
            FROM s CROSS JOIN ({floor}) m WHERE s.state IS NULL
            ON CONFLICT DO NOTHING RETURNING r.fence, r.attempt, r.cause)
        SELECT {self.answer} FROM s LEFT JOIN won w ON true"""

    @property
    def answer(self) -> str:
        """The columns of the answer to a claim."""
        return f"""{self._columns.id_bytes("s.ask")}, s.now, w.fence IS NOT NULL, s.state,
            coalesce(w.fence, s.fence), coalesce(w.attempt, s.attempt), coalesce(w.cause, s.cause),
            s.owner, s.lease_until, s.changed_at, s.expires_at, s.hold, s.fingerprint, s.result"""

    def taken(
        self,
        columns: Sequence[tuple[str, str]],
        many: bool,
        takeable: str = TAKEABLE,
        start: Mapping[str, str] = START,
    ) -> str:
        """The requests and what they found as a table ``s``; the claims that are won, as ``won``."""
        found = f"LATERAL (SELECT r.ctid, r.* FROM {self.records} r WHERE r.id = a.ask OFFSET 0) r"
        row = f"{found} ON true" if many else f"{self.records} r ON r.id = a.ask"
        seen = ", ".join(f"{self._columns.seen(name)} AS {name}" for name in _SEEN)
        return f"""WITH s AS MATERIALIZED (
            SELECT a.*, r.ctid AS place, r.id, {seen}
            FROM {self.asks(columns, many)} a LEFT JOIN {row})
        {self._won(many, takeable, start)}"""

    def _won(self, many: bool, takeable: str, start: Mapping[str, str]) -> str:
        values = self._start("s", start)
        taken = ", ".join(f"{name} = excluded.{name}" for name in ("fence", *start))
        seen = "IN (SELECT place FROM s)" if many else "= (SELECT place FROM s)"
        return f"""
        , won AS (
            INSERT INTO {self.records} AS r (fence, {", ".join(start)})
            SELECT coalesce(s.fence, (SELECT floor FROM {self.meta})) + 1, {values}
            FROM s WHERE s.state IS NULL OR {takeable.format(r="s")}
            ON CONFLICT (id) DO UPDATE SET {taken} WHERE r.ctid {seen}
            RETURNING r.id, r.fence, r.attempt, r.cause)"""

    def _start(self, r: str, start: Mapping[str, str]) -> str:
        """The values of `start`, of the record as it was read."""
        columns = self._columns
        new = columns.new_created_at("s.now")
        values = {name: value.format(r=r, new=new) for name, value in start.items()}
        return ", ".join(columns.kept(name, value) for name, value in values.items())

    # -- what an owner writes -----------------------------------------------------------------

    def _mine(self, columns: Sequence[tuple[str, str]], many: bool) -> str:
        """The requests joined with the rows that they own: the end of an UPDATE of ``r``."""
        asks = f"{self.asks(columns, many)} a"
        owned = "r.owner = a.owner AND r.fence = a.fence"
        if not many:
            return f"FROM {asks} WHERE r.id = a.id AND {owned}"
        place = f"(SELECT ctid AS place FROM {self.records} p WHERE p.id = a.id OFFSET 0) p"
        return f"FROM {asks} CROSS JOIN LATERAL {place} WHERE r.ctid = p.place AND {owned}"

    def _update(self, values: str) -> str:
        return f"UPDATE {self.records} r SET {values}"

    def _complete(self, many: bool) -> str:
        values = {
            "state": "a.state",
            "result": "a.result",
            "error": "a.error",
            "lease_until": "0",
            "changed_at": "a.now",
            "expires_at": "a.now + a.retention",
        }
        return f"""
        {self._update(self._columns.changes(values))}
        {self._mine(_COMPLETE, many)} AND r.state IN (0, 4, 5)
        {self._announce()}"""

    def _fail(self, many: bool) -> str:
        released = "NOT a.hold AND r.attempt < a.max_attempts"
        values = {
            "error": "a.error",
            "changed_at": "a.now",
            "state": f"CASE WHEN a.hold THEN 4 WHEN {released} THEN 3 ELSE 5 END",
            "cause": f"CASE WHEN {released} THEN 1 ELSE r.cause END",
            "lease_until": f"CASE WHEN {released} THEN a.now + a.delay ELSE 0 END",
            "expires_at": f"CASE WHEN {released} THEN a.now + a.retention ELSE 0 END",
        }
        return f"""
        {self._update(self._columns.changes(values))}
        {self._mine(_FAIL, many)} AND r.state = 0
        {self._announce()}"""

    def _renew(self, many: bool) -> str:
        return f"""
        {self._update("lease_until = greatest(r.lease_until, a.now + a.lease)")}
        {self._mine(_RENEW, many)} AND r.state = 0
        RETURNING {self._columns.id_bytes("r.id")}"""

    def _announce(self) -> str:
        id_ = self._columns.id_bytes("r.id")
        return f"""RETURNING {id_},
            CASE WHEN r.awaited THEN pg_notify('{CHANNEL}', encode({id_}, 'hex'))::text END"""


def _limit_lock_waits(is_claim: bool) -> str:
    """For this transaction only: behind a pooler the session is not ours."""
    return f"set_config('lock_timeout', '{LOCK_TIMEOUT[is_claim]:d}ms', true)"
