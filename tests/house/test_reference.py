"""The reference pages are what the code says: `docs/generate.py` makes them, and they are committed."""

from __future__ import annotations

import importlib
import importlib.util
import re
from types import ModuleType

import pytest

from tests.house.repository import ROOT
from twicesafe import Policy, errors
from twicesafe._core.transitions import TRANSITIONS
from twicesafe.stores._urls import SCHEMES


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATE, PHOTOGRAPH = load("generate"), load("photograph")
PAGES: dict[str, str] = GENERATE.pages()


@pytest.mark.parametrize("page", PAGES)
def test_page_is_what_the_code_says(page: str):
    committed = (ROOT / "docs" / page).read_text("utf-8")
    assert committed == PAGES[page], "run python docs/generate.py and commit what it writes"


@pytest.mark.parametrize("path", GENERATE.shipped())
def test_a_file_of_the_package_is_what_the_table_says(path: str):
    made = GENERATE.shipped()[path]
    assert (ROOT / path).read_text("utf-8") == made, "run python docs/generate.py and commit"


def test_every_setting_error_and_transition_is_shown():
    for name in Policy.__slots__:
        assert f"| `{name}` |" in PAGES["reference/policy.md"]
    for name in errors.__all__:
        assert f"| `{name}` |" in PAGES["reference/errors.md"]
    for (before, _), after in TRANSITIONS.items():
        move = f"{GENERATE._name(before)} → {GENERATE._name(after)}"
        assert move in PAGES["reference/states.md"]


@pytest.mark.parametrize("page", [page for page in PAGES if page.endswith(".md")])
def test_no_block_and_no_section_is_empty(page: str):
    assert re.findall(r"^```\w*\n\s*```$", PAGES[page], re.MULTILINE) == []
    assert re.findall(r"^## [^\n]*\n+(?=## )", PAGES[page], re.MULTILINE) == []


@pytest.mark.parametrize("page", ["reference/api.md", "reference/values.md", "reference/cli.md"])
def test_every_name_has_a_meaning(page: str):
    assert re.findall(r"^\|.*\|\s*\|$", PAGES[page], re.MULTILINE) == []


def test_every_rule_that_the_code_cites_is_explained():
    explained = re.findall(r"^\| (P\d+) \|", PAGES["reference/protocol.md"], re.MULTILINE)
    texts = [path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py")]
    cited = {rule for text in texts for rule in re.findall(r"\bP[1-9]\d?\b", text)}
    assert cited == set(explained)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/evidence.md"])
def test_the_evidence_is_that_of_the_last_published_run(page: str):
    text = (ROOT / page).read_text("utf-8")
    assert GENERATE.evidence() in text, "run python docs/generate.py and commit what it writes"


def test_the_stores_of_the_readme_are_what_the_code_declares():
    """| `scheme://` | survives a crash | shared by | inbox and outbox | …, for every store that there is."""
    told = re.findall(r"^\| `(\w+)://.*", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    lines = re.findall(r"^\| `\w+://.*", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    classes = set()
    for scheme, line in zip(told, lines, strict=True):
        _, survives, shared, joins, _ = line.strip("| ").split(" | ")
        module, _, names = SCHEMES[scheme].partition(":")
        store = getattr(importlib.import_module(module), names.split(",")[0])
        can = store.capabilities
        assert (survives == "yes", joins == "yes") == (can.durable, can.transactions and can.outbox)
        assert (shared != "one process") == can.shared
        classes.add(store)
    every = {target.split(",")[0] for target in SCHEMES.values()}
    assert len(classes) == len(every)


def test_no_picture_is_left_that_nothing_draws():
    kept = {path.name for path in (ROOT / "docs" / "pictures").iterdir()}
    drawn = {page.removeprefix("pictures/") for page in PAGES if page.startswith("pictures/")}
    assert kept == drawn | set(PHOTOGRAPH.names())


def test_a_sequence_that_is_not_understood_is_refused():
    with pytest.raises(ValueError, match="A >> B"):
        GENERATE.drawing.sequence("title: t\nactors: A | B\nA >> B: hello\n")
