"""A: which requests are protected, and that both ways are left as they were."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.http.stage import Answer, Play, Stage
from twicesafe import AsyncReceiver, asgi


@pytest.mark.item("A1")
@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_post_and_patch_are_protected(stage: Stage, method: str):
    first = stage.send("k", b"{}", method)
    again = stage.send("k", b"{}", method)
    assert (first.replayed, again.replayed) == (False, True)
    assert len(stage.seen) == 1


@pytest.mark.item("A1", "A8")
@pytest.mark.parametrize("method", ["post", "Post", "patch"])
def test_a_method_in_another_case_is_protected_too(stage: Stage, method: str):
    """HTTP has no method `post`; most frameworks run it as POST all the same."""
    assert not stage.send("k", b"{}", method).replayed
    assert [seen.method for seen in stage.seen] == [method]  # as it was sent
    assert stage.send("k", b"{}", method).replayed
    assert stage.send("k", b"{}", method.upper()).replayed
    assert len(stage.seen) == 1


@pytest.mark.item("A2", "D14")
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("key", ["k", '"malformed', ""])
def test_safe_methods_pass_with_any_key(stage: Stage, method: str, key: str):
    stage.send("k", b"")
    for _ in range(2):
        reply = stage.send(key, b"", method)
        assert reply.status == 201
        assert not reply.replayed
    assert len(stage.seen) == 3


@pytest.mark.item("A3")
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_put_and_delete_pass_unless_asked_for(play: Play, method: str):
    stage = play()
    for _ in range(2):
        assert not stage.send("k", b"", method).replayed
    assert len(stage.seen) == 2
    stage = play(methods={"POST", method})
    stage.handler = lambda _: Answer(204 if len(stage.seen) == 1 else 404, [], [b""])
    assert [stage.send("k", b"", method).status for _ in range(2)] == [204, 204]
    assert len(stage.seen) == 1


@pytest.mark.item("A4")
def test_without_a_key_equal_requests_run_each_time(stage: Stage):
    for _ in range(3):
        assert stage.send(None, b"{}").status == 201
    assert len(stage.seen) == 3
    assert stage.records.stats().total == 0


@pytest.mark.item("A5", "D14")
def test_a_required_key_that_is_missing_is_refused(play: Play):
    stage = play(required=True)
    reply = stage.send(None)
    assert (reply.status, reply.problem) == (400, "key-missing")
    assert stage.seen == []
    assert stage.send("k").status == 201
    assert stage.send(None, b"", "GET").status == 201


@pytest.mark.item("A5")
@pytest.mark.parametrize("route", ["/charges", "POST /charges", "POST", "/*", "/**"])
def test_a_key_may_be_required_by_route_and_method(play: Play, route: str):
    stage = play(required=(route,))
    assert stage.send(None).problem == "key-missing"
    assert stage.send(None, b"", "PATCH", "/a/b").problem == (
        "key-missing" if route == "/**" else ""
    )


@pytest.mark.item("A6")
def test_a_preflight_needs_no_key(play: Play):
    stage = play(required=True)
    fields = (("Origin", "https://shop.example"), ("Access-Control-Request-Method", "POST"))
    assert stage.send(None, b"", "OPTIONS", "/charges", *fields).status == 201


@pytest.mark.item("A7")
def test_routes_are_included_and_excluded(play: Play):
    stage = play(include=("/api/**",), exclude=("POST /api/search",))
    for target, count in (("/other", 2), ("/api/search", 2), ("/api/charges/1", 1)):
        before = len(stage.seen)
        for _ in range(2):
            stage.send(f"key-of-{target[1:].replace('/', '-')}", b"{}", "POST", target)
        assert len(stage.seen) - before == count, target
    assert stage.send('"bad', b"{}", "POST", "/other").status == 201


@pytest.mark.item("A7")
def test_an_encoded_path_is_the_same_route(play: Play):
    stage = play(required=("/charges",))
    assert stage.send(None, b"{}", "POST", "/ch%61rges").problem == "key-missing"


@pytest.mark.item("A5", "A7")
@pytest.mark.parametrize("edge", ["asgi", "wsgi"])
def test_routes_of_a_mounted_application(play: Play, edge: str):
    """Its router does not see where it is mounted, or the root path of its server."""

    def mounted(app: Any) -> Any:
        def wsgi(environ: Any, start_response: Any) -> Any:
            inner = environ["PATH_INFO"].removeprefix("/v1")
            return app({**environ, "SCRIPT_NAME": "/v1", "PATH_INFO": inner}, start_response)

        async def asgi(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "root_path": "/v1"}, receive, send)

        return wsgi if edge == "wsgi" else asgi

    stage = play(
        required=("/charges", "/v1/refunds"),
        exclude=("/search",),
        retry=("/retry",),
        around=mounted,
    )
    for path in ("/v1/charges", "/v1/refunds"):
        assert stage.send(None, b"{}", "POST", path).problem == "key-missing", path
    assert stage.send(None, b"{}", "POST", "/v1/v1/charges").status == 201
    assert not any(stage.send("k", b"{}", "POST", "/v1/search").replayed for _ in range(2))
    failing, stage.handler = stage.handler, lambda _: Answer(body=(ValueError(),))
    assert stage.send("r", b"{}", "POST", "/v1/retry").problem == ""
    stage.handler = failing
    assert stage.send("r", b"{}", "POST", "/v1/retry").status == 201


@pytest.mark.item("A7")
@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
async def test_other_protocols_are_untouched(kind: str):
    given: list[object] = []

    async def app(*words: object) -> None:
        given.extend(words)

    async with AsyncReceiver.open("memory://") as receiver:
        layer = asgi.IdempotencyMiddleware(app, receiver=receiver)
        scope = {"type": kind, "headers": [(b"idempotency-key", b"k")], "method": "POST"}
        words = (scope, asyncio.sleep, print)
        await layer(*words)  # type: ignore[arg-type]
    assert [id(word) for word in given] == [id(word) for word in words]


@pytest.mark.item("A8")
def test_the_request_reaches_the_handler_as_it_was(stage: Stage):
    body = bytes(range(256)) * 40
    fields = (("Authorization", "Bearer t"), ("X-Odd", "a, b"), ("Accept", "*/*"))
    kind = "application/octet-stream; x=1"
    target = "/a%20b/c%2Fd?b=2&a=1&&b=%31"
    for key in (None, "k"):
        stage.send(key, body, "PATCH", target, *fields, kind=kind)
    plain, keyed = stage.seen
    assert keyed.headers.pop("idempotency-key") == "k"
    assert keyed == plain
    assert keyed.body == body
    assert keyed.query == b"b=2&a=1&&b=%31"
    assert keyed.raw_path in (b"/a%20b/c%2Fd", b"")


@pytest.mark.item("A8", "R6")
def test_the_first_response_reaches_the_client_as_it_was(stage: Stage):
    fields = [
        (b"content-type", b"text/plain"),
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
        (b"x-request-id", b"r"),
        (b"vary", b"Accept"),
        (b"link", b"<1>"),
        (b"link", b"<2>"),
    ]
    stage.handler = lambda _: Answer(418, fields, [b"tea"])
    replies = [stage.send(key) for key in (None, "k")]
    for reply in replies:
        reply.fields = [line for line in reply.fields if line[0] != "date"]
    plain, keyed = replies
    assert keyed == plain
    assert keyed.all("set-cookie") == ["a=1", "b=2"]


@pytest.mark.item("A8")
def test_a_chunked_request_reaches_the_handler_whole():
    stage = Stage("asgi")
    chunks = b"3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
    for replayed in (False, True):
        reply = stage.send("k", chunks, "POST", "/", ("Transfer-Encoding", "chunked"))
        assert reply.replayed is replayed
    assert stage.send("k", b"abcdefg", "POST", "/").replayed  # F10: framing does not count
    assert [seen.body for seen in stage.seen] == [b"abcdefg"]
    stage.close()


@pytest.mark.item("A10")
@pytest.mark.parametrize("forward", [True, False])
def test_the_handler_sees_the_key_unless_it_is_hidden(play: Play, forward: bool):
    stage = play(forward_key=forward)
    stage.send('"k"')
    assert stage.seen[0].headers.get("idempotency-key") == ('"k"' if forward else None)
