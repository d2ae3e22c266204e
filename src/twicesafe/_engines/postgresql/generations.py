"""Generations: records in partitions by time, so that one DROP removes many expired records.

    postgresql://…/shop?generations=6h

One generation is *current*; the row in ``…_meta`` says which. There are two rules:

    1  Only the current generation is written to. A claim inserts there; any other write of a
       record in an older generation moves it there. An older generation only loses rows.
    2  The current generation changes under a lock on the table that no writer's transaction
       overlaps (the gate). So a transaction that writes to a generation sees all rows of older ones.

Rule 2 keeps keys unique, although each partition has its own index. Two writers in one generation
conflict in its index. Of two writers in different generations, the later one sees the row of the earlier.
By rule 1, an expired record of an older generation stays expired. So the generation can be checked slowly
and dropped quickly (`generation_sweep`). No clock and no time-out is part of this.
The proof is in docs/decisions/0007-generations.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.resources.abc import Traversable
from typing import Any, ClassVar, Final

from ...errors import ConfigurationError, StoreUnavailableError
from ...stores._base import Program
from ..sql.layouts import NARROW, Layout, layout_of
from ..sql.migrations import Schema, check, files_of
from .columns import Columns
from .generation_sweep import MOVED, GenerationSweep
from .programs import PostgresPrograms
from .schema import GENERATIONS, PostgresRecordsSchema
from .settings import Settings, code_of
from .statements import NOW, Statements

__all__ = ["GenerationPrograms", "GenerationSchema", "programs_of", "schema_of"]

_TRIES: Final = 5

MOVING_VERSION: Final = 2


def schema_of(settings: Settings, mark: Callable[[str], str]) -> PostgresRecordsSchema:
    """The schema of a store, with or without generations."""
    kind = GenerationSchema if settings.generations else PostgresRecordsSchema
    return kind(settings.table, settings.schema, mark)


def programs_of(
    settings: Settings, layout: Layout, mark: Callable[[str], str], now: str = NOW
) -> PostgresPrograms:
    """The programs of a store for this layout of its records."""
    table = f"{settings.schema}.{settings.table}" if settings.schema else settings.table
    if settings.generations:
        period = round(settings.generations * 1000)
        programs: PostgresPrograms = GenerationPrograms(table, mark, period, now, layout)
    else:
        programs = PostgresPrograms(table, mark, now, layout)
    programs.migrates = settings.migrate
    return programs


class GenerationSchema(PostgresRecordsSchema):
    """The common tables, and then those of generations, whose versions count in thousands.

    The common tables may have the wide layout or the narrow one; partitions keep it.
    """

    def __init__(self, table: str, schema: str, mark: Callable[[str], str]) -> None:
        super().__init__(table, schema, mark)
        (self._partitions,) = files_of("postgresql_generations")
        self._common = self.newest
        self.newest += GENERATIONS

    def version(self) -> Program[int]:
        return (yield from Schema.version(self))

    def file(self, version: int) -> Traversable:
        return self._partitions if version >= GENERATIONS else super().file(version)

    def text(self, before: int, version: int) -> str:
        if version < GENERATIONS:
            return super().text(before, version)
        holder = layout_of(version % GENERATIONS, self.table).holder
        return self._partitions.read_text().replace("{holder}", holder)

    def after(self, version: int) -> int:
        if version == MOVING_VERSION:
            raise ConfigurationError(
                f"the records of {self.table} are being moved to another layout: run twicesafe migrate "
                "with the URL without ?generations= first"
            )
        return version + GENERATIONS if version else self._common

    def apply(self, before: int, after: int) -> Program[None]:
        return Schema.apply(self, before, after)  # opening waits for its tables

    def opening_goal(self, version: int) -> int:
        return version if version >= GENERATIONS else self.newest

    def is_done(self, version: int) -> bool:
        return version >= GENERATIONS

    def layout(self, where: str) -> Program[Layout]:
        version = yield from self.version()
        if version < GENERATIONS:
            check(self, version, where)
        return layout_of(version - GENERATIONS, where)


class _Statements(Statements):
    """Every write moves its row into the current generation, so the row may change its partition.

    An upsert cannot do that, and a `ctid` is unique only within one partition. So rows are found by
    id, and a takeover repeats its whole condition on the row that it locks.
    """

    def __init__(
        self,
        records: str,
        meta: str,
        mark: Callable[[str], str],
        now: str,
        columns: Columns,
        current: str,
    ) -> None:
        self._current = current
        self.placed = {"generation": current}
        super().__init__(records, meta, mark, now, columns)

    def _won(self, many: bool, takeable: str, start: Mapping[str, str]) -> str:
        new = {"created_at": start["created_at"].replace("{r}.created_at", "s.created_at")}
        moved = self._columns.changes(
            {name: value.format(r="r", new="s.now") for name, value in {**start, **new}.items()}
        )
        return f"""
        , fresh AS (
            INSERT INTO {self.records} (generation, fence, {", ".join(start)})
            SELECT {self._current}, (SELECT floor FROM {self.meta}) + 1, {self._start("s", start)}
            FROM s WHERE s.state IS NULL
            ON CONFLICT DO NOTHING RETURNING id, fence, attempt, cause)
        , taken AS (
            UPDATE {self.records} r SET generation = {self._current}, fence = r.fence + 1, {moved}
            FROM s WHERE r.id = s.id AND {takeable.format(r="s")} AND {takeable.format(r="r")}
            RETURNING r.id, r.fence, r.attempt, r.cause)
        , won AS (SELECT * FROM fresh UNION ALL SELECT * FROM taken)"""

    def _mine(self, columns: Sequence[tuple[str, str]], many: bool) -> str:
        asks = self.asks(columns, many)
        return f"FROM {asks} a WHERE r.id = a.id AND r.owner = a.owner AND r.fence = a.fence"

    def _update(self, values: str) -> str:
        return super()._update(f"generation = {self._current}, {values}")


class GenerationPrograms(GenerationSweep, PostgresPrograms):
    """The programs of a store with generations."""

    holder: ClassVar[str] = "generations"
    moved: ClassVar[str] = MOVED

    def __init__(
        self,
        table: str,
        mark: Callable[[str], str],
        period: int,
        now: str = NOW,
        layout: Layout = NARROW,
    ) -> None:
        # The gate does not work if a snapshot outlives its statement. Then this finds no current
        # generation, and the write is refused.
        current = (
            f"(SELECT generation FROM {table}_meta"
            " WHERE current_setting('transaction_isolation') = 'read committed')"
        )
        self.current, self.period, self.table = current, period, table
        super().__init__(table, mark, now, layout)
        move = f" SET generation = {current}, "
        self._save = self._save.replace(" SET ", move, 1)
        self._await = self._await.replace(" SET ", move, 1)
        self._insert, self._insert_copy = (
            insert.replace("(", "(generation, ", 1).replace("VALUES (", f"VALUES ({current}, ", 1)
            for insert in (self._insert, self._insert_copy)
        )

    def new_statements(self) -> Statements:
        return _Statements(self.records, self.meta, self._mark, self._now, self.kept, self.current)

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
