"""The published counts of calls are those of today's code."""

from __future__ import annotations

import json

import pytest

from benchmarks.calls import FILE, SERVERS, _item_size, count


@pytest.mark.parametrize("name", ["valkey", "dynamodb", "mongodb"])
def test_what_is_published_is_counted_again(name: str, request: pytest.FixtureRequest):
    request.getfixturevalue(SERVERS[name])
    published = json.loads(FILE.read_text("utf-8"))
    assert set(published) == set(SERVERS)
    assert count(name) == published[name]


def test_the_size_of_an_item_by_the_rule_of_dynamodb():
    item = {
        "id": {"B": b"12345"},
        "n": {"N": "1700"},
        "l": {"L": [{"S": "ab"}]},
        "t": {"BOOL": True},
    }
    assert _item_size(item) == (2 + 5) + (1 + 2) + (1 + 3 + 1 + 2) + (1 + 1)
