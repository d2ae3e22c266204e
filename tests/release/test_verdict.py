"""The API of two versions, compared: what breaks, and what the version number must do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from release.api import Surface, surface
from release.verdict import compare, level_of, next_version

BEFORE = """
__all__ = ["Shop", "charge", "LIMIT"]
LIMIT = 1

def charge(order, /, amount, *, currency="EUR"): ...

class Shop:
    open_hours = 8
    def pay(self, order): ...
    @classmethod
    def open(cls, url): ...
    def _private(self): ...
"""
CHANGES = {
    "nothing": ("LIMIT = 1", "LIMIT = 2", set(), set()),
    "a new name": ('"LIMIT"]', '"LIMIT", "pay"]\npay = 1', set(), {"toy.pay is new"}),
    "a new option": ('currency="EUR"', 'currency="EUR", note=""', set(), {"toy.charge: the parameter note is new"}),
    "a new method": ("def _private", "def refund(self): ...\n    def _private", set(), {"toy.Shop.refund is new"}),
    "a private method": ("def _private(self)", "def _other(self, x)", set(), set()),
    "a name is gone": ('"charge", ', "", {"toy.charge is gone"}, set()),
    "a method is gone": ("def pay", "def _pay", {"toy.Shop.pay is gone"}, set()),
    "an attribute is gone": ("open_hours", "_hours", {"toy.Shop.open_hours is gone"}, set()),
    "a required parameter": ('currency="EUR"', 'currency="EUR", note', {"toy.charge: the parameter note is new"}, set()),
    "a parameter is gone": (', *, currency="EUR"', "", {"toy.charge: the parameter currency is gone"}, set()),
    "a default is gone": ('currency="EUR"', "currency", {"toy.charge: the parameter currency has no default any more"}, set()),
    "another order": ("order, /, amount", "amount, /, order", {
        "toy.charge: the parameter amount is passed in another way",
        "toy.charge: the parameter order is passed in another way",
        "toy.charge: the order of its parameters is another one"}, set()),
    "of a class method": ("cls, url", "cls, address", {
        "toy.Shop.open: the parameter url is gone", "toy.Shop.open: the parameter address is new"}, set()),
}  # fmt: skip


def read(text: str, folder: Path) -> Surface:
    """The API of a package with this text."""
    (folder / "toy").mkdir(parents=True)
    (folder / "toy" / "__init__.py").write_text(text)
    (folder / "toy" / "_inside.py").write_text('raise AssertionError("private")')
    sys.path.insert(0, str(folder))
    try:
        return surface("toy")
    finally:
        sys.path.remove(str(folder))
        del sys.modules["toy"]
        sys.path_importer_cache.clear()


@pytest.mark.parametrize("change", CHANGES)
def test_what_breaks_is_not_what_is_new(change: str, tmp_path: Path):
    old, new, breaks, adds = CHANGES[change]
    assert old in BEFORE
    before = read(BEFORE, tmp_path / "before")
    found = compare(before, read(BEFORE.replace(old, new), tmp_path / "after"))
    assert {one.what for one in found if one.breaks} == breaks
    assert {one.what for one in found if not one.breaks} == adds


@pytest.mark.parametrize(
    "breaks, adds, version, level, least",
    [
        (True, True, "1.2.3", "major", (2, 0, 0)),
        (False, True, "1.2.3", "minor", (1, 3, 0)),
        (False, False, "1.2.3", "patch", (1, 2, 4)),
        (True, False, "0.1.0", "minor", (0, 2, 0)),
        (False, True, "0.1.0", "patch", (0, 1, 1)),
    ],
)
def test_how_far_the_version_must_grow(breaks, adds, version, level, least):
    before = {"a": None, "gone": None} if breaks else {"a": None}
    after = {"a": None, "new": None} if adds else {"a": None}
    assert level_of(compare(before, after), version) == level
    assert next_version(version, level) == least
