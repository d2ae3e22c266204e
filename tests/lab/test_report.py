"""The page says what the numbers say, and no more."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from lab import report
from lab.__main__ import PARTS
from lab.field.trial import new_trial
from lab.mutants import MUTANTS
from lab.simulation import STUDIES
from lab.simulation.campaign import Found


def test_the_pages_are_made_of_the_numbers():
    proof = report.read(report.NUMBERS)
    assert tuple(report.pages(proof)) == report.PAGES
    for name, text in report.pages(proof).items():
        assert text == (report.FOLDER / name).read_text("utf-8")


def test_what_was_published_is_a_whole_run():
    proof = report.read(report.NUMBERS)
    assert set(proof.tried) == set(PARTS)
    for name, study in STUDIES.items():
        assert proof.simulations[name].schedules >= 100_000 // study.share
        assert not proof.simulations[name].violations
    assert {hunt.mutant for hunt in proof.mutants} == set(MUTANTS)
    assert all(hunt.schedule is not None for hunt in proof.mutants)
    assert all(check.as_expected and not check.skipped for check in proof.model)


def test_a_part_is_published_beside_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(report, "NUMBERS", tmp_path / "proof.json")
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    old = report.read(report.ROOT / "lab" / "results" / "proof.json")
    old.tried = dict.fromkeys(PARTS, "an earlier version")
    report.NUMBERS.write_bytes(msgspec.json.encode(old))
    new = report.Proof(simulations={"relays": replace(old.simulations["relays"], events=7)})
    report.publish(new, ["relays"])
    found = report.read(report.NUMBERS)
    assert found.simulations == old.simulations | new.simulations
    assert (found.mutants, found.field) == (old.mutants, old.field)
    later = found.tried.pop("relays")
    assert set(found.tried.values()) == {"an earlier version"}
    assert f"- {later}: relays\n" in (tmp_path / "proof.md").read_text("utf-8")


def test_trials_that_were_run_apart_replace_their_own_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(report, "NUMBERS", tmp_path / "proof.json")
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    old = report.read(report.ROOT / "lab" / "results" / "proof.json")
    report.NUMBERS.write_bytes(msgspec.json.encode(old))
    portions = []
    for tried in (3, 4):
        portion = new_trial("soak", "sqlite", 1, True)
        portion.tried, portion.seconds = tried, 1.5
        portion.count("portions")
        portions.append(portion)
    portions[1].broke("something")
    report.publish_trials(portions)
    found = report.read(report.NUMBERS)
    (row,) = [done for done in found.field if (done.name, done.engine) == ("soak", "sqlite")]
    assert (row.tried, row.seconds, row.broken, row.counts) == (
        7,
        3.0,
        ["something"],
        {"portions": 2},
    )
    assert len(found.field) == len(old.field)
    page = (tmp_path / "proof.md").read_text("utf-8")
    assert "1 of them broken" in page
    assert page == report.pages(found)["proof.md"]


def test_further_portions_are_added_to_the_published_ones_with_both_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(report, "NUMBERS", tmp_path / "proof.json")
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    first, later = (new_trial("soak", "sqlite", 1, True) for _ in range(2))
    first.tried, first.seconds, first.version = 3, 1.5, "an earlier version"
    later.tried, later.seconds, later.version = 4, 2.0, "a later version"
    for portion in (first, later):
        portion.count("portions")
    report.NUMBERS.write_bytes(
        msgspec.json.encode(report.read(report.ROOT / "lab" / "results" / "proof.json"))
    )
    report.publish_trials([first])
    report.publish_trials([later], add=True)
    found = report.read(report.NUMBERS)
    (row,) = [done for done in found.field if (done.name, done.engine) == ("soak", "sqlite")]
    assert (row.tried, row.seconds, row.counts) == (7, 3.5, {"portions": 2})
    assert row.version == "a later version; an earlier version"
    page = (tmp_path / "proof-trials.md").read_text("utf-8")
    assert "a later version, an earlier version" in page


def test_a_page_does_not_hide_what_broke():
    proof = report.read(report.NUMBERS)
    proof.simulations["leases"].violations.append(Found(1, "one result", "two"))
    proof.mutants[0] = replace(proof.mutants[0], schedule=None)
    proof.model[0] = replace(proof.model[0], caught=True)
    first, simulations, planted, _ = report.pages(proof).values()
    assert "| **1** |" in first
    assert "**not as expected**" in first
    assert "| one result | 1 |" in simulations
    assert "**not found**" in planted
