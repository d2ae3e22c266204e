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


def test_it_is_run_again_without_resume_or_for_another_question(tmp_path: Path):
    assert ask(tmp_path / "kept", [1]) == [1]
    assert ask(tmp_path / "kept", [2], resume=False) == [2]
    assert ask(tmp_path / "kept", [3], asked="full") == [3]


def test_it_is_run_again_when_its_sources_changed(tmp_path: Path, sources: Path):
    assert ask(tmp_path / "kept", [1]) == [1]
    sources.write_text("2")
    assert ask(tmp_path / "kept", [2]) == [2]


def test_what_is_not_good_is_found_out_anew(tmp_path: Path):
    def look(answer: int) -> int:
        return Parts(resume=True, folder=tmp_path / "kept").get(
            *("part", "small", int, ("lab",)), lambda: answer, good=lambda found: found > 0
        )

    assert [look(0), look(1), look(2)] == [0, 1, 1]


def test_sources_can_be_named_by_a_pattern(tmp_path: Path, sources: Path):
    def look(answer: int) -> int:
        return Parts(resume=True, folder=tmp_path / "kept").get(
            *("part", "small", int, ("lab/*.py",)), lambda: answer
        )

    assert look(1) == 1
    (sources.parent / "inner").mkdir()
    (sources.parent / "inner" / "other.py").write_text("1")
    assert look(2) == 1
    sources.write_text("2")
    assert look(3) == 3
