"""The page says what the numbers say, and no more."""

from __future__ import annotations

from msgspec.structs import replace

from lab import report
from lab.mutants import MUTANTS
from lab.simulation import STUDIES
from lab.simulation.campaign import Found


def test_the_page_is_made_of_the_numbers():
    proof = report.read(report.NUMBERS)
    assert report.as_markdown(proof) == report.PAGE.read_text("utf-8")


def test_what_was_published_is_a_whole_run():
    proof = report.read(report.NUMBERS)
    assert [tally.study for tally in proof.simulations] == list(STUDIES)
    for tally in proof.simulations:
        assert tally.schedules >= 100_000 // STUDIES[tally.study].share
    assert not any(tally.violations for tally in proof.simulations)
    assert {hunt.mutant for hunt in proof.mutants} == set(MUTANTS)
    assert all(hunt.schedule is not None for hunt in proof.mutants)
    assert all(check.as_expected and not check.skipped for check in proof.model)


def test_a_page_does_not_hide_what_broke():
    proof = report.read(report.NUMBERS)
    proof.simulations[0].violations.append(Found(1, "one result", "two"))
    proof.mutants[0] = replace(proof.mutants[0], schedule=None)
    proof.model[0] = replace(proof.model[0], caught=True)
    page = report.as_markdown(proof)
    assert "| **1** |" in page
    assert "**not found**" in page
    assert "**not as it must be**" in page
