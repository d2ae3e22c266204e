"""A long proof that was interrupted goes on; what has changed since is run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import parts
from lab.parts import Parts


@pytest.fixture(autouse=True)
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(parts, "ROOT", tmp_path)
    file = tmp_path / "lab" / "one.py"
    file.parent.mkdir()
    file.write_text("1")
    return file


def ask(folder: Path, answer: list[int], *, resume: bool = True, asked: str = "small") -> list[int]:
    return Parts(resume=resume, folder=folder).get(
        "part", asked, list[int], ("lab",), lambda: answer
    )


def test_what_was_found_is_taken_again(tmp_path: Path):
    assert ask(tmp_path / "kept", [1]) == [1]
    assert ask(tmp_path / "kept", [2]) == [1]


def test_it_is_run_again_when_told_so_or_asked_otherwise(tmp_path: Path):
    assert ask(tmp_path / "kept", [1]) == [1]
    assert ask(tmp_path / "kept", [2], resume=False) == [2]
    assert ask(tmp_path / "kept", [3], asked="full") == [3]


def test_it_is_run_again_when_its_sources_changed(tmp_path: Path, sources: Path):
    assert ask(tmp_path / "kept", [1]) == [1]
    sources.write_text("2")
    assert ask(tmp_path / "kept", [2]) == [2]
