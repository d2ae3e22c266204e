"""Events: sent to every observer, whose errors are survived; logged when an operator must know, never with secrets."""

from __future__ import annotations

import logging

import pytest

from twicesafe import Key
from twicesafe import events as ev

KEY = Key("secret-key", ("secret-tenant",))

WARNINGS = [
    ev.BreakerChanged("open", 5, 1.0),
    ev.FellBack(KEY),
    ev.BrokerFailed(7, "no broker", 0.1),
    ev.LaneParked("id-1", "orders", 10, "ValueError"),
    ev.PublishFailed("id-1", "orders", 1, "ValueError"),
    ev.Held(KEY, "its worker stopped without an answer"),
    ev.Parked(KEY, "ValueError"),
    ev.LeaseLost(KEY),
    ev.RenewalFailed(KEY, "OSError"),
    ev.RenewalRefused(KEY),
    ev.ResultNotKept(KEY, "TooLargeError"),
    ev.ResultUnreadable(KEY, "CorruptRecordError"),
    ev.StoreFailed(KEY, "claim", "OSError"),
    ev.StoreFailed(None, "sweep", "OSError"),
    ev.Unprotected(KEY),
    ev.DeadLettered("m-1", "orders", "DeadLetter: no"),
]
QUIET = [
    ev.Started(KEY, 1, None),
    ev.TakenOver(KEY, 2),
    ev.Completed(KEY, 0.1),
    ev.Failed(KEY, "ValueError", 1, False),
    ev.Replayed(KEY, 1.0),
    ev.Waited(KEY, 0.2),
    ev.Refused(KEY, "HeldError"),
    ev.StoreSampled({}, 0, 0, 0.0, None),
    ev.OutboxSampled(1, 0.5, 0, 0, 0, 1),
    ev.Responded(KEY, "POST", "/charges", 201, 0.1),
    ev.UpstreamFailed("UpstreamLost"),  # the proxy says so itself, with the request
    ev.Swept(1, 2),
    ev.Relayed(3),
    ev.StepRecorded(KEY, "charge", "run", 1, 0.1),
    ev.StepReplayed(KEY, "charge"),
    ev.RunSuspended(KEY, 3600.0),
    ev.Compensated(KEY, 2),
    ev.NearDuplicate(KEY, Key("secret-2"), 0.9, 2.0),
]


@pytest.mark.parametrize("event", WARNINGS, ids=lambda e: type(e).__name__)
def test_what_an_operator_must_know_is_logged(
    event: ev.Event, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "twicesafe"):
        ev.notifier(())(event)
    assert type(event).__name__ in caplog.text
    assert "secret" not in caplog.text
    if getattr(event, "key", None) is not None:
        assert KEY.short in caplog.text


@pytest.mark.parametrize("event", QUIET, ids=lambda e: type(e).__name__)
def test_what_is_normal_is_not_logged(event: ev.Event, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "twicesafe"):
        ev.notifier(())(event)
    assert caplog.text == ""


def test_every_event_is_in_one_of_the_two_lists() -> None:
    named = {type(event) for event in WARNINGS + QUIET}
    assert named == set(ev.Event.__subclasses__())


def test_all_observers_are_notified_in_order_and_survived(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    def broken(event: ev.Event) -> None:
        told.append("broken")
        raise RuntimeError("observer")

    ev.notifier([broken, lambda event: told.append("last")])(QUIET[0])
    assert told == ["broken", "last"]
    assert "an observer failed on Started" in caplog.text


def test_events_are_immutable() -> None:
    with pytest.raises(AttributeError):
        WARNINGS[0].key = Key("x")  # type: ignore[attr-defined, misc]
