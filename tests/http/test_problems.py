"""P: the layer's own answers."""

from __future__ import annotations

import json
import re
import threading

import pytest

from tests.http.stage import UNKNOWN, Answer, Play, Reply, Seen, Stage
from tests.receiver.faults import AsyncFaultyStore, FaultyStore, Outage
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore

CASES = {
    "key-missing": 400,
    "key-invalid": 400,
    "key-reused": 422,
    "in-progress": 409,
    "outcome-unknown": 500,
    "result-not-kept": 410,
    "request-too-large": 413,
    "store-unavailable": 503,
}


def provoke(play: Play, edge: str, case: str, **settings: object) -> Reply:
    """Make the layer give this answer, to a request with a key that can be recognised."""
    key = '"canary<script>&key"'
    memory = MemoryStore()
    store = FaultyStore(memory) if edge == "wsgi" else AsyncFaultyStore(AsyncMemoryStore(memory))
    stage = play(
        required=True,
        max_body=100,
        max_result_bytes=10,
        lease=0.2,
        store=store,
        memory=memory,
        **settings,
    )
    match case:
        case "key-missing":
            return stage.send(None)
        case "key-invalid":
            return stage.send(key[:-1])
        case "key-reused":
            stage.send(key)
            return stage.send(key, b"other")
        case "in-progress":
            inside, go = threading.Event(), threading.Event()

            def slow(_: Seen) -> Answer:
                inside.set()
                assert go.wait(60)
                return Answer()

            stage.handler = slow
            first = stage.later(key)
            assert inside.wait(60)
            reply = stage.send(key)
            go.set()
            first.result()
            return reply
        case "outcome-unknown":
            stage.handler = lambda _: 1 / 0  # type: ignore[return-value]
            return stage.send(key)
        case "result-not-kept":
            stage.handler = lambda _: Answer(body=[b"canary-body" * 10])
            stage.send(key)
            return stage.send(key)
        case "request-too-large":
            return stage.send(key, b"x" * 101)
    store.before = Outage("claim")
    return stage.send(key)


@pytest.mark.item("P1", "P2", "P3", "P4", "P5", "P6")
@pytest.mark.parametrize("case", CASES)
def test_every_refusal_is_a_problem_document(play: Play, edge: str, case: str):
    reply = provoke(play, edge, case)
    status = UNKNOWN[edge] if case == "outcome-unknown" else CASES[case]
    assert (reply.status, reply.problem) == (status, case)
    assert reply["content-language"] == "en"
    assert reply["cache-control"] == "no-store"
    assert reply["content-length"] == str(len(reply.body))
    assert re.fullmatch(r'<https://[^>]+>; rel="describedby"', reply["link"] or "")
    document = json.loads(reply.body)
    assert set(document) == {"type", "title", "status", "detail", "retryable"}
    assert document["title"]
    assert document["detail"]
    later = case in ("in-progress", "store-unavailable")
    assert document["retryable"] is later
    assert (reply["retry-after"] is not None) is later
    assert b"canary" not in reply.body
    assert reply["idempotent-replayed"] is None


@pytest.mark.item("P3")
def test_types_and_links_lead_to_your_own_pages(play: Play, edge: str):
    pages = {"problem_base": "https://shop.example/problems/", "documentation": ""}
    reply = provoke(play, edge, "key-reused", **pages)
    assert json.loads(reply.body)["type"] == "https://shop.example/problems/key-reused"
    assert reply["link"] is None


@pytest.mark.item("P2")
def test_the_applications_own_409_and_422_are_distinguished(stage: Stage):
    stage.handler = lambda _: Answer(
        422,
        [(b"content-type", b"application/problem+json")],
        [b'{"status":422,"type":"about:blank"}'],
    )
    for _ in range(2):
        reply = stage.send("k")
        assert (reply.status, reply.problem) == (422, "blank")
