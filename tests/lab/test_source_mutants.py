"""Source mutants fit the source as it is, and only a test that failed counts as a kill."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lab.__main__ import main
from lab.mutants.sources import SOURCE_MUTANTS, check_form, kill_all, sample

GLUED = "scope parts are glued"

pytestmark = pytest.mark.timeout(1800)  # each starts a pytest or two, which wait for the processor


def test_every_one_fits_the_source():
    assert check_form() == []


def test_a_mutant_is_killed(capsys: pytest.CaptureFixture[str]):
    assert main(["sources", GLUED, "--jobs", "1"]) == 0
    assert "killed by tests/unit/test_keys.py" in capsys.readouterr().out


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"tests": ("tests/unit/test_keys.py::test_repr_shows_no_value",)}, "its tests pass"),
        ({"tests": ("tests/unit/test_keys.py::test_there_is_none",)}, "do not pass"),
        ({"old": "no such text"}, "occurs 0 times"),
        ({"new": "return ("}, "would not compile"),
        ({"file": "no_such_file.py"}, "there is no"),
    ],
)
def test_what_kills_nothing_is_reported(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], why: str
):
    monkeypatch.setitem(SOURCE_MUTANTS, GLUED, replace(SOURCE_MUTANTS[GLUED], **changes))
    [kill] = kill_all([GLUED], jobs=1)
    assert not kill.killed_by
    assert why in kill.why


def test_a_sample_is_drawn_by_its_seed():
    assert sample(3, seed=1) == sample(3, seed=1)
    assert len(sample(3, seed=1)) == 3
    assert sample(10_000, seed=1) == sorted(SOURCE_MUTANTS)
    assert {*sample(2, seed=1)} | {*sample(2, seed=2)} <= {*SOURCE_MUTANTS}


def test_an_unknown_one_is_named(capsys: pytest.CaptureFixture[str]):
    assert main(["sources", "no such"]) == 2
    assert "no such" in capsys.readouterr().err
