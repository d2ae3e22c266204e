"""PostgreSQL with generations keeps every rule, although time moves the records' table on.

The clock that the tests set moves generations too: each time it is advanced, the current one is
closed. So whatever waits a moment in the suite meets records of an older generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings

from tests.conformance.selections import Claiming
from tests.conformance.test_postgresql import Postgres
from twicesafe import Key
from twicesafe._core.protocol import Request, Survey
from twicesafe._engines.postgresql import PostgresStore
from twicesafe._engines.postgresql.async_store import AsyncpgStore
from twicesafe._engines.postgresql.generations import GenerationPrograms
from twicesafe._engines.postgresql.settings import Settings
from twicesafe._engines.sql.programs import READING
from twicesafe._values.records import State
from twicesafe.testing import Place, StoreConformance, StoreModel
from twicesafe.testing._conformance.bench import Advance, Script
from twicesafe.testing._conformance.retention import (
    RetentionRules,
    expiring,
    expiring_every_fourth,
    sweep_all,
)
from twicesafe.testing._conformance.rules import rule

ALWAYS = 0.0001
"""Less than a millisecond: it is always time for the next generation."""


class Generations(Postgres):
    reused = False
    parts = (
        *("generations", "closed", "meta", "audit", "clock", "runs", "runs_meta", "runs_steps"),
    )
    holder = "generations"

    def _settings(self, place: Place) -> Settings:
        return replace(super()._settings(place), generations=ALWAYS)

    def advance(self, place: Place, ms: int) -> None:
        super().advance(place, ms)
        store = PostgresStore(self._settings(place), self._clock(place))
        turn(store)
        store.close()


def turn(store: PostgresStore) -> bool | None:
    """Open the next generation now."""
    programs = store.programs
    assert isinstance(programs, GenerationPrograms)
    return store._run(programs._when_free(programs.turn()))


class DroppingRules(RetentionRules):
    @rule()
    def test_a_sweep_works_in_steps_and_resumes(self) -> Script[None]:
        """One DROP takes all, whatever the limit: that is what it is for."""
        for number in range(7):
            yield from expiring(State.COMPLETED, self.tick, Key(f"old-{number}"))
        yield Advance(self.tick)
        reports = yield from sweep_all(limit=3)
        assert sum(report.removed for report in reports) == 7
        assert (yield Survey()).total == 0

    @rule()
    def test_a_sweep_that_may_remove_few_still_looks_at_many(self) -> Script[None]:
        """Nor does it mind how many may be removed."""
        yield from expiring_every_fourth(self.tick)
        yield Advance(self.tick)
        reports = yield from sweep_all(most=2)
        assert sum(report.removed for report in reports) == 3
        assert (yield Survey()).by_state == {State.IN_PROGRESS: 9}


class GenerationConformance(DroppingRules, StoreConformance):
    pass


@pytest.mark.usefixtures("postgres")
class TestPsycopg(Generations, GenerationConformance):
    modes = ("blocking",)  # async: `TestAsyncpg`, and all rules in test_postgresql.py


@pytest.mark.usefixtures("postgres")
class TestAsyncpg(Generations, Claiming, DroppingRules):
    modes = ("async",)
    awaited = AsyncpgStore


@pytest.mark.usefixtures("postgres16")
class TestPostgres16(Generations, Claiming, DroppingRules):
    """The rules whose statements meet an older generation or lock one."""

    modes = ("blocking",)
    engine = "postgres16"


# --- the model -------------------------------------------------------------------------------


class Restless(PostgresStore):
    """Every write finds that its record is in an older generation."""

    def perform(self, request: Request) -> Any:
        if request.op not in READING:
            assert turn(self)
        return super().perform(request)

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        assert turn(self)
        return super().perform_many(requests)


class RestlessModel(Generations, StoreModel):
    def open_store(self, place: Place) -> PostgresStore:
        return Restless(self._settings(place), self._clock(place))


class AsyncModel(Generations, StoreModel):
    mode = "async"


def on_postgres(model: type[StoreModel]) -> Any:
    case: Any = model.TestCase
    case.settings = settings(max_examples=12, stateful_step_count=25)
    return pytest.mark.usefixtures("postgres")(case)


TestRestlessModel = on_postgres(RestlessModel)
TestAsyncModel = on_postgres(AsyncModel)
