"""Processes that are killed before and after every effect: only the step in flight runs again."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durable import dying_checkout
from tests.durable.dying_checkout import EFFECTS
from tests.durable.stores import ALL, fresh_url


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from fresh_url(request)


def killed(url: str, log: Path, dies_at: int) -> None:
    """A worker that dies at this moment."""
    script = dying_checkout.__file__
    ended = subprocess.run(
        [sys.executable, script, url, str(log), str(dies_at)],
        check=False,
        capture_output=True,
        timeout=300,
    )
    assert ended.returncode == 9, ended.stderr.decode()


def test_a_run_that_is_killed_at_every_moment_comes_to_its_end(url: str, tmp_path: Path) -> None:
    """One run, killed at each moment in turn: every worker resumes what the ones before recorded.

    A moment is counted within its own process, so the later ones are those of steps that run again.
    """
    log = tmp_path / "log"
    log.touch()
    for dies_at in range(3):  # before the first effect, in it, and after it
        killed(url, log, dies_at)
    answers = {dying_checkout.main(url, str(log), -1) for _ in range(2)}
    assert len(answers) == 1, "a repeat gets the recorded answer"
    assert answers.pop().split()[1:] == list(EFFECTS)
    ran = Counter(log.read_text().split())
    # moment 0: nothing ran; moment 1: killed in `reserve` before its effect; moment 2: after it.
    assert ran == {"reserve": 2, "charge": 1, "ship": 1, "mail": 1}


@pytest.mark.parametrize("name", EFFECTS)
def test_a_kill_after_any_effect_repeats_that_effect_only(
    url: str, tmp_path: Path, name: str
) -> None:
    log = tmp_path / "log"
    log.touch()
    killed(url, log, 2 + 2 * EFFECTS.index(name))
    dying_checkout.main(url, str(log), -1)
    ran = Counter(log.read_text().split())
    assert ran == {each: 2 if each == name else 1 for each in EFFECTS}
