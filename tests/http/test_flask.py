"""Flask: error handlers, teardowns and streams, under the layer around `wsgi_app`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask, abort, request, session, stream_with_context

from tests.http.stage import Stage
from twicesafe import Receiver, current_key
from twicesafe.http import HttpPolicy
from twicesafe.wsgi import IdempotencyMiddleware


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage("wsgi")
    yield stage
    stage.close()


def serve(stage: Stage, app: Flask, policy: HttpPolicy | None = None) -> None:
    app.logger.disabled = True
    layer = IdempotencyMiddleware(app.wsgi_app, receiver=Receiver(stage.memory), policy=policy)
    app.wsgi_app = layer  # type: ignore[method-assign]
    stage.server.app = app


def twice(stage: Stage, path: str, key: str = "k", *more: Any) -> Any:
    return [stage.send(key, b"{}", "POST", path, *more) for _ in range(2)]


@pytest.mark.item("R1", "A10")
def test_an_ordinary_view(stage: Stage):
    app, runs = Flask(__name__), []

    @app.post("/charges")
    def charge() -> Any:
        key = current_key()
        runs.append(request.get_json())
        return {"key": None if key is None else key.value}, 201

    serve(stage, app)
    first, again = twice(stage, "/charges")
    assert (first.status, again.replayed) == (201, True)
    assert first.body == again.body == b'{"key":"k"}\n'
    assert runs == [{}]


@pytest.mark.item("E2", "E3", "E4")
@pytest.mark.parametrize("propagate", [False, True])
def test_flasks_own_500_is_an_answer_and_a_propagated_exception_is_unknown(
    stage: Stage, propagate: bool
):
    app, runs = Flask(__name__), []
    app.config["PROPAGATE_EXCEPTIONS"] = propagate  # as debug mode and tests do

    @app.errorhandler(KeyError)
    def handled(_: Exception) -> Any:
        return "handled", 409

    @app.post("/<kind>")
    def fail(kind: str) -> None:
        runs.append(kind)
        if kind == "missing":
            abort(404)
        raise {"bug": ValueError, "handled": KeyError}[kind]

    serve(stage, app)
    assert [reply.status for reply in twice(stage, "/missing", "m")] == [404, 404]
    assert [reply.status for reply in twice(stage, "/handled", "h")] == [409, 409]
    first, again = twice(stage, "/bug", "b")
    assert (first.status, again.status) == (500, 500)
    assert again.problem == ("outcome-unknown" if propagate else "")
    assert again.replayed is not propagate
    assert runs == ["missing", "handled", "handled", "bug"]  # 409 says: not executed, try again


@pytest.mark.item("E4", "T2")
def test_a_teardown_that_fails_leaves_the_outcome_unknown(stage: Stage):
    app, runs = Flask(__name__), []

    @app.teardown_request
    def commit(_: BaseException | None) -> None:
        runs.append("teardown")
        raise ConnectionError("the commit failed")

    @app.post("/charges")
    def charge() -> str:
        runs.append("charge")
        return "done"

    serve(stage, app)
    assert [reply.problem for reply in twice(stage, "/charges")] == ["outcome-unknown"] * 2
    assert runs == ["charge", "teardown"]


@pytest.mark.item("T1", "T2")
def test_a_stream_keeps_its_request_and_is_replayed(stage: Stage):
    app, order = Flask(__name__), []

    @app.teardown_request
    def gone(_: BaseException | None) -> None:
        order.append("teardown")

    @app.post("/stream")
    def stream() -> Any:
        @stream_with_context
        def pieces() -> Iterator[str]:
            for number in range(3):
                order.append(request.path)
                yield str(number)

        return pieces()

    serve(stage, app)
    first, again = twice(stage, "/stream")
    assert (first.body, again.body, again.replayed) == (b"012", b"012", True)
    assert order == ["teardown", "/stream", "/stream", "/stream", "teardown"]  # Flask's own order


@pytest.mark.item("S4", "R6", "D1")
def test_users_who_log_in_by_cookie_have_keys_of_their_own(stage: Stage):
    app = Flask(__name__)
    app.secret_key = "x"

    @app.get("/login/<name>")
    def login(name: str) -> str:
        session["user"] = name
        return ""

    @app.post("/charges")
    def charge() -> str:
        return str(session["user"])

    serve(stage, app, HttpPolicy(scope=("Authorization", "cookie:session")))
    for name in ("ana", "ben"):
        (cookie,) = stage.send(None, b"", "GET", f"/login/{name}").all("set-cookie")
        mine = ("Cookie", cookie.partition(";")[0])
        first, again = twice(stage, "/charges", "same", mine)
        assert first.body == again.body == name.encode()
        assert (first.replayed, again.replayed) == (False, True)
