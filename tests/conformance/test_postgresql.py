"""PostgreSQL keeps every rule: psycopg and asyncpg, 18 and 16."""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import psycopg
import pytest

from tests.conformance.selections import Awaited, FirstSchema, OneNode
from tests.servers import shared
from twicesafe._core.protocol import Request
from twicesafe._engines.postgresql import PostgresStore
from twicesafe._engines.postgresql.async_store import AsyncpgStore, AsyncPostgresStore
from twicesafe._engines.postgresql.columns import NarrowColumns
from twicesafe._engines.postgresql.settings import Settings
from twicesafe._engines.sql.commands import COLUMNS
from twicesafe._engines.sql.migrations import first_steps
from twicesafe.testing import Place, StoreConformance, StoreUnderTest

NOW = "(SELECT ms FROM {clock})"
"""The server's clock, replaced by a row that the test moves."""


@functools.cache
def hand(url: str) -> psycopg.Connection[Any]:
    """Ours, beside those of the store: one for all tests of a process, for each costs a fork."""
    connection = psycopg.connect(url, autocommit=True)
    atexit.register(connection.close)
    return connection


class Postgres(StoreUnderTest):
    """Tables are used again and again, emptied in between: making and dropping them takes the server longest."""

    engine: ClassVar[str] = "postgres"
    awaited: ClassVar[Any] = AsyncPostgresStore
    reused: ClassVar[bool] = True
    parts: ClassVar[tuple[str, ...]] = (
        *("keys", "wide", "records", "meta", "audit", "clock", "runs", "runs_meta", "runs_steps"),
    )
    holder: ClassVar[str] = "keys"
    _free: ClassVar[dict[str, list[str]]] = {}
    _taken: ClassVar[dict[str, str]] = {}

    def _table(self, place: Place) -> str:
        table = self._taken.get(place.name)
        if table is None:
            free = self._free.get(self.engine) if self.reused else None
            table = self._taken[place.name] = free.pop() if free else place.name
        return table

    def _settings(self, place: Place) -> Settings:
        url = f"{shared(self.engine).url}?table={self._table(place)}"
        return Settings.of(f"{url}&pool=20&timeout=60")

    @property
    def hand(self) -> psycopg.Connection[Any]:
        return hand(shared(self.engine).url)

    def _clock(self, place: Place) -> str:
        clock = f"{self._table(place)}_clock"
        self.hand.execute(f"CREATE TABLE IF NOT EXISTS {clock} (ms bigint)")
        self.hand.execute(
            f"INSERT INTO {clock} SELECT %s WHERE NOT EXISTS (SELECT FROM {clock})",
            (place.clock(),),
        )
        return NOW.format(clock=clock)

    def open_store(self, place: Place) -> PostgresStore:
        return PostgresStore(self._settings(place), self._clock(place))

    def open_async_store(self, place: Place) -> Any:
        return self.awaited(self._settings(place), self._clock(place))

    def advance(self, place: Place, ms: int) -> None:
        super().advance(place, ms)
        self.hand.execute(f"UPDATE {self._table(place)}_clock SET ms = %s", (place.clock(),))

    def corrupt(self, place: Place, id: bytes) -> None:  # noqa: A002
        self.hand.execute(
            f"UPDATE {self._table(place)}_{self.holder} SET state = 99 WHERE id = %s::uuid",
            (id[:16].hex(),),
        )

    def refuse(self, place: Place) -> bytes:
        self.hand.execute(
            f"ALTER TABLE {self._table(place)}_{self.holder}"
            " ADD CONSTRAINT quota CHECK (octet_length(result) < 100000)"
        )
        return b"R" * 200_000

    def tidy(self, place: Place) -> None:
        table = self._table(place)
        del self._taken[place.name]
        if self.reused:
            self.hand.execute(EMPTY.format(t=table))
            self._free.setdefault(self.engine, []).append(table)
        else:
            parts = ", ".join(f"{table}_{part}" for part in self.parts)
            self.hand.execute(f"DROP TABLE IF EXISTS {parts}")


EMPTY = """DO $$ BEGIN
    DELETE FROM {t}_keys; DELETE FROM {t}_audit; DELETE FROM {t}_clock; UPDATE {t}_meta SET floor = 0;
    IF to_regclass('{t}_runs') IS NOT NULL THEN DELETE FROM {t}_runs; DELETE FROM {t}_runs_steps; END IF;
    IF EXISTS (SELECT FROM pg_constraint WHERE conrelid = '{t}_keys'::regclass AND conname = 'quota') THEN
        ALTER TABLE {t}_keys DROP CONSTRAINT quota;
    END IF;
END $$"""


