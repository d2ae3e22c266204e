"""The list of source mutants, and what is wrong with an entry that no longer fits the source."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["PACKAGE", "ROOT", "SOURCE_MUTANTS", "SourceMutant", "break_source"]

ROOT: Final = Path(__file__).parents[3]
PACKAGE: Final = ROOT / "src" / "twicesafe"


class SourceMutant(msgspec.Struct, frozen=True):
    name: str
    bug: str
    file: str
    """Below src/twicesafe."""
    old: str
    new: str
    tests: tuple[str, ...]
    """At least one of them must fail on the copy with the bug."""

    def source(self) -> str:
        """The file with the bug in it."""
        return (PACKAGE / self.file).read_text("utf-8").replace(self.old, self.new)

    def complaints(self) -> list[str]:
        """Why this entry cannot be run as it stands; empty when it can."""
        path = PACKAGE / self.file
        if not path.is_file():
            return [f"{self.name}: there is no src/twicesafe/{self.file}"]
        found = path.read_text("utf-8").count(self.old)
        if found != 1:
            return [f"{self.name}: its old text occurs {found} times in {self.file}, not once"]
        if self.old == self.new:
            return [f"{self.name}: old and new text are the same"]
        if path.suffix == ".py":
            try:
                ast.parse(self.source())
            except SyntaxError as error:
                return [f"{self.name}: {self.file} would not compile: {error}"]
        return [f"{self.name}: {wrong}" for test in self.tests if (wrong := _unknown(test))]


SOURCE_MUTANTS: dict[str, SourceMutant] = {}


def break_source(
    name: str, *, bug: str, file: str, old: str, new: str, tests: Sequence[str]
) -> None:
    """Enter one mutant into the list."""
    if name in SOURCE_MUTANTS:
        raise ValueError(f"two source mutants are called {name!r}")
    if not tests:
        raise ValueError(f"{name!r} names no test that must fail")
    SOURCE_MUTANTS[name] = SourceMutant(name, bug, file, old, new, tuple(tests))


def _unknown(test: str) -> str:
    """Why this is not a test of ours; empty when it is."""
    file, *names = test.split("::")
    path = ROOT / file
    if not path.is_file():
        return f"there is no {file}"
    text = path.read_text("utf-8")
    last = names[-1].partition("[")[0] if names else ""
    if last and last not in text and len(names) == 1:  # a class may inherit its tests
        return f"{file} has no {last}"
    return ""
