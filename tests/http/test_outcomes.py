"""E: how a key ends, whatever happens to handler, client and store."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.http.stage import JSON, UNKNOWN, Answer, Play, Seen, Stage, read
from tests.receiver.faults import AsyncFaultyStore, FaultyStore, Outage
from twicesafe import Key, State, events
from twicesafe.http import NOT_EXECUTED, HttpPolicy, StoredResponse
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore


class Heard:
    """Waits until observers got an event of this kind."""

    def __init__(self, kind: type[events.Event] = events.Completed) -> None:
        self._kind, self._bell = kind, threading.Event()

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, self._kind):
            self._bell.set()

    def wait(self) -> None:
        assert self._bell.wait(60)


def states(stage: Stage) -> list[State]:
    return [record.state for record in stage.records.records()]


@pytest.mark.item("E1", "E2", "E3", "D16")
@pytest.mark.parametrize(
    "status", [*range(200, 209), 301, 302, 307, *range(400, 430), 451, *range(500, 512)]
)
def test_every_status_is_either_kept_or_released(stage: Stage, status: int):
    stage.handler = lambda _: Answer(status, [JSON], [b"%d" % len(stage.seen)])
    replies = [stage.send("k") for _ in range(3)]
    assert {reply.status for reply in replies} == {status}
    if status in NOT_EXECUTED:
        assert len(stage.seen) == 3
        assert not any(reply.replayed for reply in replies)
    else:
        assert len(stage.seen) == 1
        assert {reply.body for reply in replies} in ({b"1"}, {b""})


@pytest.mark.item("E2")
def test_after_a_release_the_next_answer_is_the_stable_one(stage: Stage):
    script = iter([429, 503, 401, 201, 500])
    stage.handler = lambda _: Answer(next(script))
    assert [stage.send("k").status for _ in range(6)] == [429, 503, 401, 201, 201, 201]
    assert len(stage.seen) == 4


@pytest.mark.item("E2", "E3")
def test_which_statuses_are_released_is_a_setting(play: Play):
    stage = play(release={404, 500})
    for key, status, runs in (("a", 404, 2), ("b", 500, 2), ("c", 429, 1), ("d", 503, 1)):
        before = len(stage.seen)
        stage.handler = lambda _, status=status: Answer(status)
        for _ in range(2):
            stage.send(key)
        assert len(stage.seen) - before == runs


@pytest.mark.item("E3")
def test_the_stripe_profile_keeps_every_5xx(play: Play):
    stage = play(HttpPolicy.stripe())
    stage.handler = lambda _: Answer(503)
    assert [stage.send("k").replayed for _ in range(2)] == [False, True]
    assert stage.send("k", b"other").status == 400


@pytest.mark.item("E4")
def test_an_exception_leaves_the_outcome_unknown(stage: Stage):
    def fails(_: Seen) -> Answer:
        raise RuntimeError("a secret")

    stage.handler = fails
    replies = [stage.send("k") for _ in range(3)]
    status = UNKNOWN[stage.edge]
    assert [(r.status, r.problem) for r in replies] == [(status, "outcome-unknown")] * 3
    assert len({r.body for r in replies}) == 1
    assert b"secret" not in replies[0].body
    assert len(stage.seen) == 1
    assert stage.send("k", b"other").problem == "key-reused"
    (record,) = stage.records.records()
    why = "UpstreamLost" if stage.edge == "proxy" else "RuntimeError"
    assert (record.state, record.error) == (State.HELD, why)


@pytest.mark.item("E4")
@pytest.mark.parametrize("settings", [{"takeover": "retry"}, {"retry": ("POST /charges",)}])
def test_a_handler_that_may_run_again_does(play: Play, settings: dict[str, Any]):
    stage = play(**settings)
    script = iter([RuntimeError("first"), RuntimeError("second")])

    def fails_twice(_: Seen) -> Answer:
        for trouble in script:
            raise trouble
        return Answer()

    stage.handler = fails_twice
    replies = [stage.send("k") for _ in range(4)]
    status, problem = (502, "attempt-failed") if stage.edge == "proxy" else (500, "")
    assert [r.status for r in replies] == [status, status, 201, 201]
    assert [r.problem for r in replies] == [problem, problem, "", ""]
    assert len(stage.seen) == 3
    stage.handler = lambda _: Answer(
        201, [(b"content-length", b"9")], [b"abc", b"def", RuntimeError()]
    )
    stage.send("cut")
    assert list(stage.records.records(state=State.RELEASED))
    if "retry" in settings:
        stage.handler = fails_twice = lambda _: 1 / 0
        stage.send("k", target="/other")
        assert stage.send("x", target="/other").problem == "outcome-unknown"


@pytest.mark.item("E4", "O3")
def test_an_operator_resolves_an_unknown_outcome(stage: Stage):
    stage.handler = lambda _: 1 / 0  # type: ignore[return-value]
    stage.send("a")
    stage.send("b")
    stage.send("c")
    by_key = {record.value: record for record in stage.records.records(state=State.HELD)}
    keys = {name: Key(name, record.scope) for name, record in by_key.items()}
    done = StoredResponse(201, ((b"location", b"/charges/7"),), b"paid")
    stage.records.resolve(keys["a"], done, by="ana")
    stage.records.release(keys["b"], by="ana", why="the bank saw nothing")
    stage.records.options(policy=stage.records.policy.replace(codec=None)).resolve(
        keys["c"], {"paid": True}, by="ana"
    )
    reply = stage.send("a")
    assert (reply.status, reply.body, reply["location"]) == (201, b"paid", "/charges/7")
    assert stage.send("c").body == b'{"paid":true}'
    assert len(stage.seen) == 3
    stage.handler = lambda _: Answer(202)
    assert stage.send("b").status == 202


@pytest.mark.item("E5", "D16")
@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_goes_away_loses_nothing(play: Play, streams: bool):
    heard = Heard()
    stage = play(observers=[heard])
    inside, go = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        assert go.wait(60)

    def slow(_: Seen) -> Answer:
        if not streams:
            wait()
            return Answer(body=[b"done"])
        return Answer(body=[b"x" * 9, wait, *[b"y" * 100_000] * 5, b"z"])

    stage.handler = slow
    connection = stage.connect()
    connection.sendall(stage.request("k"))
    if streams:
        assert connection.recv(10)
    assert inside.wait(60)
    connection.close()
    go.set()
    heard.wait()
    reply = stage.send("k")
    assert reply.replayed
    assert reply.body == (b"x" * 9 + b"y" * 500_000 + b"z" if streams else b"done")
    assert len(stage.seen) == 1


@pytest.mark.item("E6", "K14", "D16")
def test_an_incomplete_upload_is_not_run_and_leaves_the_key_unused(stage: Stage):
    request = stage.request("k", b'{"amount":5}')
    with stage.connect() as connection:
        connection.sendall(request[:-1])
        connection.shutdown(1)
        while connection.recv(1000):
            pass
    assert stage.seen == []
    assert stage.records.stats().total == 0
    assert stage.send("k").status == 201


@pytest.mark.item("E6")
def test_a_chunked_upload_without_its_end_is_not_run():
    stage = Stage("asgi")
    chunked = ("Transfer-Encoding", "chunked")
    with stage.connect() as connection:
        connection.sendall(stage.request("k", b"3\r\nabc\r\n", "POST", "/", chunked))
        connection.shutdown(1)
        while connection.recv(1000):
            pass
    assert stage.seen == []
    assert stage.records.stats().total == 0
    stage.close()


@pytest.mark.item("E7", "D16")
@pytest.mark.parametrize(
    "headers, body",
    [
        ([(b"content-length", b"9")], [b"abc", lambda: None, RuntimeError("cut")]),
        ([(b"content-length", b"9")], [b"abc", lambda: None, b"def"]),
    ],
)
def test_a_cut_response_is_cut_not_stored_and_not_run_again(stage: Stage, headers: Any, body: Any):
    stage.handler = lambda _: Answer(200, headers, body)
    first = stage.send("k")
    assert first.cut
    assert stage.send("k").problem == "outcome-unknown"
    assert len(stage.seen) == 1
    assert states(stage) == [State.HELD]


@pytest.mark.item("E7")
def test_a_chunked_response_that_is_cut_has_no_end():
    stage = Stage("asgi")
    stage.handler = lambda _: Answer(200, [JSON], [b"abc", RuntimeError("cut")])
    assert stage.send("k").cut
    assert stage.send("k").problem == "outcome-unknown"
    assert len(stage.seen) == 1
    stage.close()


def faulty(edge: str) -> tuple[Any, Any]:
    memory = MemoryStore()
    store = FaultyStore(memory) if edge == "wsgi" else AsyncFaultyStore(AsyncMemoryStore(memory))
    return memory, store


@pytest.mark.item("E9")
def test_a_store_that_is_away_runs_nothing(play: Play, edge: str):
    memory, store = faulty(edge)
    stage = play(memory=memory, store=store, lease=0.2)
    store.before = outage = Outage("claim")
    reply = stage.send("k")
    assert (reply.status, reply.problem) == (503, "store-unavailable")
    assert int(reply["retry-after"] or 0) >= 1
    assert stage.seen == []
    assert stage.send(None).status == 201
    outage.over()
    assert stage.send("k").status == 201
    assert stage.send("k").replayed


@pytest.mark.item("E9")
def test_running_unprotected_is_a_setting_and_is_reported(play: Play, edge: str):
    memory, store = faulty(edge)
    heard = Heard(events.Unprotected)
    stage = play(memory=memory, store=store, lease=0.2, outage="run", observers=[heard])
    store.before = Outage("claim")
    for _ in range(2):
        reply = stage.send("k", b'{"amount":5}')
        assert (reply.status, reply.replayed) == (201, False)
    assert [seen.body for seen in stage.seen] == [b'{"amount":5}'] * 2
    heard.wait()


def wait_for_the_end_of_a_lease(stage: Stage) -> None:
    while stage.send("k").problem == "in-progress":
        pass


@pytest.mark.item("E9", "A8")
def test_a_store_lost_at_the_end_takes_no_answer_away(play: Play, edge: str):
    memory, store = faulty(edge)
    stage = play(memory=memory, store=store, lease=0.2)
    store.before = outage = Outage("complete")
    assert stage.send("k").status == 201  # it happened, and this client may know
    outage.over()
    wait_for_the_end_of_a_lease(stage)
    assert stage.send("k").problem == "outcome-unknown"
    assert len(stage.seen) == 1


@pytest.mark.item("S6", "D6")
@pytest.mark.parametrize(
    "row",
    [b"", b"junk", b"H\x01\xc1", b"H\x02", b"H\x01\x93\xcc\xc8\x92\xc4\x01x\xc4\x03a\r\n\xc4\x00"],
)
def test_a_tampered_row_answers_nothing_and_runs_nothing(stage: Stage, row: bytes):
    stage.send("k")
    for found in stage.memory._rows.values():
        found.result = row
    reply = stage.send("k")
    assert (reply.status, reply.problem) == (500, "result-not-kept")
    assert len(stage.seen) == 1


def test_read_is_what_a_client_reads(stage: Stage):
    with stage.connect() as connection:
        connection.sendall(stage.request("k"))
        assert read(connection).status == 201


@pytest.mark.item("E9", "O3")
@pytest.mark.parametrize(
    "operation, status", [("claim", 201), ("complete", 201), ("fail", None), ("abandon", 429)]
)
def test_an_outage_is_reported_once_whatever_it_breaks(
    edge: str, play: Play, operation: str, status: int | None, caplog: Any
):
    told: list[events.Event] = []
    store: Any = (
        FaultyStore(MemoryStore()) if edge == "wsgi" else AsyncFaultyStore(AsyncMemoryStore())
    )
    store.before = Outage(operation)
    stage = play(store=store, observers=[told.append], lease=0.5)
    stage.handler = lambda _: 1 / 0 if status is None else Answer(status)  # type: ignore[return-value]
    reply = stage.send("k")
    assert (reply.problem == "store-unavailable") == (operation == "claim")
    failed = [event for event in told if isinstance(event, events.StoreFailed)]
    assert [event.operation for event in failed] == [operation]
    assert failed[0].key is not None
    assert failed[0].key.value == "k"
    said = [each for each in caplog.messages if "StoreFailed" in each]
    assert len(said) == 1
    assert operation in said[0]
