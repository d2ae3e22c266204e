"""Generations: records in partitions by time, so that one DROP removes many expired records.

    postgresql://…/shop?generations=6h

One generation is *current*; the row in ``…_meta`` says which. There are two rules:

    1  Only the current generation is written to. A claim inserts there; any other write of a
       record in an older generation moves it there. An older generation only loses rows.
    2  The current generation changes under a lock on the table that no writer's transaction
       overlaps (the gate). So a transaction that writes to a generation sees all rows of older ones.

Rule 2 keeps keys unique, although each partition has its own index: two writers in one generation
conflict in its index, and of two in different generations, the later sees the row of the earlier.
Rule 1 means that a record of an older generation that is expired stays expired, so the generation can
be checked slowly and dropped quickly (`generation_sweep`). No clock and no time-out is part of this.
The proof is in docs/decisions/0007-generations.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources.abc import Traversable
from typing import Any, ClassVar, Final

from ...errors import StoreUnavailableError
from ...stores._base import Program
from ..sql.migrations import Schema, files_of
from .generation_sweep import MOVED, GenerationSweep
from .programs import PostgresPrograms
from .schema import GENERATIONS, PostgresSchema
from .settings import code_of
from .statements import NOW, START, TAKEABLE, Statements

__all__ = ["GenerationPrograms", "GenerationSchema", "layout"]

_TRIES: Final = 5


def layout(
    table: str, schema: str, period: float, mark: Callable[[str], str], now: str = NOW
) -> tuple[PostgresSchema, PostgresPrograms]:
    """The schema and the programs of a store; `period` in seconds, 0: without generations."""
    if not period:
        plain = PostgresSchema(table, schema, mark)
        return plain, PostgresPrograms(plain.table, mark, now)
    partitioned = GenerationSchema(table, schema, mark)
    return partitioned, GenerationPrograms(partitioned.table, mark, round(period * 1000), now)


class GenerationSchema(PostgresSchema):
    """The common tables, and then those of generations, whose versions count in thousands."""

    def __init__(self, table: str, schema: str, mark: Callable[[str], str]) -> None:
        super().__init__(table, schema, mark)
        self._common = self.newest
        self._partition_files = files_of("postgresql_generations")
        self.newest += GENERATIONS * len(self._partition_files)

    def version(self) -> Program[int]:
        return (yield from Schema.version(self))

    def file(self, version: int) -> Traversable:
        if version < GENERATIONS:
            return super().file(version)
        return self._partition_files[version // GENERATIONS - 1]

    def after(self, version: int) -> int:
        return version + (1 if version % GENERATIONS < self._common else GENERATIONS)


class _Statements(Statements):
    """Every write moves its row into the current generation, so the row may change its partition.

    An upsert cannot do that, and a `ctid` is unique only within one partition. So rows are found by
    id, and a takeover repeats its whole condition on the row that it locks.
    """

    def __init__(
        self, records: str, meta: str, mark: Callable[[str], str], now: str, current: str
    ) -> None:
        self._current = current
        super().__init__(records, meta, mark, now)

    def _won(self, many: bool) -> str:
        start = ", ".join(START.values()).format(r="s")
        moved = ", ".join(f"{name} = {value}" for name, value in START.items()).format(r="r")
        return f"""
        , fresh AS (
            INSERT INTO {self.records} (generation, fence, {", ".join(START)})
            SELECT {self._current}, (SELECT floor FROM {self.meta}) + 1, {start}
            FROM s WHERE s.state IS NULL
            ON CONFLICT DO NOTHING RETURNING id, fence, attempt, cause)
        , taken AS (
            UPDATE {self.records} r SET generation = {self._current}, fence = r.fence + 1, {moved}
            FROM s WHERE r.id = s.id AND {TAKEABLE.format(r="s")} AND {TAKEABLE.format(r="r")}
            RETURNING r.id, r.fence, r.attempt, r.cause)
        , won AS (SELECT * FROM fresh UNION ALL SELECT * FROM taken)"""

    def _mine(self, columns: Sequence[tuple[str, str]], many: bool) -> str:
        asks = self._asks(columns, many)
        return f"FROM {asks} a WHERE r.id = a.id AND r.owner = a.owner AND r.fence = a.fence"

    def _update(self, values: str) -> str:
        return super()._update(f"generation = {self._current}, {values}")


class GenerationPrograms(GenerationSweep, PostgresPrograms):
    """The programs of a store with generations."""

    holder: ClassVar[str] = "generations"
    moved: ClassVar[str] = MOVED

    def __init__(self, table: str, mark: Callable[[str], str], period: int, now: str = NOW) -> None:
        # The gate does not work if a snapshot outlives its statement. Then this finds no current
        # generation, and the write is refused.
        current = (
            f"(SELECT generation FROM {table}_meta"
            " WHERE current_setting('transaction_isolation') = 'read committed')"
        )
        self.current, self.period, self.table = current, period, table
        super().__init__(table, mark, now)
        move = f" SET generation = {current}, "
        self._save = self._save.replace(" SET ", move, 1)
        self._await = self._await.replace(" SET ", move, 1)
        self._insert = self._insert.replace("(", "(generation, ", 1).replace(
            "VALUES (", f"VALUES ({current}, ", 1
        )

    def statements(self) -> Statements:
        return _Statements(self.records, self.meta, self._mark, self._now, self.current)

    def _decide_alone(self, ask: Any) -> Program[Any]:
        for _ in range(_TRIES):
            try:
                return (yield from super()._decide_alone(ask))
            except StoreUnavailableError as error:
                if code_of(error) != MOVED:
                    raise
        return (yield from super()._decide_alone(ask))

    def awaits(self, id: bytes) -> Program[bool]:  # noqa: A002
        try:
            return (yield from super().awaits(id))
        except StoreUnavailableError as error:
            if code_of(error) != MOVED:
                raise
            return False
