"""What is easily written twice has one home: forks, suggestions, drivers."""

from __future__ import annotations

import re

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
