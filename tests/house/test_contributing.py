"""CONTRIBUTING names commands and files that are there, and sizes that are still about right."""

from __future__ import annotations

import re

import pytest

from tests.house.repository import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
DEV = (ROOT / "dev").read_text("utf-8")
SIZES = re.findall(r"`([^`\s]+)`\s+\((\d+) lines\)", TEXT)
PATHS = re.findall(r"`((?:src|tests|docs|examples|lab)/[\w./-]*)`", TEXT)


def test_it_measures_a_store_a_publisher_and_an_adapter():
    assert len(SIZES) >= 6


@pytest.mark.parametrize("path, lines", SIZES)
def test_a_size_is_about_right(path: str, lines: str):
    there = len((ROOT / path).read_text("utf-8").splitlines())
    assert abs(there - int(lines)) <= max(5, there // 5), f"{path} has {there} lines"


@pytest.mark.parametrize("path", sorted(set(PATHS)))
def test_what_it_names_is_there(path: str):
    assert (ROOT / path).exists()


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`make ([a-z]+)", TEXT))))
def test_its_commands_are_there(command: str):
    *_, chosen = DEV.partition("\ncase $command in\n")
    assert re.search(rf"^[^)]*\b{command}\b[^)]*\) ", chosen, re.MULTILINE)
    assert re.search(rf"^COMMANDS := .*\b{command}\b", (ROOT / "Makefile").read_text(), re.M)


def test_what_check_runs_is_there():
    (named,) = re.findall(r'^FAST="([^"]+)"', DEV, re.MULTILINE)
    assert [path for path in named.split() if not (ROOT / path).exists()] == []
