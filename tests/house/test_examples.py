"""Examples are files that run: each alone, in an empty folder, and it has something to show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.repository import ROOT, name

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(example: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("example", [pytest.param(path, id=name(path)) for path in EXAMPLES])
def test_example_runs(example: Path, tmp_path: Path):
    done = run(example, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "it printed nothing"


@pytest.mark.parametrize("example", [pytest.param(path, id=name(path)) for path in EXAMPLES])
def test_example_says_what_it_shows(example: Path):
    first = example.read_text("utf-8").lstrip()
    assert first.startswith(('"""', "#!")), "an example opens with a docstring"
    assert '"""' in first
