"""Real kills: what only SIGKILL shows, and what is asked before anything is killed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from twicesafe import ConfigurationError
from twicesafe.testing import crash_matrix

HANDLERS = '''
from pathlib import Path

from twicesafe.testing import crash_point

OUT = Path("out.txt")


def clean():
    MEMORY.clear()
    OUT.unlink(missing_ok=True)


def lines():
    return OUT.read_text().splitlines() if OUT.exists() else []


def once(order):
    OUT.write_text(order)
    return order


MEMORY = {}


def remember(order):
    MEMORY[order] = 1


def count(orders):
    return len(orders) + len(MEMORY)


def tidy(order):
    """Looks right as long as a death is polite: the mark is only removed by a finally."""
    if lines() == ["busy"]:
        raise RuntimeError("somebody is at it")
    try:
        OUT.write_text("busy")
        crash_point("busy")
    finally:
        OUT.write_text(order)
    return order
'''


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "killable.py").write_text(HANDLERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import killable  # pyright: ignore[reportMissingImports]

    yield killable
    sys.modules.pop("killable", None)


def test_a_process_is_killed_at_every_point(handlers: ModuleType):
    report = crash_matrix(
        handlers.once, "o-1", snapshot=handlers.lines, setup=handlers.clean, kill=True,
        interleavings=0,
    )  # fmt: skip
    assert report.ok, str(report)
    crashed = [trial.name for trial in report.trials if trial.kind == "crash"]
    assert [trial.name for trial in report.trials if trial.kind == "kill"] == crashed
    assert len(crashed) == 6


def test_a_kill_finds_what_a_polite_death_does_not(handlers: ModuleType):
    """Inside ``try`` a raised death still runs the ``finally``; a kill does not."""
    report = crash_matrix(
        handlers.tidy, "o-1", snapshot=handlers.lines, setup=handlers.clean, kill=True,
        interleavings=0,
    )  # fmt: skip
    assert [(trial.kind, trial.name) for trial in report.wrong] == [("kill", "busy")]
    assert "somebody is at it" in report.wrong[0].fault


def test_what_cannot_be_killed_is_told_before_anything_is(handlers: ModuleType):
    def local(order: str) -> str:
        return order

    options = {
        "snapshot": handlers.lines,
        "setup": handlers.clean,
        "kill": True,
        "interleavings": 0,
    }
    with pytest.raises(ConfigurationError, match="top of a module"):
        crash_matrix(local, "o-1", **options)
    with pytest.raises(ConfigurationError, match="as JSON"):
        crash_matrix(handlers.count, {1, 2}, **options)
    with pytest.raises(ConfigurationError, match="outlives its process"):
        crash_matrix(handlers.remember, "o-1", **options | {"snapshot": lambda: handlers.count({})})
