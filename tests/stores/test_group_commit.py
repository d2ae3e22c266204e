"""Group commit: the caller that leads works for all in line, and no interrupt blocks the line for ever."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.polling import until
from tests.stores.sudden import begin, suddenly
from twicesafe.stores import _group_commit as module
from twicesafe.stores._group_commit import GroupCommit


def echo(request: Any) -> Any:
    return ("one", request)


def echo_all(requests: list[Any]) -> list[Any]:
    return [("all", request) for request in requests]


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(lambda lane: lane.perform("a"), id="with a request"),
        pytest.param(lambda lane: lane.alone(int), id="for what is no exchange"),
    ],
)
def test_an_interrupt_anywhere_leaves_the_lane_free(work: Callable[[GroupCommit], Any]):
    for moment in itertools.count(1):
        lane = GroupCommit(echo, echo_all)
        error = suddenly(module, moment, lambda lane=lane: work(lane))
        assert not lane.is_busy()
        assert begin(lambda lane=lane: lane.perform("b"))() == ("one", "b")
        if error is None:
            break
    assert moment > 2  # there were such moments


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first in line", "second", "last"])
def test_an_interrupt_of_one_in_company_costs_the_others_nothing_but_a_moment(place: int):
    """Three stand in line behind a long write; one of them is interrupted, leading or led."""
    for moment in itertools.count(1):
        lane = GroupCommit(echo, echo_all)
        go = threading.Event()
        long_write = begin(lambda lane=lane, go=go: lane.alone(go.wait))
        until(lambda lane=lane: lane.is_busy())
        ends = []
        for at in range(3):
            ends.append(
                begin(
                    (lambda lane=lane, at=at: lane.perform(at))
                    if at != place
                    else (
                        lambda lane=lane, moment=moment: suddenly(
                            module, moment, lambda: lane.perform("interrupted")
                        )
                    )
                )
            )
            until(lambda lane=lane, at=at: len(lane._line) > at or at >= place)
        go.set()
        assert long_write()
        got = [end() for end in ends]
        error = got.pop(place)
        assert [each[1] for each in got] == [at for at in range(3) if at != place]
        assert not lane.is_busy()
        if (
            error is None and moment > 8
        ):  # before that, it was answered before it could be interrupted
            break


def test_who_waits_travels_together():
    batches: list[list[Any]] = []

    def all_at_once(requests: list[Any]) -> list[Any]:
        batches.append(requests)
        return echo_all(requests)

    lane = GroupCommit(echo, all_at_once)
    go = threading.Event()
    long_write = begin(lambda: lane.alone(go.wait))
    until(lane.is_busy)
    ends = []
    for at in range(5):
        ends.append(begin(lambda at=at: lane.perform(at)))
        until(lambda at=at: len(lane._line) == at + 1)
    go.set()
    long_write()
    assert [end() for end in ends] == [("all", at) for at in range(5)]
    assert batches == [[0, 1, 2, 3, 4]]


def test_answered_callers_wake_one_after_the_other_and_the_next_write_waits_for_the_last(
    monkeypatch: pytest.MonkeyPatch,
):
    lane = GroupCommit(echo, echo_all)
    others = [module._Ticket(at) for at in range(2)]
    lane._line.extend(others)
    # Not the first in the queue, so it leads when it has waited long enough.
    lane._in_batch(module._Ticket(2))
    # Even on a slow machine, it must not check for itself.
    monkeypatch.setattr(module, "LONGEST_WAIT", 60)
    first, last = others
    assert first.wait(0)
    assert not last.wait(0)  # the first wakes it
    came_back = begin(lambda: lane.perform("again"))
    until(lambda: len(lane._line) == 1)
    assert lane._line[0].answer is module._UNANSWERED
    lane._wake_following(first)
    assert last.wait(0)
    lane._wake_following(last)
    assert came_back() == ("one", "again")


def test_an_interrupted_caller_wakes_the_next_one():
    class Interrupt(BaseException):
        pass

    lane = GroupCommit(echo, echo_all)

    class Interrupted(module._Ticket):
        """The caller is interrupted in its sleep, when its answer is there."""

        def wait(self, seconds: float | None) -> bool:
            self.following = next_one
            raise Interrupt

    mine, next_one = Interrupted(1), module._Ticket(2)
    with lane._taken, pytest.raises(Interrupt):
        lane._in_batch(mine)
    assert next_one.wait(0)


def test_the_next_write_does_not_wait_for_ever_for_a_caller_that_was_interrupted():
    lane = GroupCommit(echo, echo_all)
    lane._line.append(module._Ticket("never wakes up"))
    lane._in_batch(module._Ticket(1))
    assert lane.perform(2) == ("one", 2)
    assert lane._last_to_wake is None


def test_an_answer_that_is_an_error_is_its_callers_alone():
    lane = GroupCommit(
        echo, lambda requests: [ValueError(each) if each else each for each in requests]
    )
    lane._line.append(other := module._Ticket(0))
    with pytest.raises(ValueError, match="1"):
        lane._in_batch(module._Ticket(1))
    assert other.answer == 0


class Alone:
    alone = True


def test_what_must_be_alone_is_not_taken_along():
    lane = GroupCommit(echo, lambda requests: [("all", len(requests)) for _ in requests])
    others = [module._Ticket(0), module._Ticket(Alone()), module._Ticket(2)]
    lane._line.extend(others)
    assert lane._in_batch(module._Ticket(3)) == ("all", 3)
    assert [each.answer[0] for each in others] == ["all", "one", "all"]


def test_an_error_of_what_is_alone_is_its_own():
    def one(request: object) -> object:
        raise ValueError("alone")

    lane = GroupCommit(one, echo_all)
    lane._line.append(other := module._Ticket(Alone()))
    assert lane._in_batch(module._Ticket(1)) == ("all", 1)
    assert isinstance(other.answer, ValueError)
