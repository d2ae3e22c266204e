"""Agents that are killed and started again charge each order once. `killing` has the larger run."""

from __future__ import annotations

import json
import subprocess
import sys


def test_no_effect_is_doubled_or_lost() -> None:
    command = [sys.executable, "-m", "tests.tool_calls.killing", "--runs", "12", "--batch", "3"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ended.stdout, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["doubled"], found["missing"], found["charged once"]) == (0, 0, 12), ended.stderr
    assert found["killed"] > 0
