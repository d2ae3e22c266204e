"""No row without a test, no test that is not there, and pages that are what the maps say."""

from __future__ import annotations

import pytest

from tests.maps import attacks, pages, recording
from tests.maps.faults import FAULTS, NONE, cells
from tests.maps.inbox import INBOX
from tests.maps.outbox import OUTBOX
from tests.maps.places import exists, marked


@pytest.mark.parametrize("row", FAULTS)
def test_every_fault_is_held_in_every_mode_or_cannot_occur(row: str):
    for mode, cell in cells(row).items():
        assert bool(cell.held_by) != (cell is NONE), f"{row} in {mode} names no test"


def test_every_mode_has_every_row_in_the_same_order():
    assert list(INBOX) == list(OUTBOX) == list(FAULTS)


@pytest.mark.parametrize("row", attacks.ATTACKS)
def test_every_attack_is_tried_or_says_why_not(row: str):
    assert bool(attacks.held_by()[row]) != (row in attacks.NOT_THERE)


def test_there_are_as_many_as_there_must_be():
    assert len(FAULTS) >= 40
    assert list(attacks.ATTACKS) == [f"D{number}" for number in range(1, 25)]
    assert set(attacks.LIMITS) | set(attacks.NOT_THERE) | set(attacks.ELSEWHERE) <= set(
        attacks.ATTACKS
    )


def test_what_a_map_names_is_there():
    assert {place for place in pages.named() if not exists(place)} == set()


def test_no_mark_names_an_attack_that_there_is_not():
    strange = {row for row in marked("attack") if row not in attacks.ATTACKS}
    assert strange == set()


@pytest.mark.parametrize(
    "place",
    ["tests/maps/test_maps.py::test_nothing", "tests/none.py::test_x", "rule:test_x", "lab/x.py"],
)
def test_what_is_not_there_is_seen(place: str):
    assert not exists(place)


def test_the_pages_are_fresh():
    assert pages.FAULTS_PAGE.read_text("utf-8") == pages.faults_page(), "run python -m tests.maps"
    assert pages.ATTACKS_PAGE.read_text("utf-8") == pages.attacks_page(), "run python -m tests.maps"


def test_nothing_that_was_recorded_has_failed():
    assert {place for place, ended in recording.read().items() if ended == "failed"} == set()


# ------------------------------------------------------------------ the recorder


@pytest.mark.parametrize(
    "nodeid, places",
    [
        ("tests/a.py::test_b[c::d]", ["tests/a.py::test_b"]),
        ("tests/a.py::TestA::test_b[x]", ["tests/a.py::TestA", "rule:test_b"]),
        ("tests/a.py", ["tests/a.py"]),
    ],
)
def test_a_test_is_known_by_its_names(nodeid: str, places: list[str]):
    assert recording.places_of(nodeid) == places


@pytest.mark.parametrize(
    "one, other, both",
    [
        (None, "passed", "passed"),
        ("passed", "skipped", "passed"),
        ("skipped", "passed", "passed"),
        ("skipped", "skipped", "skipped"),
        ("failed", "passed", "failed"),
        ("passed", "failed", "failed"),
    ],
)
def test_of_many_cases_the_worst_counts(one: str | None, other: str, both: str):
    assert recording.worse(one, other) == both
