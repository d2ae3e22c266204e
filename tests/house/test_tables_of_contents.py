"""The docstring of a package with many modules says what each of them is for."""

from __future__ import annotations

import ast
import re

import pytest

from tests.house.repository import PACKAGE

LISTED = [
    "_core",
    "_core/http",
    "_edges",
    "_runtime",
    "_transactions",
    "_values",
    "asgi",
    "receiver",
    "_core/durable",
    "_core/outbox",
    *sorted(
        str(found.parent.relative_to(PACKAGE)) for found in PACKAGE.glob("_engines/*/__init__.py")
    ),
]


@pytest.mark.parametrize("folder", LISTED)
def test_every_module_is_in_the_table_of_its_package(folder: str):
    place = PACKAGE / folder
    table = ast.get_docstring(ast.parse((place / "__init__.py").read_text("utf-8"))) or ""
    modules = {path.stem.lstrip("_") for path in place.glob("*.py")} - {"init__"}
    missing = sorted(name for name in modules if not re.search(rf"\b_?{name}\b", table))
    assert missing == [], f"say in {folder}/__init__.py what they are for"
