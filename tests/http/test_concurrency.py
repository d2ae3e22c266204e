"""C: many at once, in one process. The storm over several processes is in `test_processes.py`."""

from __future__ import annotations

import threading
import time

import pytest

from tests.http.stage import Answer, Play, Seen, Stage, read
from twicesafe import State
from twicesafe.stores._urls import open_async_store, open_store


class Slow:
    """A handler that waits for the test."""

    def __init__(self, stage: Stage) -> None:
        self.in_transaction, self.go = threading.Event(), threading.Event()
        stage.handler = self

    def __call__(self, _: Seen) -> Answer:
        self.in_transaction.set()
        assert self.go.wait(60)
        return Answer(body=[b"slow"])


@pytest.mark.item("C1")
def test_fifty_at_once_by_their_last_byte_have_one_effect(stage: Stage):
    connections = [stage.connect() for _ in range(50)]
    request = stage.request("k")
    for connection in connections:
        connection.sendall(request[:-1])
    for connection in connections:
        connection.sendall(request[-1:])
    replies = list(stage.pool.map(read, connections))
    for connection in connections:
        connection.close()
    assert len(stage.seen) == 1
    assert {reply.status for reply in replies} <= {201, 409}
    answered = [reply for reply in replies if reply.status == 201]
    assert len({reply.body for reply in answered}) == 1
    assert sum(not reply.replayed for reply in answered) == 1


@pytest.mark.item("C1", "C2")
def test_with_wait_all_of_fifty_get_the_one_answer(play: Play):
    stage = play(wait=60)
    slow = Slow(stage)
    asked = [stage.later("k") for _ in range(50)]
    assert slow.in_transaction.wait(60)
    slow.go.set()
    replies = [reply.result() for reply in asked]
    assert {(reply.status, reply.body) for reply in replies} == {(201, b"slow")}
    assert sum(reply.replayed for reply in replies) == 49
    assert len(stage.seen) == 1


@pytest.mark.item("C2", "C3")
def test_a_duplicate_of_running_work_learns_when_to_come_back(stage: Stage):
    slow = Slow(stage)
    first = stage.later("k")
    assert slow.in_transaction.wait(60)
    reply = stage.send("k")
    assert (reply.status, reply.problem) == (409, "in-progress")
    assert int(reply["retry-after"] or 0) >= 1
    slow.go.set()
    assert first.result().status == 201
    assert stage.send("k").replayed
    assert len(stage.seen) == 1


@pytest.mark.item("C2")
def test_a_wait_is_bounded_and_the_status_is_a_setting(play: Play):
    stage = play(wait=0.05, in_flight_status=423)
    slow = Slow(stage)
    first = stage.later("k")
    assert slow.in_transaction.wait(60)
    reply = stage.send("k")
    assert (reply.status, reply.problem) == (423, "in-progress")
    slow.go.set()
    assert first.result().status == 201


@pytest.mark.item("C5")
def test_other_keys_do_not_wait(stage: Stage):
    slow = Slow(stage)
    first = stage.later("k")
    assert slow.in_transaction.wait(60)
    stage.handler = lambda _: Answer(202)
    assert stage.send("other").status == 202
    slow.go.set()
    assert first.result().status == 201


@pytest.mark.item("C6")
def test_a_live_request_outlasts_its_lease(play: Play):
    stage = play(lease=0.1)
    slow = Slow(stage)
    first = stage.later("k")
    assert slow.in_transaction.wait(60)
    time.sleep(0.35)  # real: the lease is real, and three of them have passed
    assert stage.send("k").problem == "in-progress"
    slow.go.set()
    assert first.result().status == 201
    assert stage.send("k").replayed
    assert [record.state for record in stage.records.records()] == [State.COMPLETED]
    assert len(stage.seen) == 1


@pytest.mark.item("C2", "E2")
def test_who_waits_takes_over_when_the_first_did_nothing(play: Play):
    stage = play(wait=60)
    inside, go = threading.Event(), threading.Event()

    def handler(_: Seen) -> Answer:
        if len(stage.seen) > 1:
            return Answer(201)
        inside.set()
        assert go.wait(60)
        return Answer(429)

    stage.handler = handler
    first = stage.later("k")
    assert inside.wait(60)
    second = stage.later("k")
    go.set()
    assert (first.result().status, second.result().status) == (429, 201)


@pytest.mark.item("C2", "R1")
def test_repeats_of_a_done_request_that_come_together_are_all_replayed(edge: str, valkey_url: str):
    """While one of them asks the store, the others wait for its answer: no handler runs."""
    store = open_store(valkey_url) if edge == "wsgi" else open_async_store(valkey_url)
    stage = Stage(edge, store=store)
    first = stage.send("k")
    assert first.status == 201
    replies = [each.result() for each in [stage.later("k") for _ in range(50)]]
    assert {(reply.status, reply.replayed, reply.body) for reply in replies} == {
        (201, True, first.body)
    }
    assert len(stage.seen) == 1
    stage.close()
