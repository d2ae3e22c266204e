"""Processes that are killed before and after every effect: only the step in flight runs again."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.durable import dying_checkout
from tests.durable.dying_checkout import EFFECTS


def test_a_run_that_is_killed_at_every_moment_comes_to_its_end(tmp_path: Path) -> None:
    """One run, killed at each moment in turn: every worker resumes what the ones before recorded.

    A moment is counted within its own process, so the later ones are those of steps that run again.
    """
    url, log = f"sqlite:///{tmp_path}/keys.db", tmp_path / "log"
    log.touch()
    script = dying_checkout.__file__
    for dies_at in range(
        3
    ):  # before the first effect, after it, and at the start of the next worker
        ended = subprocess.run(
            [sys.executable, script, url, str(log), str(dies_at)], check=False, capture_output=True
        )
        assert ended.returncode == 9, ended.stderr.decode()
    answers = {dying_checkout.main(url, str(log), -1) for _ in range(2)}
    assert len(answers) == 1, "a repeat gets the recorded answer"
    assert answers.pop().split()[1:] == list(EFFECTS)
    ran = Counter(log.read_text().split())
    # moment 0: nothing ran; moment 1: killed in `reserve` before its effect; moment 2: after it.
    assert ran == {"reserve": 2, "charge": 1, "ship": 1, "mail": 1}


def test_a_kill_after_any_effect_repeats_that_effect_only(tmp_path: Path) -> None:
    for place, name in enumerate(EFFECTS):
        url, log = f"sqlite:///{tmp_path}/{name}.db", tmp_path / name
        log.touch()
        after = 2 + 2 * place
        ended = subprocess.run(
            [sys.executable, dying_checkout.__file__, url, str(log), str(after)], check=False
        )
        assert ended.returncode == 9
        dying_checkout.main(url, str(log), -1)
        ran = Counter(log.read_text().split())
        assert ran == {each: 2 if each == name else 1 for each in EFFECTS}
