"""The walks of docs/contributing/walks.md are those of today's code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.house.repository import PACKAGE
from tests.house.walks import SOURCES, WALKS, function_on_sqlite, repeat_on_sqlite


def recorded(name: str) -> list[str]:
    return (SOURCES / f"{name}.walk").read_text("utf-8").splitlines()


def functions_in(file: Path) -> set[str]:
    """Every function of a module, as a recording names it."""
    found = set()

    def look(node: ast.AST, outer: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{outer}{child.name}"
                found.add(name)
                look(child, f"{name}.")
            else:
                look(child, outer)

    look(ast.parse(file.read_text("utf-8")), "")
    return found


@pytest.mark.parametrize("name", WALKS)
def test_every_function_of_a_walk_exists(name: str):
    for line in recorded(name):
        _, file, function, *_ = line.split()
        named = re.sub(r"\.?<\w+>$", "", function)  # a lambda or a comprehension in it
        assert not named or named in functions_in(PACKAGE / file), line


@pytest.mark.parametrize(
    "name, walk", [("function", function_on_sqlite), ("repeat", repeat_on_sqlite)]
)
def test_a_call_on_sqlite_goes_the_way_that_is_drawn(name: str, walk):
    """Comprehensions are functions in some versions of Python only."""

    def way(lines: list[str]) -> list[str]:
        return [line for line in lines if "<" not in line]

    assert way(walk()) == way(recorded(name)), "run python -m tests.house.walks, then generate.py"
