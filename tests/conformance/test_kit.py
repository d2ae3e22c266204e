"""The kit itself: its clock, and stores whose time cannot be set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import twicesafe.testing
from tests.conformance.broken import owners, retention
from tests.conformance.selections import Awaited
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore
from twicesafe.testing import FakeClock, Place, StoreConformance, StoreModel, StoreUnderTest, check

SEARCHING = settings(
    max_examples=100,
    stateful_step_count=30,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    print_blob=False,
)


class OwnTime(StoreUnderTest):
    """As a store on a server is: it has its own clock."""

    real_clock = True
    kind: type[MemoryStore] = MemoryStore

    def open_store(self, place: Place) -> MemoryStore:
        return self.kind()

    def open_async_store(self, place: Place) -> AsyncMemoryStore:
        return AsyncMemoryStore(self.open_store(place))


class OwnTimeSuite(OwnTime, StoreConformance):
    tick = 4


def test_a_right_store_with_a_clock_of_its_own_is_not_rejected(tmp_path: Path):
    outcomes = list(check(OwnTimeSuite(), tmp_path))
    assert [checked for checked in outcomes if checked.verdict == "broken"] == []
    assert sum(checked.verdict == "kept" for checked in outcomes) > 700
    why = {checked.why for checked in outcomes if checked.name.endswith("to_the_millisecond")}
    assert why == {
        "the store's clock cannot be set (real_clock), so no time is exact to the millisecond"
    }


@pytest.mark.parametrize(
    "kind", [owners.CompletesForAnyone, retention.TrustsTheSweeper, retention.SweepsWhatIsHeld]
)
def test_a_broken_one_is(kind: type[MemoryStore], tmp_path: Path):
    class Suite(OwnTimeSuite):
        pass

    Suite.kind = kind
    broken = {c.name for c in check(Suite(), tmp_path, ["blocking"]) if c.verdict == "broken"}
    assert kind.rejected_by in broken


class TestOneMode(OwnTimeSuite):
    """As pytest collects it: each rule once, and the other mode is never opened."""

    modes = ("async",)

    def open_store(self, place: Place) -> MemoryStore:
        raise AssertionError("the suite must not open this one")

    def open_async_store(self, place: Place) -> AsyncMemoryStore:
        return AsyncMemoryStore(MemoryStore())


def test_a_store_of_one_mode_is_tried_in_that_one(tmp_path: Path):
    only = ["test_the_first_claim_wins_and_its_row_is_there"]
    assert [c.mode for c in check(TestOneMode(), tmp_path, only=only)] == ["async"]


def test_the_model_runs_on_a_clock_that_cannot_be_set():
    class Model(OwnTime, StoreModel):
        pass

    run_state_machine_as_test(Model, settings=SEARCHING)


def test_the_model_rejects_a_broken_store_on_such_a_clock():
    class Model(OwnTime, StoreModel):
        kind = retention.FenceRestartsAfterExpiry

    with pytest.raises(AssertionError, match="P3"):
        run_state_machine_as_test(Model, settings=SEARCHING)


# ------------------------------------------------------------------ clock and names


def test_a_fake_clock_stands_still_until_it_is_moved():
    clock = FakeClock(1_000)
    assert (clock(), clock.worker()) == (1_000, 1.0)
    clock.advance(1.5)
    clock.advance(ms=1)
    assert (clock(), clock.worker()) == (2_501, 2.501)


def test_a_fake_clock_never_goes_back():
    clock = FakeClock()
    before = clock()
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1)
    assert clock() == before


def test_every_public_name_of_the_kit_is_there():
    for name in twicesafe.testing.__all__:
        assert getattr(twicesafe.testing, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = twicesafe.testing.Nothing


# ------------------------------------------------------------------ what the async versions are spared


def requests_of(rules: type[StoreConformance], folder: Path) -> set[str]:
    sent: set[str] = set()

    class Listening(MemoryStore):
        def perform(self, request: Any) -> Any:
            sent.add(type(request).__name__)
            return super().perform(request)

    class Suite(rules):  # type: ignore[valid-type, misc]
        modes = ("blocking",)

        def open_store(self, place: Place) -> MemoryStore:
            return Listening(place.clock)

    assert {checked.verdict for checked in check(Suite(), folder)} == {"kept", "skipped"}
    return sent


def test_the_selection_for_async_versions_has_every_kind_of_request(tmp_path: Path):
    assert requests_of(Awaited, tmp_path) == requests_of(StoreConformance, tmp_path)