@pytest.mark.usefixtures("postgres")
class TestPsycopg(Postgres, StoreConformance):
    modes = ("blocking",)


@pytest.mark.usefixtures("postgres")
class TestPsycopgAsync(Postgres, Awaited):
    """The driver is that of `TestPsycopg`, and all rules are awaited in `TestAsyncpg`."""


class WidePostgres(Postgres):
    """The schema of the first versions, on which this one works too."""

    reused = False
    holder = "records"
    version: ClassVar[int] = 1

    def _clock(self, place: Place) -> str:
        if not self.hand.execute("SELECT to_regclass(%s)", (f"{place.name}_meta",)).fetchone()[0]:  # type: ignore[index]
            for part in range(self.version):
                for statement in first_steps("postgresql", place.name, part + 1, part):
                    self.hand.execute(statement)  # type: ignore[arg-type]
        return super()._clock(place)

    def corrupt(self, place: Place, id: bytes) -> None:  # noqa: A002
        self.hand.execute(f"UPDATE {place.name}_{self.holder} SET state = 99 WHERE id = %s", (id,))


class MovingPostgres(WidePostgres):
    """A migration that was interrupted: every request finds its record in the wide table."""

    version = 2
    holder = "keys"

    def corrupt(self, place: Place, id: bytes) -> None:  # noqa: A002
        Postgres.corrupt(self, place, id)
        self.hand.execute(f"UPDATE {place.name}_wide SET state = 99 WHERE id = %s", (id,))

    def open_store(self, place: Place) -> PostgresStore:
        return PushedBack(self._settings(place), self._clock(place))


class PushedBack(PostgresStore):
    """Before each request all records go back to the wide table, unless another request runs.

    Nothing is swept while records are moved: a sweep ends the migration first.
    """

    _lock: ClassVar = threading.Lock()
    _running: ClassVar[Counter[str]] = Counter()

    def __init__(self, *settings: Any) -> None:
        self._ids: dict[bytes, bytes] = {}
        super().__init__(*settings)

    def perform(self, request: Request) -> Any:
        with self._alone([request]):
            return super().perform(request)

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        with self._alone(requests):
            return super().perform_many(requests)

    @contextlib.contextmanager
    def _alone(self, requests: Sequence[Any]) -> Iterator[None]:
        """No real migration puts a record back, least of all under a request that looks for it."""
        table = self.settings.table
        with self._lock:
            if not self._running[table]:
                self._push_back(requests)
            self._running[table] += 1
        try:
            yield
        finally:
            with self._lock:
                self._running[table] -= 1

    def _push_back(self, requests: Sequence[Any]) -> None:
        if any(request.op == "sweep" for request in requests):
            self.migrate()
        whole = (request.id for request in requests if hasattr(request, "id"))
        self._ids.update((id_[:16], id_) for id_ in whole)
        table, wide = self.settings.table, f"{self.settings.table}_wide"
        names = [name for name in COLUMNS.split(", ") if name != "id"]
        read = ", ".join(NarrowColumns().read(name, "gone.") for name in names)
        if hand(shared("postgres").url).execute("SELECT to_regclass(%s)", (wide,)).fetchone()[0]:  # type: ignore[index]
            hand(shared("postgres").url).execute(
                f"""
                WITH whole AS (SELECT unnest(%s::bytea[]) AS id),
                gone AS (DELETE FROM {table}_keys k USING whole w
                    WHERE uuid_send(k.id) = substr(w.id, 1, 16) RETURNING k.*, w.id AS whole),
                trail AS (UPDATE {table}_audit a SET id = gone.whole FROM gone
                    WHERE a.id = substr(gone.whole, 1, 16))
                INSERT INTO {wide} (id, {", ".join(names)}, awaited)
                SELECT gone.whole, {read}, coalesce(gone.awaited, false) FROM gone""",
                (list(self._ids.values()),),
            )


@pytest.mark.usefixtures("postgres")
class TestWide(WidePostgres, FirstSchema):
    modes = ("blocking",)


@pytest.mark.usefixtures("postgres")
class TestMoving(MovingPostgres, OneNode):
    modes = ("blocking",)


@pytest.mark.usefixtures("postgres")
class TestAsyncpg(Postgres, StoreConformance):
    modes = ("async",)
    awaited = AsyncpgStore


@pytest.mark.usefixtures("postgres16")
class TestPostgres16(Postgres, StoreConformance):
    modes = ("blocking",)  # the programs are the same in both
    engine = "postgres16"
