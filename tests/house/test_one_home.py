"""What is easily written twice has one home: forks, suggestions, drivers, class names."""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

from tests.house.repository import PACKAGE

HOMES = {
    r"register_at_fork\(": {"_forking.py"},
    r"import difflib|get_close_matches": {"_values/settings.py"},
    r"did you mean": {"_values/settings.py"},
    r"pip install 'twicesafe\[": {"_values/drivers.py"},
}


@pytest.mark.parametrize("written", HOMES)
def test_one_home(written: str):
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(written, path.read_text("utf-8"))
    }
    assert found == HOMES[written]


ONE_PER = {
    "an engine": {
        "LoopClient",
        "LoopConnections",
        "Router",
        "Settings",
        "SweepAndSearch",
        "Waiter",
        "WakeupListener",
    },
    "a source": {"Receipt"},
    "an HTTP library": {"AsyncRetryTransport", "RetryTransport"},
    "a framework": {"IdempotencyMiddleware", "IdempotentTools", "Meta", "Migration", "Record"},
    "a public package": {"Event", "Message", "Place", "Verdict"},
}
"""Class names that may occur more than once, and why: one idea per engine, source, library, framework or package."""


def test_a_class_name_has_one_meaning():
    names = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} <= set().union(*ONE_PER.values())
