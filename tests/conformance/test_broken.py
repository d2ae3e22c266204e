"""The suite rejects every broken store, by the test that is meant for it; and no right one.

pytest tests/conformance/test_broken.py -rP      shows which tests reject which store
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conformance.broken import (
    BROKEN,
    Broken,
    Misled,
    claims,
    completion,
    operators,
    owners,
    retention,
)
from tests.conformance.lasting import LOSING, Lasting, Waking
from tests.conformance.stores import Memory, Sqlite
from tests.conformance.test_mysql import Mariadb
from tests.conformance.test_postgresql import Postgres
from tests.stores.test_redis_conformance import Redis
from twicesafe._core.transitions import TRANSITIONS, RecordEvent
from twicesafe.stores.memory import AsyncMemoryStore
from twicesafe.testing import Place, StoreConformance, StoreModel, StoreUnderTest, check
from twicesafe.testing._conformance import Checked, rules_of
from twicesafe.testing._conformance.requests import STATES
from twicesafe.testing._conformance.transitions import ALLOWED, REFUSED, SAME_AS_CLAIM

BLOCKING = ["blocking"]
"""One mode shows what is wrong with a store; the right ones pass in both."""


class OnMemory(StoreConformance):
    def __init__(self, kind: type[Broken | Misled]) -> None:
        self.kind = kind

    def open_store(self, place: Place) -> Broken | Misled:
        return self.kind(now=place.clock)

    def open_async_store(self, place: Place) -> AsyncMemoryStore:
        return AsyncMemoryStore(self.open_store(place))


class RightMemory(Memory, StoreConformance):
    pass


ENGINES: dict[str, type[StoreUnderTest]] = {
    "sqlite": Sqlite,
    "postgres": Postgres,
    "valkey": Redis,
    "mariadb": Mariadb,
}
MISLED = [kind for kind in BROKEN if issubclass(kind, Misled)]


def misled(kind: type[Misled], engine: str) -> StoreConformance:
    """The suite on this engine's own store, with this one standing in front of it."""
    hooks = ENGINES[engine]

    class Suite(hooks, StoreConformance):
        def open_store(self, place: Place) -> Misled:
            return kind(hooks.open_store(self, place))

    return Suite()


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest) -> str:
    if request.param != "sqlite":
        request.getfixturevalue(request.param)
    return request.param


def rejections(outcomes: Iterable[Checked]) -> dict[str, str]:
    """What rejected a store, and why; printed for the reader of a report."""
    found = {
        checked.name: checked.why.splitlines()[0]
        for checked in outcomes
        if checked.verdict == "broken"
    }
    print(f"rejected by {len(found)} tests")
    for name, why in found.items():
        print(f"   {name}\n      {why[:100]}")
    return found


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_store_is_rejected(kind: type[Broken | Misled], tmp_path: Path):
    found = check(OnMemory(kind), tmp_path, BLOCKING, [kind.rejected_by])
    assert kind.rejected_by in rejections(found)


@pytest.mark.parametrize("kind", MISLED, ids=lambda kind: kind.__name__)
def test_a_broken_store_is_rejected_on_every_engine(
    kind: type[Misled], engine: str, tmp_path: Path
):
    """By its test; the suite on the same store as it is keeps that rule (test_postgresql, …)."""
    suite = misled(kind, engine)
    found = list(check(suite, tmp_path, BLOCKING, [kind.rejected_by]))
    assert [(checked.name, checked.verdict) for checked in found] == [(kind.rejected_by, "broken")]
    assert "StoreUnavailable" not in found[0].why


def test_enough_of_them_are_tried_everywhere():
    assert len(MISLED) >= 20


@pytest.mark.parametrize("kind", LOSING, ids=lambda kind: kind.__name__)
def test_a_store_that_loses_what_it_shares_is_rejected(kind: type[Lasting], tmp_path: Path):
    found = check(kind(), tmp_path, BLOCKING, [kind.rejected_by])
    assert kind.rejected_by in rejections(found)


@pytest.mark.parametrize("suite", [RightMemory, Lasting, Waking])
def test_a_right_store_is_not(suite: type[StoreConformance], tmp_path: Path):
    outcomes = list(check(suite(), tmp_path))
    assert rejections(outcomes) == {}
    assert sum(checked.verdict == "kept" for checked in outcomes) > 700


def test_what_a_store_cannot_do_is_skipped_and_says_so(tmp_path: Path):
    skipped = {
        c.name: c.why for c in check(RightMemory(), tmp_path, BLOCKING) if c.verdict == "skipped"
    }
    assert (
        skipped["test_fences_keep_increasing_after_reopening"] == "the store declares durable=False"
    )
    assert all(why for why in skipped.values())


# ------------------------------------------------------------------ the model rejects them too


@pytest.mark.parametrize(
    "kind",
    [
        owners.CompletesForAnyone,
        retention.FenceRestartsAfterSweep,
        completion.LosesFalsyResults,
        claims.DropsTheFingerprint,
        operators.ReleasesWithoutATrace,
        retention.SweepsWhatIsHeld,
    ],
    ids=lambda kind: kind.__name__,
)
def test_the_model_rejects_a_broken_store(kind: type[Broken | Misled]):
    class Model(StoreModel):
        def open_store(self, place: Place) -> Broken | Misled:
            return kind(now=place.clock)

    searching = settings(
        max_examples=500,
        stateful_step_count=30,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Model, settings=searching)


# ------------------------------------------------------------------ nothing is left out


def test_every_rule_of_the_protocol_that_is_a_stores_has_tests():
    """P7 is the worker's: its deadline, and its keeper."""
    named = {rule for each in rules_of(StoreConformance).values() for rule in each.protocol}
    assert named == {f"P{number}" for number in range(1, 13)} - {"P7"}


def test_every_row_of_the_lifecycle_is_asked():
    """Except those of suspended runs, which only some stores know: `StepRules` asks them."""
    events = [event for event in RecordEvent if event is not RecordEvent.SUSPEND]
    everything = {(state, event) for state in (None, *STATES) for event in events}
    assert set(ALLOWED.values()) == set(TRANSITIONS) & everything
    assert set(ALLOWED.values()) | set(REFUSED.values()) | SAME_AS_CLAIM == everything


def test_every_rule_has_a_store_that_it_rejects():
    """Not every test, but every rule of the protocol: a broken store stands for it."""
    rules = rules_of(StoreConformance)
    names = {kind.rejected_by.partition("[")[0] for kind in (*BROKEN, *LOSING)}
    assert len(BROKEN) + len(LOSING) >= 40
    covered = {rule for name in names for rule in rules[name].protocol}
    assert covered >= {"P1", "P2", "P3", "P4", "P5", "P6", "P8", "P10", "P11", "P12"}
