"""The lab is not blind: every mutant is found, told, and gone afterwards."""

from __future__ import annotations

import pytest

from lab.__main__ import main
from lab.mutants import LIMIT, MUTANTS, mutated
from lab.simulation.campaign import hunt_all
from lab.simulation.invariants import INVARIANTS, SET_ASIDE
from lab.simulation.plan import draw
from lab.simulation.shrinking import shrink, written
from lab.simulation.world import run


def test_there_are_enough_of_them():
    assert len(MUTANTS) >= 20


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str):
    [hunt] = hunt_all([name], LIMIT, jobs=1)
    assert hunt.schedule is not None
    assert hunt.invariant in INVARIANTS
    _, violation = run(draw(hunt.schedule))
    assert violation is None  # it was the bug, and the bug is gone
    assert not SET_ASIDE


def test_what_broke_is_made_small_and_breaks_the_same():
    with mutated("takeover keeps fence"):
        plan = draw(9)
        _, violation = run(plan)
        assert violation is not None
        small = shrink(plan, violation.name)
        _, again = run(small)
    assert again is not None
    assert again.name == violation.name
    assert len(small.deliveries) < len(plan.deliveries)
    assert len(written(small)) <= 6


def test_a_broken_core_fails_the_command(capsys: pytest.CaptureFixture[str]):
    words = ["simulate", "--seed", "9", "--mutant", "takeover keeps fence", "--shrink", "--trace"]
    assert main(words) == 1
    assert "fences grow" in capsys.readouterr().out


def test_an_unknown_mutant_is_named(capsys: pytest.CaptureFixture[str]):
    assert main(["mutants", "no such"]) == 2
    assert "no such" in capsys.readouterr().err
