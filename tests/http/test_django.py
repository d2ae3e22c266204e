"""Django and its REST framework: the layer as a line in MIDDLEWARE, under WSGI and under ASGI."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler, WSGIRequest
from django.http import HttpResponse, StreamingHttpResponse
from django.test import RequestFactory, override_settings, utils

from tests.http import django_site
from tests.http.django_site import Site, entered, gate, seen, tokens
from tests.servers import launch
from twicesafe import current_key
from twicesafe.http import HeaderField, HttpPolicy, HttpRequest, StoredResponse
from twicesafe.integrations.django import IdempotencyMiddleware

Serve = Callable[..., Site]


@pytest.fixture(params=["wsgi", "asgi"])
def edge(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def serve(edge: str, tmp_path: Path) -> Iterator[Serve]:
    opened: list[Site] = []

    def make(**policy: Any) -> Site:
        opened.append(Site(edge, tmp_path, **policy))
        return opened[-1]

    yield make
    for site in opened:
        site.close()


@pytest.fixture
def site(serve: Serve) -> Site:
    return serve()


@pytest.mark.item("R1", "R2", "R4", "R6", "A10", "F2")
def test_an_ordinary_view(serve: Serve):
    site = serve(keep_headers=("X-Own",))
    first, again = site.twice("/charges")
    assert (first.status, first.replayed, first.body) == (201, False, b'{"key": "k", "n": 1}')
    assert (again.status, again.replayed, again.body) == (201, True, first.body)
    assert (again["x-own"], again["content-type"]) == ("kept", "application/json")
    assert len(first.all("set-cookie")) == 1
    assert again.all("set-cookie") == []
    assert site.send("k", "/charges", body=b'{"other":1}').problem == "key-reused"
    assert not any(site.send(None, "/charges").replayed for _ in range(2))
    assert site.send('"', "/charges").problem == "key-invalid"
    assert len(seen) == 3


@pytest.mark.item("R6", "A10")
def test_settings_of_the_policy_are_obeyed(serve: Serve):
    site = serve(replay_cookies=True, forward_key=False, required=("POST /charges",), max_body=5)
    assert len(site.twice("/charges")[1].all("set-cookie")) == 1
    assert seen == [""]
    assert site.send(None, "/charges").problem == "key-missing"
    assert site.send("l", "/charges", body=b"123456").problem == "request-too-large"


@pytest.mark.item("K10", "E6")
def test_two_keys_are_refused(site: Site):
    assert site.send("a", "/charges", ("Idempotency-Key", "b")).problem == "key-invalid"
    assert seen == []


@pytest.mark.item("K10", "O4")
def test_two_ids_of_a_webhook_are_refused(serve: Serve):
    site = serve(header=None, key_from=(HeaderField("X-Delivery"),))
    assert site.send(None, "/charges", ("X-Delivery", "e-1")).status == 201
    for other in ("e-1", "x", ""):
        reply = site.send(None, "/charges", ("X-Delivery", "e-1"), ("X-Delivery", other))
        assert reply.problem == "key-invalid"
    assert len(seen) == 1


@pytest.mark.item("E6", "F9")
def test_a_body_in_chunks_is_whole_or_refused(site: Site, edge: str):
    """Under WSGI Django takes a body without a length for an empty one: all of them would be equal."""
    chunked = ("Transfer-Encoding", "chunked")
    bodies = (b"2\r\n{}\r\n0\r\n\r\n", b"3\r\n[1]\r\n0\r\n\r\n")
    problems = [site.send("k", "/charges", chunked, body=body).problem for body in bodies]
    assert problems == (["", "key-reused"] if edge == "asgi" else ["length-required"] * 2)
    assert len(seen) == (edge == "asgi")
    for told in ({"wsgi.input_terminated": True}, {"SERVER_PROTOCOL": "HTTP/2"}):
        bare = WSGIRequest({"REQUEST_METHOD": "POST", "HTTP_IDEMPOTENCY_KEY": "k", "SERVER_NAME": "x",
                            "SERVER_PORT": "1", "wsgi.input": io.BytesIO(b"{}"), **told})  # fmt: skip
        with override_settings(TWICESAFE={"store": "memory://"}):
            assert IdempotencyMiddleware(lambda _: None)(bare).status_code == 411


@pytest.mark.item("A5", "A7")
def test_route_patterns_match_without_the_script_name():
    asked = RequestFactory().post("/charges", SCRIPT_NAME="/shop")
    assert (asked.path, asked.path_info) == ("/shop/charges", "/charges")
    for route, status in (("/charges", 400), ("/shop/charges", 400), ("/shop", 200)):
        policy = HttpPolicy(required=(route,))
        with override_settings(TWICESAFE={"store": "memory://", "policy": policy}):
            layer = IdempotencyMiddleware(lambda _: HttpResponse())
            assert layer(asked).status_code == status, route


@pytest.mark.item("E2", "E4")
def test_exceptions_that_django_answers_and_those_that_it_did_not_expect(site: Site):
    missing, again = site.twice("/fail/missing", "m")
    assert (missing.status, again.status, again.replayed) == (404, 404, True)
    assert [reply.status for reply in site.twice("/fail/denied", "d")] == [403, 403]
    assert [reply.problem for reply in site.twice("/fail/bug", "b")] == ["outcome-unknown"] * 2
    assert seen == ["missing", "denied", "denied", "bug"]
    assert site.state("b") == "held"


@pytest.mark.item("E10")
def test_a_view_that_refuses_has_done_nothing_and_a_retry_runs(site: Site):
    """As at every other edge: the flow decides, whatever framework performs it."""
    replies = site.twice("/fail/refused", "r")
    assert [reply.problem for reply in replies] == ["upstream-unavailable"] * 2
    assert seen == ["refused", "refused"]


@pytest.mark.item("E4")
def test_an_exception_of_a_middleware_inside_is_unknown_too(site: Site):
    replies = site.twice("/charges", "k", ("X-Fail-Inside", "yes"))
    assert [reply.problem for reply in replies] == ["outcome-unknown"] * 2
    assert seen == []


@pytest.mark.item("E4")
def test_a_transaction_that_was_rolled_back_may_run_again(serve: Serve):
    site = serve(retry=("POST /write",))
    first, again = site.twice("/write")
    assert first.status == 500
    assert first.problem == ""  # Django's own page
    assert (again.status, again.body) == (200, b"written")
    assert site.send("k", "/write").replayed
    assert (seen, site.rows()) == (["write", "write"], 1)


@pytest.mark.item("E4")
def test_without_that_setting_it_is_held(site: Site):
    assert [reply.problem for reply in site.twice("/write")] == ["outcome-unknown"] * 2
    assert (seen, site.rows()) == (["write"], 0)


@pytest.mark.item("D1", "S1", "S2", "S4")
def test_a_key_belongs_to_the_user_or_else_to_the_client(site: Site):
    whose: list[Any] = [
        ("X-User", "1"),
        ("X-User", "2"),
        ("Authorization", "Bearer 1"),
        ("Cookie", "sessionid=1"),
        ("Cookie", "sessionid=2"),
        ("X-Unknown", "1"),
    ]
    for owner in whose:
        first, again = site.twice("/charges", "same", owner)
        assert (first.replayed, again.replayed) == (False, True)
    renewed = site.send("same", "/charges", ("X-User", "1"), ("Cookie", "sessionid=new"))
    assert renewed.replayed  # a user is the same with another session
    assert len(seen) == len(whose)


@pytest.mark.item("S1")
def test_each_host_has_keys_of_its_own(serve: Serve):
    def hosts(site: Site, *names: str) -> list[bool]:
        said = [(("Host", name), ("X-User", "1")) for name in names]
        return [site.send("k", "/charges", *fields).replayed for fields in said]

    assert hosts(serve(), "a.shop", "b.shop", "A.shop") == [False, False, True]
    everywhere = serve(scope=lambda request: str(request.native.user.pk))
    assert hosts(everywhere, "a.shop", "b.shop") == [False, True]


@pytest.mark.item("S4")
def test_a_scope_that_was_said_is_obeyed_though_it_is_the_default_elsewhere(serve: Serve):
    token, session = ("Authorization", "Bearer 1"), ("Cookie", "sessionid=1")
    site = serve(scope=("Authorization",))
    assert not site.send("k", "/charges", token).replayed
    assert site.send("k", "/charges", token, session, ("X-User", "1")).replayed


@pytest.mark.item("S4")
def test_a_policy_that_was_made_elsewhere_keeps_its_scope_too():
    def scope(policy: HttpPolicy) -> Any:
        with override_settings(TWICESAFE={"store": "memory://", "policy": policy}):
            return IdempotencyMiddleware(lambda _: None).policy.scope

    assert scope(HttpPolicy(scope=("Authorization",))) == ("Authorization",)
    assert scope(HttpPolicy().replace(scope=("Authorization",))) == ("Authorization",)
    assert callable(scope(HttpPolicy.stripe()))


def kinds(edge: str) -> list[str]:
    return ["stream", "stream-async"] if edge == "asgi" else ["stream"]


@pytest.mark.item("T1", "T2", "E7")
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_streams(site: Site, edge: str):
    for kind in kinds(edge):
        seen.clear()
        first, again = site.twice(f"/{kind}/whole", kind)
        assert (first.body, again.body, again.replayed) == (b"12", b"12", True)
        cut = site.send(f"{kind}-cut", f"/{kind}/cut")
        assert b"2" not in cut.body
        assert site.send(f"{kind}-cut", f"/{kind}/cut").problem == "outcome-unknown"
        assert seen == ["whole", "cut"]


@pytest.mark.item("T1", "R10")
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_files_and_what_is_too_large_to_keep(serve: Serve):
    content = Path(django_site.__file__).read_bytes()
    site = serve()
    assert {reply.body for reply in site.twice("/file")} == {content}
    site = serve(max_result_bytes=1)
    assert site.send("l", "/file").body == content
    assert site.send("l", "/file").problem == "result-not-kept"
    assert seen == ["file"]


@pytest.mark.item("E5")
def test_a_client_that_goes_away_loses_nothing(site: Site, edge: str):
    for path in ("/slow", "/slow-async") if edge == "asgi" else ("/slow", "/stream/gated"):
        seen.clear(), entered.clear(), gate.clear()
        with site.stage.connect() as connection:
            connection.sendall(site.stage.request(path, b"{}", "POST", path))
            assert entered.wait(60)
        gate.set()
        while (reply := site.send(path, path)).problem == "in-progress":  # until the view ends
            pass
        assert (reply.replayed, reply.body) == (True, b"12" if "stream" in path else b"slow")
        assert len(seen) == 1


@pytest.mark.item("E5", "T1")
def test_wsgi_a_stream_that_its_server_closes_early_is_recorded_whole(tmp_path: Path):
    site = Site("wsgi", tmp_path)
    content = Path(django_site.__file__).read_bytes()
    for path, whole in (("/stream/long", b"1abc2"), ("/file", content)):
        environ: dict[str, Any] = {
            "REQUEST_METHOD": "POST", "PATH_INFO": path, "HTTP_IDEMPOTENCY_KEY": path,
            "CONTENT_TYPE": "application/json", "CONTENT_LENGTH": "2",
            "HTTP_HOST": "stage", "wsgi.input": io.BytesIO(b"{}"),
        }  # fmt: skip
        setup_testing_defaults(environ)
        response = site.handler(environ, lambda *_: None)
        assert whole.startswith(next(iter(response)))
        response.close()  # also closes what the view made, and that must come later
        again = site.send(path, path)
        assert (again.replayed, again.body) == (True, whole)
    site.close()


@pytest.mark.item("E5", "T3")
def test_wsgi_a_stream_that_outlasts_linger_is_done_without_a_result(tmp_path: Path):
    """As behind every other edge; it was held."""

    def view(request: Any) -> Any:
        return django_site.stream(request, "long")

    def asked() -> Any:
        return layer(RequestFactory().post("/", headers={"Idempotency-Key": "k"}))

    setting = {"store": f"sqlite:///{tmp_path / 'keys.db'}", "policy": {"linger": 0}}
    with override_settings(TWICESAFE=setting):
        layer = IdempotencyMiddleware(view)
    response = asked()
    assert next(iter(response)) == b"1"
    response.close()
    assert asked().status_code == 410


@pytest.mark.item("E5", "T3")
async def test_asgi_an_unread_stream_that_outlasts_linger_is_done_without_a_result(
    tmp_path: Path,
):
    async def view(request: Any) -> Any:
        async def parts() -> Any:
            yield b"1"
            await asyncio.Event().wait()

        return StreamingHttpResponse(parts())

    async def asked() -> Any:
        return await layer(RequestFactory().post("/", headers={"Idempotency-Key": "k"}))

    setting = {"store": f"sqlite:///{tmp_path / 'keys.db'}", "policy": {"linger": 0.01}}
    with override_settings(TWICESAFE=setting):
        layer = IdempotencyMiddleware(view)
    response = await asked()
    await asyncio.to_thread(response.close)
    while (again := await asked()).status_code == 409:  # noqa: ASYNC110 - no event says it
        await asyncio.sleep(0)  # a 409 of this process never waits, so nothing else would run
    assert again.status_code == 410


@pytest.mark.item("E7")
def test_asgi_a_stream_whose_client_went_away_is_held(tmp_path: Path):
    site = Site("asgi", tmp_path)
    with site.stage.connect() as connection:
        connection.sendall(site.stage.request("k", b"{}", "POST", "/stream-async/gated"))
        assert entered.wait(60)
    while (problem := site.send("k", "/stream-async/gated").problem) == "in-progress":
        pass
    assert problem == "outcome-unknown"
    assert seen == ["gated"]
    site.close()


async def ask(site: Site, path: str, *, leave: bool = False) -> tuple[int, bytes]:
    """One request to the ASGI handler; `leave`: its client is gone before the view has answered."""
    uploads, sent = iter([b"{}"]), []

    async def receive() -> Any:
        for body in uploads:
            return {"type": "http.request", "body": body, "more_body": False}
        await (asyncio.to_thread(entered.wait, 20) if leave else asyncio.Event().wait())
        turn(20)
        return {"type": "http.disconnect"}

    def turn(left: int) -> None:
        """Some turns of the loop later Django has cancelled the view, and it may answer."""
        asyncio.get_running_loop().call_soon(turn, left - 1) if left else gate.set()

    async def send(message: Any) -> None:
        sent.append(message)

    fields = [(b"host", b"stage"), (b"idempotency-key", b"k"), (b"content-length", b"2")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": fields, "query_string": b""}
    await site.handler(scope, receive, send)
    return (sent[0]["status"] if sent else 0), b"".join(part.get("body", b"") for part in sent)


@pytest.mark.item("E5")
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
@pytest.mark.parametrize("path", ["/stream/late", "/stream-async/late"])
@pytest.mark.parametrize("most, then", [(100, (200, b"12")), (1, (410, b"{"))])
@pytest.mark.parametrize("outside", ["awaiting", "blocking"])
def test_asgi_a_stream_whose_client_left_before_it_began_is_taken_all_the_same(
    path: str, most: int, then: tuple[int, bytes], outside: str, tmp_path: Path
):
    async def run() -> tuple[int, bytes]:
        assert (await ask(site, path, leave=True)) == (0, b"")
        while (answer := await ask(site, path))[0] == 409:
            pass
        return answer

    layers = [f"tests.http.django_site.{outside}", *settings.MIDDLEWARE]
    with override_settings(MIDDLEWARE=layers):
        site = Site("asgi", tmp_path, max_result_bytes=most)
    status, body = asyncio.run(run())
    assert (status, body[: len(then[1])]) == then
    assert seen == ["late"]
    site.close()


@pytest.mark.item("E5", "E7")
@pytest.mark.parametrize("taken", [0, 1])
@pytest.mark.parametrize("is_closed", [True, False])
async def test_asgi_a_stream_that_is_not_read_to_its_end_ends_its_key(
    is_closed: bool, taken: int, tmp_path: Path
):
    async def view(request: Any) -> Any:
        return await django_site.stream_async(request, "whole")

    async def asked() -> Any:
        return await layer(RequestFactory().post("/", headers={"Idempotency-Key": "k"}))

    with override_settings(TWICESAFE={"store": f"sqlite:///{tmp_path / 'keys.db'}"}):
        layer = IdempotencyMiddleware(view)
    response = await asked()
    for _ in range(taken):
        assert await anext(aiter(response)) == b"1"
    if is_closed:  # the client left while Django was sending it
        await asyncio.to_thread(response.close)
    del response  # or a middleware outside was cancelled, and holds no reference any more
    while (again := await asked()).status_code == 409:
        gc.collect()
        await asyncio.sleep(0)
    assert again.status_code == (200 if is_closed and not taken else 500)


@pytest.mark.item("E5", "E7", "T1")
@pytest.mark.parametrize(
    "is_closed, taken, then", [(True, 0, 200), (True, 1, 200), (False, 0, 500)]
)
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
async def test_asgi_a_blocking_stream_ends_its_key_too(
    is_closed: bool, taken: int, then: int, tmp_path: Path
):
    async def view(request: Any) -> Any:
        return django_site.stream(request, "whole")

    async def asked() -> Any:
        return await layer(RequestFactory().post("/", headers={"Idempotency-Key": "k"}))

    with override_settings(TWICESAFE={"store": f"sqlite:///{tmp_path / 'keys.db'}"}):
        layer = IdempotencyMiddleware(view)
    response = await asked()
    assert not response.is_async
    for _ in range(taken):
        assert next(iter(response)) == b"1"  # on the loop: it waits for nothing there
    if is_closed:
        await asyncio.to_thread(response.close)
    del response
    while (again := await asked()).status_code == 409:
        gc.collect()
        await asyncio.sleep(0)
    assert again.status_code == then
    if then == 200:
        assert again.content == b"12"


@pytest.mark.item("E5", "E7", "T1")
@pytest.mark.parametrize("taken", [0, 1])
def test_wsgi_a_stream_that_is_dropped_ends_its_key(taken: int, tmp_path: Path):
    """By a server that does not close it, or, under ASGI, by a middleware outside that was cancelled."""

    def asked() -> Any:
        return layer(RequestFactory().post("/", headers={"Idempotency-Key": "k"}))

    with override_settings(TWICESAFE={"store": f"sqlite:///{tmp_path / 'keys.db'}"}):
        layer = IdempotencyMiddleware(lambda request: django_site.stream(request, "whole"))
    response = asked()
    for _ in range(taken):
        assert next(iter(response)) == b"1"
    del response
    gc.collect()
    assert asked().status_code == 500


@pytest.mark.item("E4", "T1")
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_wsgi_an_async_stream_that_fails_ends_its_key(tmp_path: Path):
    """Django takes all of it before the response begins."""
    site = Site("wsgi", tmp_path)
    first, again = site.twice("/stream-async/cut")
    assert (first.status, again.problem) == (500, "outcome-unknown")
    assert seen == ["cut"]
    site.close()


@pytest.mark.item("R8", "T1")
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_a_compressed_stream_is_one_member_with_the_layer_as_without(edge: str, tmp_path: Path):
    """A blocking stream that became async was compressed part by part: many members, hardly smaller."""
    site = Site(edge, tmp_path)
    layers = [
        "django.middleware.gzip.GZipMiddleware",
        "twicesafe.integrations.django.IdempotencyMiddleware",
    ]
    with override_settings(MIDDLEWARE=layers, TWICESAFE={"store": site.url}):
        site.stage.server.app = ASGIHandler() if edge == "asgi" else WSGIHandler()
    for key in (None, "k", "k"):
        reply = site.send(key, "/stream/long", ("Accept-Encoding", "gzip"))
        if reply["content-encoding"] == "gzip":  # a replay is too short to be worth it
            first = zlib.decompressobj(31)
            assert (first.decompress(reply.body), first.unused_data) == (b"1abc2", b"")
        else:
            assert (reply.replayed, reply.body) == (True, b"1abc2")
    assert seen == ["long", "long"]
    site.close()


@pytest.mark.item("E7", "T1")
async def test_asgi_a_view_that_ends_its_cut_stream_without_an_error_is_not_recorded_as_complete(
    tmp_path: Path,
):
    never = asyncio.Event()

    async def view(request: Any) -> Any:
        async def rows() -> Any:
            yield b"row 1"
            try:
                await never.wait()
            except asyncio.CancelledError:
                yield b"the client left"

        return StreamingHttpResponse(rows())

    async def asked() -> Any:
        return await layer(RequestFactory().post("/", headers={"Idempotency-Key": "k"}))

    async def serve() -> None:
        async for part in await asked():
            taken.append(part)
            begun.set()

    taken: list[bytes] = []
    begun = asyncio.Event()
    with override_settings(TWICESAFE={"store": f"sqlite:///{tmp_path / 'keys.db'}"}):
        layer = IdempotencyMiddleware(view)
    serving = asyncio.ensure_future(serve())
    await begun.wait()
    serving.cancel()  # what Django does when the client is gone
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    assert taken[0] == b"row 1"
    assert (await asked()).status_code == 500


@pytest.mark.item("E7", "T1")
async def test_asgi_a_cancellation_before_the_stream_does_not_cut_it(tmp_path: Path):
    """A layer outside that swallowed one; before Python 3.13, a task group that fails in it does the same."""

    async def view(request: Any) -> Any:
        async def rows() -> Any:
            yield b"row 1"
            yield b"row 2"

        return StreamingHttpResponse(rows())

    async def asked() -> Any:
        return await layer(RequestFactory().post("/", headers={"Idempotency-Key": "k"}))

    async def serve() -> list[bytes]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return [part async for part in await asked()]

    with override_settings(TWICESAFE={"store": f"sqlite:///{tmp_path / 'keys.db'}"}):
        layer = IdempotencyMiddleware(view)
    assert await asyncio.ensure_future(serve()) == [b"row 1", b"row 2"]
    again = await asked()
    assert (again.status_code, again.content) == (200, b"row 1row 2")


@pytest.mark.item("E9")
def test_a_store_that_is_away_runs_nothing(edge: str):
    with launch("valkey") as server:
        sites = [Site(edge, server.url), Site(edge, server.url, outage="run")]
    for site, status in zip(sites, (503, 201), strict=True):
        site.stage.server.app = site.handler
        reply = site.send("k", "/charges")
        assert (reply.status, reply.problem) == (status, "store-unavailable" * (status == 503))
        site.close()
    assert len(seen) == 1


async def test_of_two_layers_on_one_store_the_outer_one_claims(edge: str, tmp_path: Path):
    async def awaited(request: Any) -> Any:
        return django_site.charge(request)

    view = awaited if edge == "asgi" else django_site.charge
    seen.clear()
    with override_settings(TWICESAFE={"store": f"sqlite:///{tmp_path / 'keys.db'}"}):
        layer = IdempotencyMiddleware(IdempotencyMiddleware(view))
    for is_replayed in (False, True):
        answer = layer(RequestFactory().post("/", headers={"Idempotency-Key": "k"}))
        response = await answer if edge == "asgi" else answer
        assert response.status_code == 201
        assert ("Idempotent-Replayed" in response) == is_replayed
    assert len(seen) == 1


@pytest.mark.item("E4", "E7")
async def test_a_response_that_cannot_be_sent_leaves_no_key_behind(edge: str, tmp_path: Path):
    """The next request of this thread would run under it."""

    def view(request: Any) -> HttpResponse:
        response = HttpResponse("done")
        response.set_cookie("c", "\u0142")  # no field can carry it
        return response

    async def awaited(request: Any) -> HttpResponse:
        return view(request)

    with override_settings(TWICESAFE={"store": f"sqlite:///{tmp_path / 'keys.db'}"}):
        layer = IdempotencyMiddleware(awaited if edge == "asgi" else view)

    async def asked() -> Any:
        answer = layer(RequestFactory().post("/", headers={"Idempotency-Key": "k"}))
        return await answer if edge == "asgi" else answer

    with pytest.raises(UnicodeEncodeError):
        await asked()
    assert current_key() is None
    assert (await asked()).status_code == 500  # held: the view has run


def test_in_tests_the_store_is_another_one(tmp_path: Path):
    def store(**more: str) -> str:
        with override_settings(TWICESAFE={"store": f"sqlite:///{tmp_path / 'keys.db'}", **more}):
            return str(IdempotencyMiddleware(lambda _: None).receiver.store.url)

    utils.setup_test_environment()
    try:
        assert store() == "memory://"
        assert store(test_store="memory://named") == "memory://named"
    finally:
        utils.teardown_test_environment()
    assert store(test_store="memory://named").startswith("sqlite:")


@pytest.mark.parametrize(
    "setting", [None, {}, {"store": 5}, {"store": "memory://", "polcy": {}}], ids=repr
)
def test_a_wrong_setting_is_reported_when_django_starts(setting: Any):
    with (
        override_settings(TWICESAFE=setting),
        pytest.raises(ImproperlyConfigured, match="TWICESAFE"),
    ):
        IdempotencyMiddleware(lambda request: None)


@pytest.mark.item("S5", "D4", "E2", "E4")
def test_rest_framework(serve: Serve):
    def still_allowed(request: HttpRequest, stored: StoredResponse) -> StoredResponse:
        allowed = request.header("authorization") in tokens
        return stored if allowed else StoredResponse(401, (), b"")

    site = serve(on_replay=still_allowed)
    ana = ("Authorization", "Token a")
    tokens.clear()
    assert site.send("k", "/rest", ana, body=b'{"cents":5}').status in (401, 403)
    tokens.add("Token a")
    first, again = site.twice("/rest", "k", ana, body=b'{"cents":5}')
    assert (first.status, again.status, again.replayed) == (201, 201, True)
    assert first.body == again.body == b'{"cents":5}'
    assert [r.status for r in site.twice("/rest", "v", ana, body=b'{"cents":"x"}')] == [400, 400]
    bugs = site.twice("/rest", "b", ana, body=b'{"cents":13}')
    assert [reply.problem for reply in bugs] == ["outcome-unknown"] * 2
    tokens.clear()
    revoked = site.send("k", "/rest", ana, body=b'{"cents":5}')
    assert (revoked.status, revoked.replayed) == (401, False)
    assert len(seen) == 2
