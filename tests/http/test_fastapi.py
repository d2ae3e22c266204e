"""FastAPI: the claim as a dependency, what OpenAPI says, and where FastAPI's own order matters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Header, HTTPException
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from tests.http.stage import Reply, Stage
from twicesafe import AsyncReceiver
from twicesafe.asgi import IdempotencyMiddleware
from twicesafe.errors import ConfigurationError
from twicesafe.http import HttpPolicy, HttpRequest, StoredResponse
from twicesafe.integrations.fastapi import RequestClaim, describe
from twicesafe.stores.memory import AsyncMemoryStore


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage("asgi")
    yield stage
    stage.close()


def serve(stage: Stage, app: Any, policy: HttpPolicy | None = None) -> None:
    """Put an application on, with the layer as its middleware."""
    receiver = AsyncReceiver(AsyncMemoryStore(stage.memory))
    app.add_middleware(IdempotencyMiddleware, receiver=receiver, policy=policy)
    stage.server.app = app


def post(stage: Stage, path: str, key: str | None = "k", body: bytes = b"{}", *more: Any) -> Reply:
    return stage.send(key, body, "POST", path, *more)


class Order(BaseModel):
    cents: int = 1


@pytest.mark.item("A10", "O3")
def test_the_claim_is_a_dependency_in_both_modes(stage: Stage):
    app = FastAPI()

    @app.post("/async")
    async def awaited(claim: RequestClaim) -> list[Any]:
        return [] if claim is None else [claim.key.value, claim.attempt, claim.lost]

    @app.post("/sync")
    def blocking(claim: RequestClaim) -> list[Any]:
        return [] if claim is None else [claim.key.value, claim.attempt, claim.lost]

    serve(stage, app)
    for path in ("/async", "/sync"):
        assert post(stage, path, f"k{path}").body == b'["k%s",1,false]' % path.encode()
        assert post(stage, path, None).body == b"[]"


@pytest.mark.item("P2", "A5")
def test_openapi_says_what_the_policy_does():
    app = FastAPI()

    @app.post("/charges", status_code=201)
    async def charge(order: Order, idempotency_key: Annotated[str, Header()]) -> Order:
        return order

    @app.put("/charges/{number}")
    async def change(number: int) -> int:
        return number

    @app.patch("/notes/{number}")
    async def note(number: int) -> int:
        return number

    @app.post("/search")
    async def search() -> int:
        return 0

    policy = HttpPolicy(
        required=("POST /charges",), exclude=("/search",), mismatch_status=409, max_key=64
    )
    before = FastAPI.openapi(app)["paths"]
    describe(app, policy)
    document = app.openapi()
    assert app.openapi() is document
    paths = document["paths"]
    assert paths["/search"] == before["/search"]
    assert paths["/charges/{number}"] == before["/charges/{number}"]
    charges, notes = paths["/charges"]["post"], paths["/notes/{number}"]["patch"]
    (header,) = charges["parameters"]  # the handler's own entry of it is not told twice
    assert header["name"] == "Idempotency-Key"
    assert header["required"] is True
    assert header["schema"]["maxLength"] == 64
    assert [each["required"] for each in notes["parameters"]] == [True, False]
    assert set(charges["responses"]) == {"201", "400", "409", "410", "413", "422", "500", "503"}
    assert "is missing" in charges["responses"]["400"]["description"]
    assert "is missing" not in notes["responses"]["400"]["description"]
    assert "already used" in charges["responses"]["409"]["description"]
    validation = charges["responses"]["422"]["content"]
    assert set(validation) == {"application/json"}  # FastAPI's own, which the policy's 409 is not
    refused = charges["responses"]["409"]["content"]["application/problem+json"]["schema"]
    assert refused == {"$ref": "#/components/schemas/IdempotencyProblem"}
    assert "IdempotencyProblem" in document["components"]["schemas"]
    assert "Idempotent-Replayed" in charges["responses"]["201"]["headers"]


def test_only_a_fastapi_application_can_be_described():
    with pytest.raises(ConfigurationError, match="FastAPI application"):
        describe(object())  # type: ignore[arg-type]


class BankError(Exception):
    pass


@pytest.mark.item("E2", "E4")
def test_exceptions_with_and_without_a_handler(stage: Stage):
    app, runs, told = FastAPI(), [], []

    @app.exception_handler(BankError)
    async def handled(_: Any, error: Exception) -> JSONResponse:
        return JSONResponse({"bank": "away"}, 502)

    @app.exception_handler(Exception)
    async def last(_: Any, error: Exception) -> JSONResponse:
        told.append(error)
        return JSONResponse({"sorry": True}, 500)

    @app.post("/{kind}")
    async def fail(kind: str) -> None:
        runs.append(kind)
        raise {"http": HTTPException(402), "bank": BankError(), "bug": ValueError()}[kind]

    serve(stage, app)
    for kind, status, problem in (("http", 402, ""), ("bank", 502, ""), ("bug", 500, "outcome-unknown")):  # fmt: skip
        replies = [post(stage, f"/{kind}", kind) for _ in range(2)]
        assert [reply.status for reply in replies] == [status, status]
        assert [reply.problem for reply in replies] == [problem, problem]
        assert replies[1].replayed is (problem == "")  # what a handler made of it is an answer
    assert runs == ["http", "bank", "bug"]
    # The handler for everything stands outside of the layer: it is called, and its answer is late.
    assert [type(error) for error in told] == [ValueError]
    assert post(stage, "/bug", None).body == b'{"sorry":true}'


@pytest.mark.item("E2", "F2")
def test_a_request_that_was_not_valid_wants_a_new_key_when_it_is_corrected(stage: Stage):
    app, runs = FastAPI(), []

    @app.post("/charges")
    async def charge(order: Order) -> int:
        runs.append(order.cents)
        return order.cents

    serve(stage, app)
    assert post(stage, "/charges", "a", b'{"cents":"x"}').status == 422
    assert post(stage, "/charges", "a", b'{"cents":"x"}').replayed
    assert post(stage, "/charges", "a", b'{"cents":5}').problem == "key-reused"
    assert post(stage, "/charges", "b", b'{"cents":5}').body == b"5"
    assert runs == [5]


@pytest.mark.item("E4", "T2")
def test_a_commit_in_a_dependency_ends_before_the_response_only_if_it_says_so(stage: Stage):
    app = FastAPI()

    async def transaction() -> AsyncIterator[None]:
        yield
        raise ConnectionError("the commit failed")

    early = Depends(transaction, scope="function")

    @app.post("/early", dependencies=[early])
    async def early_commit() -> str:
        return "done"

    @app.post("/late", dependencies=[Depends(transaction)])
    async def late_commit() -> str:
        return "done"

    serve(stage, app)
    assert [post(stage, "/early", "e").problem for _ in range(2)] == ["outcome-unknown"] * 2
    # The trap that the page warns of: the answer was given, and recorded, before the commit.
    assert [post(stage, "/late", "l").body for _ in range(2)] == [b'"done"'] * 2


@pytest.mark.item("T2")
def test_a_background_task_that_fails_takes_no_answer_away(stage: Stage):
    app, runs = FastAPI(), []

    def mail() -> None:
        runs.append("mail")
        raise OSError("no route")

    @app.post("/charges")
    async def charge(tasks: BackgroundTasks) -> str:
        runs.append("charge")
        tasks.add_task(mail)
        return "done"

    serve(stage, app)
    first, again = (post(stage, "/charges") for _ in range(2))
    assert (first.body, again.body, again.replayed) == (b'"done"', b'"done"', True)
    assert runs.count("charge") == 1


@pytest.mark.item("A7", "F4")
def test_routers_and_mounted_applications_are_behind_the_layer(stage: Stage):
    runs: list[str] = []

    def part(name: str) -> FastAPI:
        app, router = FastAPI(), APIRouter(prefix="/v1")

        @router.post("/charges")
        async def charge() -> str:
            runs.append(name)
            return name

        app.include_router(router)
        return app

    whole, inner, outer = part("whole"), part("inner"), FastAPI()
    whole.mount("/shop", inner)
    serve(stage, whole)
    assert [post(stage, "/shop/v1/charges").body for _ in range(2)] == [b'"inner"'] * 2
    assert post(stage, "/v1/charges").problem == "key-reused"  # the mount's path counts
    lone = part("lone")
    serve(stage, lone)
    outer.mount("/shop", lone)
    outer.mount("/free", part("free"))
    stage.server.app = outer
    assert [post(stage, "/shop/v1/charges", "m").body for _ in range(2)] == [b'"lone"'] * 2
    assert not any(post(stage, "/free/v1/charges", "m").replayed for _ in range(2))
    assert runs == ["inner", "lone", "free", "free"]


@pytest.mark.item("R7")
def test_a_slash_too_many_is_redirected_unless_that_is_off(stage: Stage):
    for setting, status in (({}, 307), ({"redirect_slashes": False}, 404)):
        app = FastAPI(**setting)
        app.post("/charges")(lambda: "charged")
        serve(stage, app)
        assert post(stage, "/charges/", f"k{status}").status == status
        assert post(stage, "/charges", "other").status == 200


@pytest.mark.item("S5", "D4")
def test_a_login_in_a_dependency_is_asked_again_by_a_hook(stage: Stage):
    tokens, runs = {"Bearer a"}, []
    app = FastAPI()

    async def user(authorization: Annotated[str, Header()] = "") -> str:
        if authorization not in tokens:
            raise HTTPException(401)
        return authorization

    @app.post("/charges")
    async def charge(user: str = Depends(user)) -> str:
        runs.append(user)
        return user

    def still_allowed(request: HttpRequest, stored: StoredResponse) -> StoredResponse:
        allowed = request.header("authorization") in tokens
        return stored if allowed else StoredResponse(401, (), b"")

    serve(stage, app, HttpPolicy(on_replay=still_allowed))
    ana = ("Authorization", "Bearer a")
    assert post(stage, "/charges", "k", b"{}", ("Authorization", "Bearer x")).status == 401
    assert [post(stage, "/charges", "k", b"{}", ana).status for _ in range(2)] == [200, 200]
    tokens.clear()
    revoked = post(stage, "/charges", "k", b"{}", ana)
    assert (revoked.status, revoked.replayed, revoked.body) == (401, False, b"")
    assert runs == ["Bearer a"]
