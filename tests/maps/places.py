"""Where a named test is: found by reading the files, so that no map outlives what it points at.

tests/kill/test_sigkill.py::test_hold_never_doubles     a function or a class of tests
rule:test_a_retry_of_the_claim_gets_the_same_answer     a rule of the conformance suite, on all stores
lab/field/cuts.py                                       a method of the proof lab; it has its own report
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from tests.house.repository import ROOT
from twicesafe.testing import StoreConformance
from twicesafe.testing._conformance import rules_of

RULE = "rule:"


@functools.cache
def names_in(file: str) -> frozenset[str]:
    """Everything that pytest could collect by name from this file."""
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    found: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(found)


def exists(place: str) -> bool:
    if place.startswith(RULE):
        return place.removeprefix(RULE) in rules_of(StoreConformance)
    if place.startswith("lab/"):
        return (ROOT / place).is_file()
    file, _, name = place.partition("::")
    return name in names_in(file)


@functools.cache
def marked(mark: str) -> dict[str, list[str]]:
    """Which tests carry ``@pytest.mark.<mark>("D1", …)``, by what they name."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = path.relative_to(ROOT).as_posix()
        for name, ids in _marks(path, f"pytest.mark.{mark}"):
            for each in ids:
                found.setdefault(each, []).append(f"{file}::{name}")
    return found


def _marks(path: Path, mark: str) -> Iterator[tuple[str, list[str]]]:
    text = path.read_text("utf-8")
    if mark not in text:
        return
    for node in ast.parse(text).body:
        for decorator in getattr(node, "decorator_list", ()):
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == mark:
                yield node.name, [ast.literal_eval(word) for word in decorator.args]
