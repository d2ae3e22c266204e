"""What a receiver did over the last hour: slices without a timer, and the last trouble."""

from __future__ import annotations

import pytest

from twicesafe import Key, Receiver
from twicesafe import events as ev
from twicesafe.observers import LogObserver
from twicesafe.observers._activity import SLICE, TROUBLES, UNCOUNTED, Activity
from twicesafe.observers._history import APART, LATELY, SLICES
from twicesafe.observers._tally import QUEUE

KEY = Key("k")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_slices_add_up_to_what_came(clock: Clock):
    activity = Activity(clock)
    for n in range(5):
        for _ in range(n):
            activity(ev.Started(KEY, 1, None))
        activity(ev.Replayed(KEY, 1.0))
        clock.now += SLICE
        activity.course()
    activity(ev.Started(KEY, 1, None))
    clock.now += 3
    course = activity.course()
    assert [each.outcomes.get("first", 0) for each in course] == [0, 1, 2, 3, 4, 1]
    assert [each.seconds for each in course] == [SLICE] * 5 + [3]
    assert course[0].ago == 5 * SLICE + 3


def test_a_busy_receiver_has_slices_though_no_one_looks(clock: Clock):
    activity = Activity(clock)
    activity.wake()
    for _ in range(20):
        clock.now += SLICE
        for _ in range(QUEUE + 1):
            activity(ev.Started(KEY, 1, None))
    assert len(activity.course()) == 20
    recent = activity.recent()
    assert recent.seconds <= LATELY + SLICE
    assert recent.deliveries <= 12 * (QUEUE + 1)


def test_nothing_is_counted_before_it_is_asked_for(clock: Clock):
    activity, heard = Activity(clock), [0]
    activity.renewed = lambda: heard.append(1)
    for _ in range(3 * UNCOUNTED):
        activity(ev.Started(KEY, 1, None))
        activity(ev.Replayed(KEY, 1.0))
    assert not any(activity._tally._queues.values())
    first = activity.recent()
    assert (first.deliveries, first.duplicates) == (UNCOUNTED, UNCOUNTED // 2)
    for _ in range(3 * UNCOUNTED):
        activity(ev.Started(KEY, 1, None))
    assert activity.recent().deliveries == 4 * UNCOUNTED, "from then on nothing is left out"
    assert heard == [0, 1], "the caller asks for its subscriptions again, once"


def test_a_receiver_counts_on_after_the_first_question():
    with Receiver.open("memory://", observers=[LogObserver()]) as receiver:
        for expected in (1, 2, 3):
            receiver.process("k", int)
            assert receiver._activity.recent().deliveries == expected


def test_a_quiet_one_has_long_slices(clock: Clock):
    activity = Activity(clock)
    clock.now += 7200
    activity(ev.Started(KEY, 1, None))
    (only,) = activity.course()
    assert (only.seconds, only.outcomes) == (7200, {"first": 1})


def test_the_course_is_bounded(clock: Clock):
    activity = Activity(clock)
    for _ in range(3 * SLICES):
        clock.now += SLICE
        activity.course()
    assert len(activity.course()) == SLICES
    assert len(activity._snapshots) <= LATELY / APART + 2


def test_the_last_trouble_is_kept_and_bounded(clock: Clock):
    activity = Activity(clock, lambda: 42)
    for n in range(TROUBLES + 10):
        activity(ev.Failed(KEY, "E", n, False))
    activity(ev.LeaseLost(KEY))
    activity(ev.Unprotected(KEY))
    activity(ev.Started(KEY, 1, None))
    assert len(activity.trouble) == TROUBLES
    assert [type(one.event) for one in list(activity.trouble)[-2:]] == [
        ev.LeaseLost,
        ev.Unprotected,
    ]
    assert activity.trouble[-1].at == 42
    assert activity.recent().unprotected == 1  # it is counted too
