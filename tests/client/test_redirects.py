"""Redirects over real sockets: one rule for every library, and one effect for every repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
import requests

from tests.client.flaky import Flaky, response
from tests.client.libraries import QUICK, Library
from tests.http.stage import Answer, Seen, Stage
from twicesafe import Receiver
from twicesafe.client import sent_of
from twicesafe.client.aiohttp import RetryMiddleware
from twicesafe.client.requests import RetryAdapter
from twicesafe.http import HttpPolicy

Make = Callable[..., Flaky]
KEY = "8e03978e-40d5-43e8-bc93-6894a57f9324"
GIVEN = {"Idempotency-Key": KEY}


def moved(to: str, status: int = 307) -> bytes:
    return response(status, b"", f"Location: {to}")


def test_another_host_gets_a_key_of_its_own_which_is_the_same_for_each_repeat(
    library: Library, flaky: Make
):
    there = flaky(response(201))
    here = flaky(moved(there.url))
    for _ in range(2):
        got = library.send(here.url, headers=GIVEN)
        assert got.status == 201
        assert got.sent is not None
        assert got.sent.key == KEY  # under which the whole call can be repeated
    assert here.keys == [KEY, KEY]
    assert len(set(there.keys)) == 1
    assert there.keys[0].startswith("step:")
    assert not any(KEY.encode() in request for request in there.seen)


def test_without_a_key_of_the_callers_too(library: Library, flaky: Make):
    there = flaky(response(201))
    here = flaky(moved(there.url))
    first, second = library.send(here.url), library.send(here.url)
    assert first.sent is not None
    assert second.sent is not None
    assert here.keys == [first.sent.key, second.sent.key]
    again = library.send(here.url, headers={"Idempotency-Key": first.sent.key})
    assert again.status == 201
    assert there.keys == [there.keys[0], there.keys[1], there.keys[0]]
    assert len({*here.keys, *there.keys}) == 4


@pytest.mark.parametrize("status", [301, 302, 303])
def test_what_becomes_a_get_has_no_key(library: Library, flaky: Make, status: int):
    there = flaky(response(200, b"receipt"))
    here = flaky(moved(there.url, status))
    assert library.send(here.url, headers=GIVEN).body == b"receipt"
    assert library.send(here.url).body == b"receipt"
    assert [request[:4] for request in there.seen] == [b"GET "] * 2
    assert there.keys == ["", ""]
    assert not any(KEY.encode() in request for request in there.seen)


def test_each_address_has_its_own_key_and_its_retries_share_it(library: Library, flaky: Make):
    third = flaky(response(503), "lose", response(201))
    second = flaky(moved(third.url, 308))
    first = flaky(moved(second.url))
    got = library.send(first.url, headers=GIVEN)
    assert got.status == 201
    assert len(third.keys) == 3
    assert len(set(third.keys)) == 1
    assert len({*first.keys, *second.keys, *third.keys}) == 3
    straight = flaky(moved(third.url))  # by another way to the same address
    third.script = [response(201)]
    library.send(straight.url, headers=GIVEN)
    assert third.keys[3] == third.keys[0]


@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_inside_one_server_has_one_effect_for_every_repeat(
    library: Library, stage: Stage, status: int
):
    """A slash at the end: under the same key the second path would be refused with 422."""
    effects: list[Seen] = []

    def handler(seen: Seen) -> Answer:
        if not seen.path.endswith("/"):
            return Answer(status, [(b"location", b"/charges/"), (b"content-length", b"0")], [b""])
        effects.append(seen)
        return Answer(201, [(b"content-length", b"4")], [b"done"])

    stage.handler = handler
    url = f"http://127.0.0.1:{stage.server.port}/charges"
    replies = [library.send(url, headers=GIVEN) for _ in range(2)]
    assert [(got.status, got.body) for got in replies] == [(201, b"done")] * 2
    assert [got.sent.replayed for got in replies if got.sent] == [False, True]
    assert len(effects) == 1


def test_inside_a_handler_a_redirect_is_no_further_call(library: Library, flaky: Make):
    there = flaky(response(201))
    here = flaky(moved(there.url), response(201))
    straight = flaky(response(201))
    receiver = Receiver.open("memory://")

    def handler() -> None:
        library.send(here.url)
        library.send(straight.url)
        raise ConnectionError("try again")

    for _ in range(2):
        here.script = [moved(there.url)]
        with pytest.raises(ConnectionError):
            receiver.process("k", handler)
    receiver.close()
    for server in (here, there, straight):
        assert len(server.keys) == 2
        assert len(set(server.keys)) == 1
    assert here.keys[0] != straight.keys[0]  # "POST /charges #1" and "#2"


def test_the_key_fits_the_policy(library: Library, flaky: Make):
    there = flaky(response(201))
    here = flaky(moved(there.url))
    short = QUICK.replace(http=HttpPolicy(max_key=36, strict=True))
    for _ in range(2):
        library.send(here.url, headers={"Idempotency-Key": f'"{KEY}"'}, policy=short)
    assert len(set(there.keys)) == 1
    assert len(there.keys[0]) == 38
    assert there.keys[0].strip('"') != KEY


def test_a_redirect_to_where_our_part_is_not_mounted_has_no_key(flaky: Make, both: Any):
    its, ours = both
    there = flaky(response(201))
    here = flaky(moved(there.url))
    with requests.Session() as session:
        session.mount(f"http://127.0.0.1:{here.port}", RetryAdapter(policy=QUICK))
        assert session.post(here.url, headers=GIVEN).status_code == 201
    mounts = {f"all://127.0.0.1:{here.port}": ours.RetryTransport(policy=QUICK)}
    with its.Client(mounts=mounts, follow_redirects=True) as client:
        assert client.post(here.url, headers=GIVEN).status_code == 201
    assert here.keys == [KEY, KEY]
    assert there.keys == ["", ""]


def test_httpx_a_redirect_that_is_followed_by_hand(flaky: Make, both: Any):
    its, ours = both
    there = flaky(response(201))
    here = flaky(moved(there.url))
    with its.Client(
        transport=ours.RetryTransport(policy=QUICK.replace(deadline=3)), timeout=7
    ) as client:
        first = client.post(here.url)
        assert first.next_request is not None
        made = client.send(first.next_request)
        assert client.send(first.request).status_code == 307  # the same call, once more
    assert made.status_code == 201
    assert made.request.extensions["timeout"]["read"] == 7  # the deadline's limit is taken back
    sent = sent_of(first)
    assert sent is not None
    assert here.keys == [sent.key, sent.key]
    assert there.keys[0] not in ("", sent.key)


async def test_aiohttp_other_calls_of_a_task_are_calls_of_their_own(flaky: Make):
    there = flaky(response(201))
    here = flaky(moved(there.url))
    async with aiohttp.ClientSession(middlewares=[RetryMiddleware(policy=QUICK)]) as session:
        async with session.post(here.url, allow_redirects=False, headers=GIVEN) as made:
            assert made.status == 307
        for headers in (None, GIVEN):
            async with session.post(there.url, headers=headers) as made:
                assert made.status == 201
    assert there.keys[0] not in ("", KEY)
    assert not there.keys[0].startswith("step:")
    assert there.keys[1] == KEY


def test_requests_shows_the_key_of_a_call_that_was_redirected(flaky: Make):
    there = flaky(response(201))
    here = flaky(moved(there.url))
    with requests.Session() as session:
        session.mount("http://", RetryAdapter(policy=QUICK))
        made = session.post(here.url)
    sents = [sent_of(answer) for answer in (*made.history, made)]
    assert [sent.key for sent in sents if sent is not None] == here.keys * 2
    assert made.request.headers["Idempotency-Key"] == there.keys[0]
