"""The start of a command: an operator's question does not wait for the import of every other command."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADED = """
import sys
from twicesafe._cli.app import run
try:
    run({words!r})
finally:
    print("loaded:", *sorted(name.removeprefix("twicesafe._cli.") for name in sys.modules if name.startswith("twicesafe._cli.")))
"""
OTHERS = {"bench", "consume", "demo", "proxy", "verify", "plan", "dashboard", "follow"}


def loaded_by(*words: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(words=list(words))],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.rpartition("loaded:")[2].split())


@pytest.mark.parametrize(
    "words", ["keys list", "stats", "audit", "health", "doctor", "keys show x"]
)
def test_a_command_imports_only_itself(words: str):
    loaded = loaded_by(*words.split(), "--store", "memory://")
    assert not loaded & OTHERS
    assert loaded & {"keys", "stats", "health", "maintenance"}


def test_the_help_names_all_commands():
    assert loaded_by("--help") >= OTHERS


def test_it_works_without_docstrings():
    """As in an image that sets PYTHONOPTIMIZE=2: the help is shorter, and every command is there."""
    words = [sys.executable, "-OO", "-m", "twicesafe"]
    asked = subprocess.run([*words, "--help"], capture_output=True, text=True, check=False)
    assert "doctor" in asked.stdout, asked.stderr
    shown = subprocess.run(
        [*words, "stats", "--json", "--store", "memory://"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert '"by_state"' in shown.stdout, shown.stderr
