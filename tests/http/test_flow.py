"""The flow of a keyed request, without a server: each command and each ending."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import twicesafe
from tests.http.stage import Answer, Stage
from twicesafe import AsyncReceiver, Receiver, State, events
from twicesafe._core.http.flow import (
    CompleteClaim,
    EnterClaim,
    Exchange,
    ExchangeEnded,
    HoldClaim,
    LeaveClaim,
    Log,
    PassThrough,
    ReadBody,
    ReleaseClaim,
    Respond,
    ResponseCut,
    RunHandler,
    admit,
)
from twicesafe._core.http.message import HttpRequest, StoredResponse
from twicesafe._core.http.problems import Problem, RequestRefused
from twicesafe._core.http.rules import HttpRules
from twicesafe._core.http.stored_response import NOT_KEPT
from twicesafe.errors import (
    CorruptRecordError,
    LeaseLostError,
    StillInProgressError,
    StoreUnavailableError,
    TooLargeError,
)
from twicesafe.http import HttpPolicy
from twicesafe.receiver._edge_claim import AsyncEdgeClaim, EdgeClaim
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore

STORED = StoredResponse(201, (), b"stored")


class Claim:
    def __init__(self, **facts: Any) -> None:
        self.is_new, self.is_held_by_caller, self.result = True, False, STORED
        self.told: list[Any] = []
        self.notify = self.told.append
        self.__dict__.update(facts)


def play(flow: Any, replies: dict[type, Any]) -> tuple[list[str], Any]:
    """The names of the commands, and what the flow returns. An exception as a reply is thrown."""
    names: list[str] = []
    try:
        command = next(flow)
        while True:
            names.append(type(command).__name__)
            reply = replies.get(type(command))
            command = flow.throw(reply) if isinstance(reply, Exception) else flow.send(reply)
    except StopIteration as end:
        return names, end.value


def asked(key: bytes | None = b"k", body: bytes = b"") -> HttpRequest:
    fields = [] if key is None else [(b"idempotency-key", key)]
    return HttpRequest("POST", "/", b"/", b"", fields, body)


WHOLE = asked(body=b"{}")
AWAY = StoreUnavailableError("away")


@pytest.mark.item("K14", "E6", "E9", "C2", "R1")
@pytest.mark.parametrize(
    "settings, request_, replies, facts, names, status",
    [
        ({}, asked(None), {}, {}, [], "untouched"),
        ({"required": True}, asked(None), {}, {}, [], 400),
        ({}, asked(b'"'), {}, {}, [], 400),
        ({}, asked(), {ReadBody: None}, {}, ["ReadBody"], None),
        ({}, asked(), {ReadBody: RequestRefused(Problem("request-too-large"))}, {}, ["ReadBody"], 413),
        ({}, asked(), {}, {"is_held_by_caller": True}, ["ReadBody"], "passed"),
        ({}, asked(), {}, {}, ["ReadBody", "EnterClaim"], "run"),
        ({}, asked(), {}, {"is_new": False}, ["ReadBody", "EnterClaim"], 201),
        ({}, asked(), {EnterClaim: StillInProgressError("busy")}, {}, ["ReadBody", "EnterClaim"], 409),
        ({}, asked(), {EnterClaim: AWAY}, {}, ["ReadBody", "EnterClaim"], 503),
        ({"outage": "run"}, asked(), {EnterClaim: AWAY}, {}, ["ReadBody", "EnterClaim"], "passed"),
        ({}, asked(), {EnterClaim: CorruptRecordError("changed")}, {}, ["ReadBody", "EnterClaim", "Log"], 500),
    ],
)  # fmt: skip
def test_the_way_in(
    settings: Any, request_: Any, replies: Any, facts: Any, names: list[str], status: Any
):
    claim = Claim(**facts)
    flow = admit(HttpRules(HttpPolicy(**settings)), lambda _: claim, request_, bytes)
    told, step = play(flow, {ReadBody: WHOLE.body, **replies})
    assert told == names
    if status == "untouched":
        assert step == PassThrough(None)
    elif status == "passed":
        assert step == PassThrough(WHOLE)
    elif status == "run":
        assert isinstance(step, RunHandler)
        assert step.exchange.request == WHOLE
    elif status is None:
        assert step is None
    else:
        assert isinstance(step, Respond)
        assert step.response.status == status
    ran_open = replies.get(EnterClaim) is AWAY and status == "passed"
    assert [type(event) for event in claim.told] == [events.Unprotected] * ran_open


def exchange(
    *pieces: bytes, status: int = 200, length: int | None = None, **settings: Any
) -> Exchange:
    may_retry = settings.pop("may_retry", False)
    made = Exchange(HttpRules(HttpPolicy(**settings)), may_retry, WHOLE, "claim")
    fields = [] if length is None else [(b"content-length", str(length).encode())]
    if status:
        made.recording.start(status, fields)
    for piece in pieces:
        made.recording.feed(piece)
    return made


BUG = ValueError("a bug")
REFUSED = RequestRefused(Problem("upstream-unavailable"))


def kept(body: bytes) -> CompleteClaim:
    return CompleteClaim("claim", StoredResponse(200, (), body))


ENDINGS: list[tuple[str, Any, Any, Any]] = [
    ("complete", exchange(b"1", b"2"), Exchange.settle, kept(b"12")),
    ("not executed", exchange(b"no", status=429), Exchange.settle, ReleaseClaim("claim")),
    ("too short", exchange(b"1", length=2), Exchange.settle, HoldClaim("claim", "ResponseCut")),
    ("never begun", exchange(status=0), Exchange.settle, HoldClaim("claim", "ResponseCut")),
    ("too large", exchange(b"123", max_result_bytes=2), Exchange.settle, CompleteClaim("claim", NOT_KEPT)),
    ("raised", exchange(), lambda e: e.fail(BUG), HoldClaim("claim", "ValueError")),
    ("raised, may rerun", exchange(may_retry=True), lambda e: e.fail(BUG), LeaveClaim("claim", BUG)),
    ("client left", exchange(b"1"), Exchange.client_left, HoldClaim("claim", "ClientLeft")),
    ("client left, large", exchange(b"123", max_result_bytes=2), Exchange.client_left, CompleteClaim("claim", NOT_KEPT)),
    ("lingered", exchange(b"1"), lambda e: e.client_left(lingered=True), CompleteClaim("claim", NOT_KEPT)),
    ("refused", exchange(status=0), lambda e: e.ended(REFUSED), ReleaseClaim("claim")),
    ("refused late", exchange(), lambda e: e.ended(REFUSED), HoldClaim("claim", "RequestRefused")),
    ("ended by an error", exchange(), lambda e: e.ended(BUG), HoldClaim("claim", "ValueError")),
    ("ended too soon", exchange(), lambda e: e.ended(None), HoldClaim("claim", "ResponseCut")),
]  # fmt: skip


@pytest.mark.item("E1", "E2", "E4", "E5", "E7", "R10")
@pytest.mark.parametrize("name, made, end, told", ENDINGS, ids=[each[0] for each in ENDINGS])
def test_every_ending_tells_the_store_and_the_client(name: str, made: Any, end: Any, told: Any):
    flow = end(made)
    is_application = name.startswith(("refused", "ended"))
    assert made.settled is not is_application  # else decided at once, before anything is awaited
    command = next(flow)
    assert made.settled
    assert command == told
    with pytest.raises(StopIteration) as stop:
        flow.send(None)
    if is_application:
        ended: ExchangeEnded = stop.value.value
        status = {"refused": 503}.get(name, 500)
        assert (ended.response and ended.response.status) == status
        seen = {"refused": None, "refused late": REFUSED, "ended by an error": BUG}
        assert ended.error is seen.get(name)


@pytest.mark.item("E4")
def test_where_a_retry_may_run_the_server_sees_the_cut():
    names, ended = play(exchange(b"1", may_retry=True).ended(None, started=True), {})
    assert names == ["LeaveClaim"]
    assert (ended.response, type(ended.error)) == (None, ResponseCut)


def test_what_is_settled_is_not_told_again():
    made = exchange(b"1")
    play(made.settle(), {})
    assert play_nothing(made.ended(BUG)) == ExchangeEnded(None, BUG)


def play_nothing(flow: Any) -> Any:
    with pytest.raises(StopIteration) as stop:
        next(flow)
    return stop.value.value


@pytest.mark.item("R10", "E9")
def test_a_record_that_cannot_be_written_is_no_matter_of_the_client():
    too_large = {CompleteClaim: TooLargeError("over max_result_bytes")}
    assert play(exchange(b"1").settle(), too_large) == (["CompleteClaim"], None)
    for error in (AWAY, LeaseLostError("taken over")):
        assert play(exchange(b"1").settle(), {CompleteClaim: error}) == (
            ["CompleteClaim", "Log"],
            None,
        )


@pytest.mark.item("S6")
def test_a_redaction_that_fails_is_logged_and_nothing_is_kept():
    flow = exchange(b"1", redact=lambda _: 1 / 0).settle()
    assert next(flow) == CompleteClaim("claim", NOT_KEPT)
    log = flow.throw(TooLargeError("over max_result_bytes"))
    assert isinstance(log, Log)
    assert isinstance(log.error, ZeroDivisionError)


@pytest.mark.item("R1")
async def test_the_claim_of_a_duplicate_ends_when_it_is_entered():
    """A claim that is left open refuses every other duplicate in its process."""
    memory = MemoryStore()
    receiver, async_receiver = Receiver(memory), AsyncReceiver(AsyncMemoryStore(memory))
    receiver._runtime.recall = async_receiver._runtime.recall = None  # as on a server
    kept: list[Any] = []  # a claim that is dropped ends by itself
    for count in range(3):
        claim = EdgeClaim(receiver, receiver.key("k"), None, None, Any)
        kept.append(claim)
        claim.enter()
        assert claim.is_new is (count == 0)
        if claim.is_new:
            claim.complete(1)
            claim.leave()
        for _ in range(2):
            duplicate = AsyncEdgeClaim(async_receiver, async_receiver.key("k"), None, None, Any)
            kept.append(duplicate)
            await duplicate.enter()
            assert (duplicate.is_new, duplicate.result) == (False, 1)


@pytest.mark.item("E4")
async def test_a_claim_is_left_once():
    receiver = AsyncReceiver(AsyncMemoryStore())
    claim = AsyncEdgeClaim(receiver, receiver.key("k"), None, None, Any)
    await claim.enter()
    await claim.leave(BUG)
    await claim.leave()
    record = await receiver.record("k")
    assert record is not None
    assert (record.state, record.error) == (State.RELEASED, "ValueError")


@pytest.mark.item("E7", "E10")
@pytest.mark.parametrize("edge", ["asgi", "wsgi"])  # behind the proxy the proxy itself refuses
def test_a_refusal_of_the_application_means_the_same_at_every_edge(stage: Stage):
    """It says that nothing was done, so a retry runs; after the head of a response it says nothing."""
    answer = stage.handler

    def refuse(_: Any) -> Answer:
        raise REFUSED

    stage.handler = refuse
    assert stage.send("early").problem == "upstream-unavailable"
    stage.handler = answer
    assert (stage.send("early").status, len(stage.seen)) == (201, 2)
    stage.handler = lambda _: Answer(200, [], [b"1", lambda: None, REFUSED])
    stage.send("late")
    stage.handler = answer
    assert (stage.send("late").problem, len(stage.seen)) == ("outcome-unknown", 3)


@pytest.mark.item("E4", "E7")
@pytest.mark.parametrize("headers", [[], [(b"content-length", b"9")]], ids=["plain", "short"])
def test_every_edge_has_the_same_words_for_an_ending(stage: Stage, headers: Any):
    """A short response behind the proxy is the upstream's: it is lost, and not cut by us."""
    error: list[Any] = [] if headers else [RuntimeError("cut")]
    stage.handler = lambda _: Answer(200, headers, [b"abc", lambda: None, *error])
    stage.send("k")
    (record,) = stage.records.records()
    names = {"proxy": "UpstreamLost"}
    assert record.error == names.get(stage.edge, "ResponseCut" if headers else "RuntimeError")


def test_no_edge_touches_a_private_name_of_a_claim():
    """What an edge needs of a claim has a public name in `receiver/_edge_claim.py`."""
    package = Path(twicesafe.__file__).parent
    sources = [package / "receiver" / name for name in ("_claim.py", "_edge_claim.py")]
    text = "".join(path.read_text("utf-8") for path in sources)
    private = set(re.findall(r"(?:self\.|def )(_\w+)", text)) - {"__init__"}
    assert {"_step_out", "_held", "__aenter__"} <= private
    rooms = ("asgi", "wsgi", "_edges", "_proxy", "integrations/django")
    files = [path for room in rooms for path in (package / room).glob("*.py")]
    assert len(files) > 20
    for path in files:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            is_own = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
            if isinstance(node, ast.Attribute) and not is_own:
                assert node.attr not in private, f"{path.name}:{node.lineno} uses {node.attr}"
