"""The page that lists every item with its tests is what the marks say."""

from __future__ import annotations

from tests.http.items import LATER, LIMITS, PAGE, SECTIONS, marks, page

ITEMS = {name for items in SECTIONS.values() for name in items}


def test_the_page_is_fresh():
    assert PAGE.read_text("utf-8") == page(), (
        "run python -m tests.http.items, commit what it writes"
    )


def test_every_item_is_held_or_says_why_not():
    held = set(marks())
    assert held <= ITEMS, "a mark names an item that there is not"
    assert held | set(LATER) == ITEMS
    assert held & set(LATER) == set()
    assert set(LIMITS) <= held
