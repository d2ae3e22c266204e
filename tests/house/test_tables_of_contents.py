"""The docstring of a package says what each of its modules is for."""

from __future__ import annotations

import ast
import re

import pytest

from tests.house.repository import PACKAGE

UNLISTED = {
    ".",  # the map of the docs lists what is at the top
    "_cli",  # one module per command
    "integrations/django_inbox/migrations",  # one module per version
    "testing/_conformance",  # one module per topic
}
LISTED = [
    folder
    for found in sorted(PACKAGE.rglob("__init__.py"))
    if len(list(found.parent.glob("*.py"))) > 2
    and (folder := found.parent.relative_to(PACKAGE).as_posix()) not in UNLISTED
]


@pytest.mark.parametrize("folder", LISTED)
def test_every_module_is_in_the_table_of_its_package(folder: str):
    place = PACKAGE / folder
    table = ast.get_docstring(ast.parse((place / "__init__.py").read_text("utf-8"))) or ""
    modules = {path.stem.lstrip("_") for path in place.glob("*.py")} - {"init__"}
    missing = sorted(name for name in modules if not re.search(rf"\b_?{name}\b", table))
    assert missing == [], f"say in {folder}/__init__.py what they are for"
