"""One command line, run in this process: what it printed and the status it left with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from twicesafe import HeldError, Key, Policy, Receiver
from twicesafe import _cli as cli

__all__ = ["Line", "Ran", "held", "line", "receiver"]


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    @property
    def fault(self) -> Any:
        """The error that ``--json`` printed; stdout must be empty then."""
        assert self.out == ""
        return json.loads(self.err)["error"]


class Line:
    """`line("stats", "--json")` runs ``twicesafe stats --json`` on the test's own store."""

    def __init__(self, capsys: pytest.CaptureFixture[str], url: str) -> None:
        self._capsys = capsys
        self.url = url

    def __call__(self, *arguments: str, store: bool = True) -> Ran:
        self._capsys.readouterr()
        chosen = ("--store", self.url) if store else ()
        status = cli.main([*arguments, *chosen])
        out, err = self._capsys.readouterr()
        return Ran(status, out, err)


@pytest.fixture
def line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Line:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    return Line(capsys, f"sqlite:///{tmp_path}/keys.db")


@pytest.fixture
def receiver(line: Line) -> Iterator[Receiver]:
    with Receiver.open(line.url) as opened:
        yield opened


def held(receiver: Receiver, key: Key) -> None:
    """A key whose worker was interrupted under at-most-once: its outcome is unknown."""
    strict = receiver.options(policy=Policy(takeover="hold"))

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        strict.process(key, interrupted)
    with pytest.raises(HeldError):
        strict.process(key, interrupted)
