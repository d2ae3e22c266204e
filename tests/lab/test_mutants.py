"""The lab is not blind: a mutant is found, told, and gone afterwards."""

from __future__ import annotations

import pytest

from lab.__main__ import main
from lab.mutants import LIMIT, MUTANTS, mutated
from lab.simulation import STUDIES
from lab.simulation.campaign import Hunt, hunt_all
from lab.simulation.shrinking import shrink
from lab.simulation.violations import SET_ASIDE


def test_there_are_enough_of_them():
    assert len(MUTANTS) >= 20
    assert {mutant.study for mutant in MUTANTS.values()} == set(STUDIES)


ONE_OF_EACH = {mutant.study: name for name, mutant in MUTANTS.items()}


@pytest.mark.parametrize(
    "name", ONE_OF_EACH.values()
)  # `make prove`, also in CI, hunts all of them
def test_a_mutant_is_found(name: str):
    [hunt] = hunt_all([name], LIMIT, jobs=1)
    assert hunt.schedule is not None
    assert not hunt.survived
    study = STUDIES[hunt.study]
    assert set(hunt.ways) == set(study.ways)
    assert hunt.invariant in study.rules
    _, violation = study.run(study.draw(hunt.schedule), None)
    assert violation is None  # it was the bug, and the bug is gone
    assert not SET_ASIDE


def test_a_mutant_that_shows_itself_on_one_way_only_survives():
    hunt = Hunt("a", "leases", "a bug", 7, ways={"flow": None})
    assert hunt.survived


def found(name: str) -> int:
    """A schedule in which this mutant shows itself."""
    [hunt] = hunt_all([name], LIMIT, jobs=1)
    assert hunt.schedule is not None
    return hunt.schedule


@pytest.mark.parametrize(
    "name, lines",
    [
        ("takeover keeps fence", 6),
        ("mark not compared", 2),
        ("failed settlement is forgotten", 6),
    ],
)
def test_what_broke_is_made_small_and_breaks_the_same(name: str, lines: int):
    study = STUDIES[MUTANTS[name].study]
    plan = study.draw(found(name))
    with mutated(name):
        _, violation = study.run(plan, None)
        assert violation is not None
        small = shrink(study, plan, violation.name)
        _, again = study.run(small, None)
    assert again is not None
    assert again.name == violation.name
    assert len(study.written(small)) < len(study.written(plan))
    assert len(study.written(small)) <= lines


def test_a_broken_core_fails_the_command(capsys: pytest.CaptureFixture[str]):
    name = "takeover keeps fence"
    words = ["simulate", "--seed", f"{found(name)}", "--mutant", name, "--shrink", "--trace"]
    assert main(words) == 1
    assert "fences grow" in capsys.readouterr().out


def test_an_unknown_mutant_is_named(capsys: pytest.CaptureFixture[str]):
    assert main(["mutants", "no such"]) == 2
    assert "no such" in capsys.readouterr().err
