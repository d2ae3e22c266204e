"""The table: every event has a place, every name keeps the rules, and no label grows with keys."""

from __future__ import annotations

import re
from bisect import bisect_left

import pytest

from twicesafe import Cause, Key
from twicesafe import events as ev
from twicesafe.errors import DuplicateError, ResultUnavailableError
from twicesafe.observers._log import LEVELS, fields_of
from twicesafe.observers._metric import Metric
from twicesafe.observers._metric_table import METRICS, OUTCOMES, REFUSALS
from twicesafe.observers._tally import Tally


def test_every_event_is_counted():
    counted = {source.event for row in METRICS for source in row.sources}
    assert counted == set(ev.Event.__subclasses__())


def test_every_event_has_a_level():
    assert set(LEVELS) == set(ev.Event.__subclasses__())


@pytest.mark.parametrize("row", METRICS, ids=lambda row: row.name)
def test_names_keep_the_rules_of_prometheus(row: Metric):
    assert re.fullmatch(r"[a-z][a-z_]*[a-z]", row.name)
    assert row.name.endswith("_total") == (row.kind == "counter")
    if row.unit:
        assert row.name.endswith(f"_{row.unit}")
    assert bool(row.buckets) == (row.kind == "histogram")
    assert list(row.buckets) == sorted(set(row.buckets))
    assert row.meaning.endswith(".")


def test_no_name_is_used_twice():
    assert len({row.name for row in METRICS}) == len(METRICS)


def test_no_label_can_hold_a_key_a_tenant_or_a_message():
    assert {name for row in METRICS for name in row.labels} <= {
        *("outcome", "cause", "remembered", "operation", "answer", "reason", "state", "status"),
    }


def test_every_way_to_refuse_a_duplicate_is_an_outcome():
    kinds = {cls.__name__ for cls in [*_leaves(DuplicateError), ResultUnavailableError]}
    assert set(REFUSALS) == kinds - {"RememberedFailureError"}  # that one is a replayed answer
    assert set(REFUSALS.values()) <= set(OUTCOMES)


def _leaves(cls: type) -> list[type]:
    below = cls.__subclasses__()
    return [leaf for one in below for leaf in _leaves(one)] if below else [cls]


def test_the_fields_of_a_line_hide_the_key_and_the_trace():
    fields = fields_of(ev.Replayed(Key("secret", ("tenant",)), 2.0, window=5.0, origin=b"x" * 25))
    assert fields == {
        "event": "replayed",
        "key": Key("secret", ("tenant",)).short,
        "age": 2.0,
        "cached": False,
        "window": 5.0,
    }
    assert fields_of(ev.Started(Key("k"), 1, Cause.FAILED))["cause"] == "failed"


def test_a_full_queue_is_counted_as_its_events_one_by_one():
    """A number that equals a bound belongs to the bucket below it."""
    (row,) = (row for row in METRICS if row.name == "handler_seconds")
    numbers = [0.0, *row.buckets, *(bound * 1.5 for bound in row.buckets), *row.buckets[:3], 1e9]
    tally, expected = Tally(), [0.0] * (len(row.buckets) + 2)
    for number in reversed(numbers):
        tally(ev.Completed(Key("k"), number, handler=number))
        expected[bisect_left(row.buckets, number)] += 1
    ((_, cell),) = tally.of(row)
    assert cell[:-1] == expected[:-1]
    assert cell[-1] == pytest.approx(sum(numbers))
