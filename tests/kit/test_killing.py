"""Real kills: what only SIGKILL shows, and what is asked before anything is killed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from twicesafe import ConfigurationError, Policy
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
        raise RuntimeError("the key is in use")
    try:
        OUT.write_text("busy")
        crash_point("busy")
    finally:
        OUT.write_text(order)
    return order
'''


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module of this text, in the folder that we are in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(text: str) -> ModuleType:
        (tmp_path / "killable.py").write_text(text)
        return importlib.import_module("killable")

    yield make
    sys.modules.pop("killable", None)


@pytest.fixture
def handlers(imported: Callable[[str], ModuleType]) -> ModuleType:
    return imported(HANDLERS)


def test_a_process_is_killed_at_every_point(handlers: ModuleType):
    report = crash_matrix(
        handlers.once, "o-1", snapshot=handlers.lines, setup=handlers.clean, kill=True,
        interleavings=0,
    )  # fmt: skip
    assert report.ok, str(report)
    crashed = [trial.name for trial in report.trials if trial.kind == "crash"]
    assert [trial.name for trial in report.trials if trial.kind == "kill"] == crashed
    assert len(crashed) == 6


def test_a_kill_finds_what_a_raised_exception_does_not(handlers: ModuleType):
    """Inside ``try`` a raised death still runs the ``finally``; a kill does not."""
    report = crash_matrix(
        handlers.tidy, "o-1", snapshot=handlers.lines, setup=handlers.clean, kill=True,
        interleavings=0,
    )  # fmt: skip
    assert [(trial.kind, trial.name) for trial in report.wrong] == [("kill", "busy")]
    assert "the key is in use" in report.wrong[0].fault


def test_what_cannot_be_killed_is_reported_before_anything_is(handlers: ModuleType):
    def local(order: str) -> str:
        return order

    options = {
        "snapshot": handlers.lines,
        "setup": handlers.clean,
        "kill": True,
        "interleavings": 0,
    }
    with pytest.raises(ConfigurationError, match="top level of a module"):
        crash_matrix(local, "o-1", **options)
    with pytest.raises(ConfigurationError, match="as JSON"):
        crash_matrix(handlers.count, {1, 2}, **options)
    with pytest.raises(ConfigurationError, match="outlives its process"):
        crash_matrix(handlers.remember, "o-1", **options | {"snapshot": lambda: handlers.count({})})


MORE = '''
import contextlib
import os
from pathlib import Path

from twicesafe import current_key
from twicesafe.testing import crash_point

OUT = Path("out.txt")
CHATTY = []


def clean():
    OUT.unlink(missing_ok=True)
    CHATTY[:] = [True]


def lines():
    return OUT.read_text().splitlines() if OUT.exists() else []


def append(order):
    with OUT.open("a") as out:
        print(order, file=out)
    return order


def other_way(order):
    """Its way depends on what the setup left in this very process."""
    OUT.write_text(order)
    if CHATTY:
        crash_point("one")
        crash_point("two")
    return order


def named(order):
    OUT.write_text(current_key().value)
    return order


@contextlib.contextmanager
def noted(order):
    yield
    OUT.write_text(order)


def unnoted(order):
    """The effect is outside, and what the exit of the ``with`` writes is not there yet."""
    if order not in lines():
        with noted(order):
            (OUT.parent / f"charge-{len(list(OUT.parent.glob('charge-*')))}").touch()
    return order


def charges():
    return sorted(path.name for path in OUT.parent.glob("charge-*"))


def no_charges():
    clean()
    for name in charges():
        os.unlink(name)
'''


@pytest.fixture
def more(imported: Callable[[str], ModuleType]) -> ModuleType:
    return imported(MORE)


def killed(module: ModuleType, name: str, **options: object):
    report = crash_matrix(
        getattr(module, name), "o-1", snapshot=options.pop("snapshot", module.lines),
        setup=options.pop("setup", module.clean), kill=True, interleavings=0, **options,
    )  # fmt: skip
    return report, {trial.name: trial for trial in report.trials if trial.kind == "kill"}


def test_the_points_are_those_of_the_process_that_is_killed(more: ModuleType):
    """A child that takes another way than this process is killed on its own way, at every point."""
    report, trials = killed(more, "other_way")
    assert report.ok, str(report)
    assert "one" not in trials
    assert len(trials) == 6
    assert trials["after complete"].starts == 1
    assert trials["before complete"].starts == 2


def test_a_key_that_waits_for_an_operator_did_no_harm(more: ModuleType):
    report, trials = killed(more, "append", policy=Policy(takeover="hold"))
    assert report.ok, str(report)
    assert trials["before complete"].note == "waits for an operator"
    report, trials = killed(more, "append")
    assert trials["before complete"].fault.startswith("doubled")


def test_the_key_goes_with_the_order(more: ModuleType):
    assert killed(more, "named", key="k-7")[0].ok
    assert more.lines() == ["k-7"]


def test_a_kill_falls_before_the_exit_of_any_with(more: ModuleType):
    ask = {"snapshot": more.charges, "setup": more.no_charges, "lines": True}
    report, trials = killed(more, "unnoted", **ask)
    leaving = [trial for name, trial in trials.items() if name.startswith("before leaving")]
    assert [bool(trial.fault) for trial in leaving] == [True]
    assert not any(
        trial.name == leaving[0].name for trial in report.trials if trial.kind == "crash"
    )
