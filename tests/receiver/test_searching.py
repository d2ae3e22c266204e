"""Searching: the conditions of `records`, `records_page` and `count`, and the audit log of all keys."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.receiver.bench import Bench, Counter
from tests.receiver.test_operators import park
from twicesafe import ConfigurationError, Key, State, UsageError


def values(bench: Bench, **conditions: Any) -> list[str]:
    """What matches, newest first; all three ways to ask agree."""
    found = [record.value for record in bench.records(**conditions)]
    page, after = bench.records_page(**conditions)
    assert ([record.value for record in page], after) == (found, "")
    assert bench.count(**conditions) == len(found)
    return found


def test_one_state_or_several_as_members_or_words(bench: Bench) -> None:
    bench.process("done", Counter().quick)
    park(bench, "parked")
    assert values(bench, state=[State.PARKED, "completed"]) == ["parked", "done"]
    assert values(bench, state=(State.HELD,)) == []
    assert values(bench, state="parked") == ["parked"]
    with pytest.raises(UsageError, match="'lost' is not valid: use one of in_progress"):
        bench.records(state=["parked", "lost"])


def test_a_value_is_found_in_any_scope(bench: Bench) -> None:
    for tenant in ("acct_1", "acct_2"):
        bench.process(Key("tx-1", scope=(tenant,)), Counter().quick)
        bench.process(Key("tx-2", scope=(tenant,)), Counter().quick)
    assert [r.scope for r in bench.records(value="tx-1")] == [("acct_2",), ("acct_1",)]
    assert values(bench, value="tx-1", scope=("acct_1",)) == ["tx-1"]


def test_the_error_of_the_last_attempt(bench: Bench) -> None:
    park(bench, "parked")
    bench.process("done", Counter().quick)
    (error,) = {record.error for record in bench.records(state="parked")}
    assert values(bench, error=error[:4]) == ["parked"]
    assert values(bench, error="Nothing") == []


def test_when_a_record_last_changed(bench: Bench) -> None:
    bench.process("old", Counter().quick)
    bench.clock.advance(60)
    bench.process("new", Counter().quick)
    middle = bench.record("new").changed_at - timedelta(seconds=30)
    assert values(bench, since=middle) == ["new"]
    assert values(bench, older_than=middle) == ["old"]
    assert values(bench, since="2600w") == ["new", "old"]


def test_stuck(bench: Bench) -> None:
    running = Counter()
    first = bench.start(bench.process, "running", running.slow)
    assert running.entered.wait(60)
    assert values(bench, stuck=True) == []
    bench.clock.advance(31)
    assert values(bench, stuck=True) == ["running"]
    running.go_on.set()
    first.result(120)


def test_counting_stops_at_its_limit(bench: Bench) -> None:
    for number in range(5):
        bench.process(f"key-{number}", Counter().quick)
    assert bench.count() == 5
    assert bench.count(up_to=3) == 3
    assert bench.count(up_to=6, state="completed") == 5
    with pytest.raises(UsageError, match="up_to=0 is not valid"):
        bench.count(up_to=0)


@pytest.mark.parametrize(
    "conditions, message",
    [
        ({"scope": "shop"}, "scope='shop' is not valid: use a tuple"),
        ({"value": 5}, "value=5 is not valid: use text"),
        ({"value": "\ud800"}, "is not valid: use text .valid Unicode"),
        ({"scope": ("a", "\ud800")}, "is not valid: use text .valid Unicode"),
        ({"error": ""}, "every error starts with it"),
        ({"value": ""}, "no key has an empty value"),
        ({"since": datetime(2026, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ({"sinse": "2h"}, "there is no condition 'sinse'"),
    ],
)
def test_conditions_that_mean_nothing(
    bench: Bench, conditions: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        bench.records(**conditions)
    with pytest.raises(UsageError, match=message):
        bench.count(**conditions)


def test_a_duration_that_is_none(bench: Bench) -> None:
    with pytest.raises(ConfigurationError, match=r"older_than='7 days' .* did you mean '7d'"):
        bench.records(older_than="7 days")


def test_the_audit_log_of_all_keys(bench: Bench) -> None:
    for name in ("a", "b"):
        park(bench, name)
        bench.release(name, by="ann", why=f"looked at {name}")
        bench.clock.advance(1)
    log = bench.audit_log()
    assert [(entry.value, entry.by, entry.why) for entry in log] == [
        ("b", "ann", "looked at b"),
        ("a", "ann", "looked at a"),
    ]
    assert [entry.key for entry in log] == [Key("b"), Key("a")]
    assert bench.audit_log(limit=1) == log[:1]
    assert bench.audit_log(since=log[0].at) == log[:1]
    with pytest.raises(UsageError, match="limit="):
        bench.audit_log(limit=0)
