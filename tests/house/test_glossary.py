"""One word per idea: docs/contributing/words.md lists the retired words, and none of them comes back.

A name (file, class, function, parameter) is split at capitals and underscores. Text is every
docstring, comment, message and page.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.repository import ROOT

WORDS = ROOT / "docs/contributing/words.md"
CODE = ("src", "tests", "lab", "benchmarks", "examples", "docs")

# Before a retired word, these make it another word.
ALLOWED = {
    "trip": {"round"},
    "trips": {"round"},
}

# Where the words themselves are the subject, or are published as they are.
QUOTED = {
    "tests/house/test_glossary.py": "this file",
    "tests/house/test_secrets.py": "a rule names the words of a denial",
    "tests/servers/pgbouncer.py": "the operating system has a user of that name",
    "lab/mutants/sources": "names and bugs are published with the last proof run",
    "docs/explanation/proof": "published: the ids of the tests of that run",
}


def retired() -> list[str]:
    """The first column of the last table."""
    table = WORDS.read_text().partition("## Retired words")[2]
    rows = re.findall(r"^\| ([a-z ,]+) \|", table, re.MULTILINE)
    return [word.strip() for row in rows if row != "retired" for word in row.split(",")]


def found_in_text(text: str, words: list[str]) -> Iterator[str]:
    either = "|".join(words).replace(" ", r"\s+")
    for match in re.finditer(rf"\b({either})\b", text, re.IGNORECASE):
        word = match.group().lower()
        before = re.findall(r"[a-z]+", text[max(0, match.start() - 20) : match.start()].lower())
        if before and before[-1] in ALLOWED.get(word, ()):
            continue
        line = text.count("\n", 0, match.start()) + 1
        yield f"{line}: {word}"


def names_in(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def spelled(name: str) -> str:
    """``TripWire`` and ``trip_wire`` as "trip wire"."""
    return " ".join(re.findall(r"[A-Z]?[a-z]+", name)).lower()


def found_in_names(source: str, words: list[str]) -> Iterator[str]:
    for line, name in names_in(source):
        if any(found_in_text(spelled(name), words)):
            yield f"{line}: {name}"


def is_quoted(path: Path) -> bool:
    return path.relative_to(ROOT).as_posix().startswith(tuple(QUOTED))


def pages() -> list[Path]:
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if not is_quoted(page)]


def modules() -> list[Path]:
    found = (path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py")))
    return [path for path in found if not is_quoted(path)]


def test_the_glossary_retires_words():
    assert {"colour", "whoever", "desk", "makes no sense"} <= set(retired())


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_retired_word_in_a_module(path: Path):
    words, source = retired(), path.read_text()
    assert [*found_in_names(source, words), *found_in_text(source, words)] == []
    assert list(found_in_text(spelled(path.stem), words)) == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_retired_word_in_a_page(page: Path):
    text = page.read_text()
    if page == WORDS:
        text = text.partition("## Retired words")[0]
    assert list(found_in_text(text, retired())) == []


@pytest.mark.parametrize(
    "source, found",
    [
        ("def carry(desk): ...", ["1: desk", "1: desk"]),
        ("class TripWire: ...", ["1: TripWire"]),
        ("class RoundTrip: ...", []),
        ("def is_told(): ...", ["1: is_told"]),
        ("def f():\n    '''Whoever asks.'''", ["2: whoever"]),
        ("round_trips = 2  # a round trip", []),
    ],
)
def test_a_retired_word_is_found(source: str, found: list[str]):
    words = ["desk", "trip", "whoever", "is told"]
    assert [*found_in_names(source, words), *found_in_text(source, words)] == found
