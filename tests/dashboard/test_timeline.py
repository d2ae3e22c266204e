"""The timeline says what is known of a key, in order, and what is not known."""

from __future__ import annotations

from dataclasses import astuple
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from twicesafe import Cause, Key, Record, State
from twicesafe import events as ev
from twicesafe.dashboard._timeline import timeline
from twicesafe.observers._activity import Trouble
from twicesafe.stores import AuditEntry

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
KEY = Key("tx-1", absolute=True)


def minutes(count: float) -> datetime:
    return NOW + timedelta(minutes=count)


def record(**given: Any) -> Record:
    fields: dict[str, Any] = {
        "id": KEY.id, "scope": (), "value": "tx-1", "state": State.COMPLETED, "attempt": 1, "fence": 1, "cause": None,
        "error": "", "created_at": minutes(-30), "changed_at": minutes(-29), "lease_until": None,
        "not_before": None, "expires_at": None, "result_bytes": None,
    }  # fmt: skip
    return Record(**{**fields, **given})


def act(at: float, action: str = "release", **given: Any) -> AuditEntry:
    fields = {"by": "ana", "why": "", "state_before": State.HELD, **given}
    return AuditEntry(id=KEY.id, at=minutes(at), action=action, **fields)


def titles(one: Record, audit: Any = (), seen: Any = ()) -> list[str]:
    return [entry.title for entry in timeline(one, audit, seen, NOW)]


def test_a_plain_run():
    made = record(result_bytes=22, expires_at=minutes(60))
    assert [astuple(entry) for entry in timeline(made, [], [], NOW)] == [
        (minutes(-30), "start", "First delivery claimed the key", ""),
        (minutes(-29), "done", "Answer recorded", "attempt 1, fence 1, 22 bytes"),
        (minutes(60), "future", "Kept until then", "a duplicate that comes later runs again"),
    ]


@pytest.mark.parametrize(
    "given, said",
    [
        ({"state": State.HELD}, ["Held: the outcome is unknown", "Waits for an operator"]),
        ({"state": State.PARKED, "error": "TimeoutError"}, ["Parked: too many attempts", "Waits for an operator"]),
        ({"state": State.FAILED, "error": "ValueError"}, ["Failed permanently: ValueError"]),
        ({"state": State.RELEASED, "error": "OSError", "not_before": minutes(1)},
         ["Attempt 1 failed: OSError", "Back-off ends: the next delivery may run"]),
        ({"state": State.FORGOTTEN}, ["Forgotten: the key and its result are erased"]),
        ({"state": State.IN_PROGRESS, "lease_until": minutes(1)}, ["Lease ends, unless renewed"]),
        ({"state": State.IN_PROGRESS, "lease_until": minutes(-1)}, ["Lease ended: the next delivery takes over"]),
    ],
)  # fmt: skip
def test_every_state_says_what_happened_and_what_comes(given: dict[str, Any], said: list[str]):
    assert titles(record(**given)) == ["First delivery claimed the key", *said]


def test_starts_without_times_are_said_and_not_left_out():
    made = record(attempt=3, cause=Cause.LEASE_EXPIRED)
    (between,) = [entry for entry in timeline(made, [], [], NOW) if entry.at is None]
    assert between.title == "2 further starts of the handler"
    assert "the lease of the worker before it ran out" in between.detail
    assert "keeps no times" in between.detail


def test_a_late_duplicate_that_ran_again_is_trouble():
    made = record(cause=Cause.RETENTION_EXPIRED)
    assert timeline(made, [], [], NOW)[0].title == "A late duplicate ran again"


def test_operators_are_in_it_and_their_change_is_said_once():
    made = record(changed_at=minutes(-5), cause=Cause.OPERATOR, state=State.RELEASED, attempt=0)
    found = timeline(made, [act(-5, why="not charged")], [], NOW)
    assert [(entry.title, entry.detail) for entry in found[1:]] == [
        ("ana released the key", "not charged (it was held)")
    ]


def test_what_this_process_saw_is_sorted_in():
    def seen(at: float, event: ev.Event) -> Trouble:
        return Trouble(round(minutes(at).timestamp() * 1000), event)

    events = [
        seen(-20, ev.TakenOver(KEY, 2)),
        seen(-10, ev.LeaseLost(KEY)),
        seen(-15, ev.Failed(KEY, "TimeoutError", 2, False)),
        seen(-12, ev.RenewalRefused(KEY)),
        seen(-9, ev.TakenOver(Key("another", absolute=True), 2)),
        seen(-8, ev.StoreFailed(None, "claim", "down")),
    ]
    assert titles(record(changed_at=minutes(-1)), [act(-11)], events) == [
        "First delivery claimed the key",
        "Attempt 2 took over",
        "Attempt 2 failed: TimeoutError",
        "A lease renewal was refused",
        "ana released the key",
        "A late answer was refused",
        "Answer recorded",
    ]


def test_hidden_characters_are_visible():
    assert titles(record(), [act(-5, by="a\u202eb")])[-1] == r"a\u202eb released the key"
