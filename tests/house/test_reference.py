"""The reference pages are what the code says: `docs/generate.py` makes them, and they are committed."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from tests.house.repository import ROOT
from twicesafe import Policy, errors
from twicesafe.core.lifecycle import TRANSITIONS


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES: dict[str, str] = load().pages()


@pytest.mark.parametrize("page", PAGES)
def test_page_is_what_the_code_says(page: str):
    committed = (ROOT / "docs" / page).read_text("utf-8")
    assert committed == PAGES[page], "run python docs/generate.py and commit what it writes"


def test_every_setting_error_and_transition_is_shown():
    for name in Policy.__slots__:
        assert f"| `{name}` |" in PAGES["reference/policy.md"]
    for name in errors.__all__:
        assert f"| `{name}` |" in PAGES["reference/errors.md"]
    moves = {(a, b) for (a, _), b in TRANSITIONS.items()}
    assert PAGES["reference/states.md"].count(" --> ") == len(moves)
