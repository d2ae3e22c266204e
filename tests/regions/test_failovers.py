"""Failovers under load. `python -m tests.regions.failovers` is the same in a bigger size."""

from __future__ import annotations

import pytest

from tests.regions.failovers import Storm
from tests.regions.worlds import Places
from tests.stores.mongodb_sockets import sockets_of_the_driver  # noqa: F401 - an autouse fixture

PAIRS = (
    ("sqlite", "sqlite"),
    ("postgres", "postgres"),
    ("valkey", "valkey"),
    ("postgres", "dynamodb"),
    ("mongodb", "mongodb"),
)


@pytest.mark.parametrize("unknown", ["hold", "run"])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_no_key_is_worked_on_twice_without_being_counted(
    places: Places, pair: tuple[str, str], unknown: str
):
    storm = Storm(places, pair, unknown)
    for number in range(2):
        storm.round(number)
    found = storm.check()
    assert found["failovers"] == 2
    if unknown == "hold":
        assert not found["worked on twice, counted"]
