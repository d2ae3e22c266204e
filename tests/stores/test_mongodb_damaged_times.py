"""A search continues behind a document whose time is damaged, where the server sorts it: it skips no record."""

from __future__ import annotations

from typing import Any

import pytest

from twicesafe._core.protocol import Browse
from twicesafe._engines.mongodb.programs import MongodbPrograms
from twicesafe._engines.versioned.lease_watch import GivenClock, LeaseWatch

NOW = 1_700_000_000_123
DAMAGED: dict[str, tuple[Any, int]] = {
    "a shell's number": (float(NOW), NOW),
    "text": ("yesterday", 1 << 62),
    "none": (None, 0),
    "before 1970": (-5.0, -5),
    "not a number": (float("nan"), 0),
    "endless": (float("inf"), 1 << 62),
}


@pytest.mark.parametrize("created, place", DAMAGED.values(), ids=DAMAGED)
def test_the_next_page_begins_behind_it(created: Any, place: int):
    programs = MongodbPrograms(LeaseWatch(GivenClock(lambda: NOW), 1.0))
    search = programs.browse(Browse(1))
    next(search)
    page = [{"_id": digit * 64, "created_at": created, "state": "?"} for digit in "ba"]
    asked = search.send(page)
    [older, _] = asked.arguments[0]["$and"][0]["$or"]
    assert older == {"created_at": {"$lt": place}}
    with pytest.raises(StopIteration) as ended:
        search.send([])
    assert ended.value.value.unreadable == ("b" * 64, "a" * 64)
