"""Moves records out of the wide table on PostgreSQL: one statement for each move.

`sql.moving` explains why a key is looked for in the wide table only once. If another statement is moving
the record, this one waits for it, and then finds nothing to move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ...stores._base import Program
from ..sql.commands import Query
from .columns import NarrowColumns

if TYPE_CHECKING:
    from .programs import PostgresPrograms

__all__ = ["PostgresMoves"]

LOCK_TIMEOUT: Final = 50
"""Milliseconds to wait for a record that another transaction locks."""

_COLUMNS: Final = (
    "fence", "changed_at", "lease_until", "created_at", "expires_at", "attempt", "state", "cause",
    "hold", "awaited", "owner", "fingerprint", "scope", "value", "error", "result",
)  # fmt: skip


class PostgresMoves:
    """The moves of one store."""

    def __init__(self, programs: PostgresPrograms) -> None:
        records, self._wide = programs.records, f"{programs.table}_{programs.layout.origin}"
        kept = NarrowColumns().kept
        names = ", ".join(_COLUMNS)
        narrowed = ", ".join(
            "nullif(created_at, changed_at)" if name == "created_at" else kept(name, name)
            for name in _COLUMNS
        )
        narrow_id = "encode(substr(id, 1, 16), 'hex')::uuid"
        self.everything = (
            f"(SELECT id, {names} FROM {records}"
            f" UNION ALL SELECT {narrow_id} AS id, {narrowed} FROM {self._wide}) AS everything"
        )
        move = f"""
            , gone AS (DELETE FROM {self._wide} w USING chosen c WHERE w.ctid = c.place RETURNING w.*)
            , trail AS (
                UPDATE {programs.audit} a SET id = substr(a.id, 1, 16) FROM gone WHERE a.id = gone.id)
            , moved AS (
                INSERT INTO {records} (id, {names}) SELECT {narrow_id}, {narrowed} FROM gone RETURNING 1)
            SELECT count(*) FROM moved"""
        chosen = f"""chosen AS MATERIALIZED (
                SELECT w.ctid AS place FROM {self._wide} w WHERE w.id = ANY (?::bytea[]){{more}}
                ORDER BY w.id FOR UPDATE)"""
        self._fetch = programs.mark(f"WITH {chosen.format(more='')} {move}")
        lock_wait = f"set_config('lock_timeout', '{LOCK_TIMEOUT:d}ms', true)"
        self._fetch_soon = programs.mark(f"""
            WITH p AS MATERIALIZED (SELECT {lock_wait} AS lock_wait),
            {chosen.format(more=" AND (SELECT lock_wait FROM p) IS NOT NULL")} {move}""")
        self._step = programs.mark(f"""
            WITH chosen AS MATERIALIZED (
                SELECT ctid AS place FROM {self._wide} LIMIT ? FOR UPDATE SKIP LOCKED)
            {move}""")

    def fetch(self, ids: Sequence[bytes]) -> Program[None]:
        """Move the records of these keys, if they are in the wide table, in the caller's transaction."""
        yield Query(self._fetch, (list(ids),))

    def fetch_soon(self, ids: Sequence[bytes]) -> Program[None]:
        """The same, in a statement of our own that waits only shortly for a locked record."""
        yield Query(self._fetch_soon, (list(ids),))

    def step(self, limit: int) -> Program[int]:
        """Move the next records; returns how many."""
        return (yield Query(self._step, (limit,)))[0][0]  # type: ignore[no-any-return]

    def left(self) -> Program[int]:
        return (yield Query(f"SELECT count(*) FROM {self._wide}"))[0][0]  # type: ignore[no-any-return]
