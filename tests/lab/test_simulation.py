"""The simulation: it finds nothing in the core, replays bit for bit, and meets everything."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lab.__main__ import main
from lab.simulation import STUDIES
from lab.simulation.campaign import campaign, missing
from lab.simulation.study import Study
from tests.house.repository import ROOT

pytestmark = pytest.mark.timeout(1800)  # half a minute of processor, on a machine of any load


@pytest.fixture(params=STUDIES)
def study(request: pytest.FixtureRequest) -> Study:
    return STUDIES[request.param]


def test_no_schedule_breaks_an_invariant(study: Study):
    """CI also runs the many schedules of `make prove`, which must meet everything; but not of regions."""
    schedules = 2_000 if study.name == "regions" else 100
    tally = campaign(study, first=0, schedules=schedules, jobs=1)
    assert tally.violations == []
    assert tally.schedules == schedules
    assert study.name != "regions" or len(missing(study, tally.seen)) <= 3


def test_a_campaign_says_what_it_never_met(study: Study):
    tally = campaign(study, first=0, schedules=1, jobs=1)
    unmet = missing(study, tally.seen)
    assert unmet
    assert set(unmet) < set(study.wanted)


def test_cores_share_a_campaign_and_count_the_same(monkeypatch: pytest.MonkeyPatch):
    """Three chunks, the last of one schedule. One study: each is handed out in the same way."""
    study = STUDIES["leases"]
    monkeypatch.setattr("lab.simulation.campaign.CHUNK", 50)
    alone = campaign(study, first=100, schedules=101, jobs=1)
    shared = campaign(study, first=100, schedules=101, jobs=2)
    assert (shared.schedules, shared.events, shared.seen) == (101, alone.events, alone.seen)


TELL = """
from lab.__main__ import main
from lab.simulation import STUDIES
for name in STUDIES:
    print("study", name)
    main(["simulate", "--study", name, "--seed", "7", "--trace"])
"""


def told(hash_seed: str) -> str:
    """Every study, in one process."""
    return subprocess.run(
        [sys.executable, "-c", TELL],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    ).stdout


def test_a_seed_replays_bit_for_bit_in_another_process():
    first = told("1")
    assert first == told("2")
    stories = first.split("study ")[1:]
    assert [story.splitlines()[0] for story in stories] == list(STUDIES)
    assert all(len(story.splitlines()) > 11 for story in stories)


def test_another_seed_tells_another_story(study: Study):
    stories: list[list[str]] = [[], []]
    for seed, story in zip((7, 8), stories, strict=True):
        study.run(study.draw(seed), story.append)
    assert stories[0] != stories[1]


def test_telling_a_schedule_does_not_change_it(study: Study):
    lines: list[str] = []
    quiet, _ = study.run(study.draw(11), None)
    loud, _ = study.run(study.draw(11), lines.append)
    assert (quiet.events, quiet.seen) == (loud.events, loud.seen)
    assert lines


@pytest.mark.parametrize("name", ["leases", "steps"])
def test_the_fast_path_does_what_the_flow_does_event_by_event(name: str):
    """Both make the same decisions, so a schedule tells the same story on either of them."""
    study = STUDIES[name]
    for seed in range(200 // study.share):
        plan = study.draw(seed)
        assert plan.fast
        fast: list[str] = []
        flow: list[str] = []
        study.run(plan, fast.append)
        study.run(study.ways["flow"](plan), flow.append)
        assert fast == flow


def test_a_campaign_from_the_command_line(capsys: pytest.CaptureFixture[str]):
    assert main(["simulate", "--schedules", "40", "--jobs", "1"]) == 0
    assert "40 schedules" in capsys.readouterr().out
