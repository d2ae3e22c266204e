"""S: whose keys they are, and what no other client may learn."""

from __future__ import annotations

import hmac
import logging
import threading
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.stage import Answer, Play, Seen, Stage
from twicesafe import AsyncReceiver, Receiver, asgi, key_scope, wsgi
from twicesafe._core.http.key_field import credentials
from twicesafe.http import HttpPolicy, HttpRequest
from twicesafe.stores import open_async_store, open_store
from twicesafe.stores.memory import MemoryStore


def ask(stage: Stage, key: str, *fields: tuple[str, str], body: bytes = b"{}"):
    return stage.send(key, body, "POST", "/charges", *fields)


@pytest.mark.item("S1", "S2", "D1")
def test_every_principal_has_keys_of_its_own(stage: Stage):
    principals = [(), (("Authorization", "Bearer a"),), (("Authorization", "Bearer b"),)]
    bodies = [ask(stage, "k", *who).body for who in principals]
    assert len(set(bodies)) == 3
    for who, body in zip(principals, bodies, strict=True):
        reply = ask(stage, "k", *who)
        assert (reply.replayed, reply.body) == (True, body)
    assert len(stage.seen) == 3


@pytest.mark.item("S6")
@pytest.mark.parametrize("secret", [b"", b"a secret", b"x" * 64, b"x" * 65, b"x" * 200])
def test_credentials_are_hashed_by_the_standard_hmac(secret: bytes):
    """Another hash would be another scope: keys from before an upgrade would run again."""
    request = HttpRequest("POST", "/", b"/", b"", [(b"authorization", b"Bearer a")])
    framed = b"twicesafe.http.scope.1\0" + (1).to_bytes(4, "big") + (8).to_bytes(8, "big")
    expected = hmac.digest(secret, framed + b"Bearer a", "sha256").hex()
    assert credentials(request, ["Authorization"], secret) == expected


@pytest.mark.item("S1", "K10", "D1")
@pytest.mark.parametrize("name", ["Authorization", "X-Tenant"])
def test_every_line_of_a_credential_counts(play: Play, name: str):
    """Which of two lines an application believes is its own affair: no other request may share it."""
    behind = {"trusted": ["127.0.0.1"]}
    stage = play(scope=(name,), upstream=behind)
    principals = [["a"], ["b"], ["a", "b"], ["b", "a"], ["a", "a"], ["a", ""], ["a", "b", "c"]]
    principals += [["a", "bc"], ["ab", "c"]]  # lines do not run together
    for _ in range(2):
        for lines in principals:
            ask(stage, "k", *((name, line) for line in lines))
    assert len(stage.seen) == len(principals)


@pytest.mark.item("F12", "K10")
def test_every_line_of_a_field_that_is_compared_counts(play: Play):
    stage = play(fingerprint_headers=("X-Account",))
    assert ask(stage, "k", ("X-Account", "1"), ("X-Account", "2")).status == 201
    assert ask(stage, "k", ("X-Account", "1"), ("X-Account", "2")).replayed
    for lines in (["1"], ["2"], ["2", "1"], ["1", "2", "2"], []):
        reply = ask(stage, "k", *(("X-Account", line) for line in lines))
        assert reply.problem == "key-reused", lines
    assert len(stage.seen) == 1


@pytest.mark.item("S1", "S4", "D1")
def test_a_second_cookie_does_not_lead_into_anothers_scope(play: Play):
    """A cookie that a neighbouring host has planted comes before or after the user's own one."""
    stage = play(scope=("cookie:session",))
    attacker = ask(stage, "k", ("Cookie", "session=attacker"))
    for planted in ("session=attacker; session=user", "session=user; a=1; session=attacker"):
        reply = ask(stage, "k", ("Cookie", planted))
        assert not reply.replayed
        assert reply.body != attacker.body
    assert ask(stage, "k", ("Cookie", "session=attacker; session=attacker")).replayed
    assert len(stage.seen) == 3


@pytest.mark.item("S3", "D1")
def test_anothers_key_shows_neither_409_nor_422(stage: Stage):
    inside, go = threading.Event(), threading.Event()

    def slow(seen: Seen) -> Answer:
        if seen.headers["authorization"] == "a":
            inside.set()
            assert go.wait(60)
        return Answer()

    stage.handler = slow
    first = stage.later("k", b"{}", "POST", "/charges", ("Authorization", "a"))
    assert inside.wait(60)
    for body in (b"{}", b"[]"):
        assert (
            ask(stage, "k" if body == b"{}" else "j", ("Authorization", "b"), body=body).status
            == 201
        )
    go.set()
    assert first.result().status == 201


@pytest.mark.item("S4")
def test_a_scope_of_your_own_survives_a_new_token(play: Play):
    def tenant(request: HttpRequest) -> str:
        return (request.header("authorization") or "?").split(":")[0]

    stage = play(scope=tenant)
    assert ask(stage, "k", ("Authorization", "ana:token-1")).status == 201
    assert ask(stage, "k", ("Authorization", "ana:token-2")).replayed
    assert not ask(stage, "k", ("Authorization", "bob:token-1")).replayed


@pytest.mark.item("S4")
def test_headers_and_cookies_can_be_the_scope(play: Play):
    behind = {"trusted": ["127.0.0.1"]}  # a proxy believes X-Tenant from trusted peers only
    stage = play(scope=("X-Tenant", "cookie:session"), upstream=behind)
    who = (("X-Tenant", "1"), ("Cookie", "theme=dark; session=s1"))
    assert ask(stage, "k", *who).status == 201
    assert ask(stage, "k", ("X-Tenant", "1"), ("Cookie", "session=s1; theme=light")).replayed
    assert not ask(stage, "k", ("X-Tenant", "1"), ("Cookie", "session=s2")).replayed
    assert not ask(stage, "k", ("X-Tenant", "2"), ("Cookie", "session=s1")).replayed
    assert not ask(stage, "k", ("Authorization", "1")).replayed
    assert len(stage.seen) == 4


@pytest.mark.item("S1", "S4")
def test_a_site_with_a_tenant_per_host_says_so(play: Play):
    def hosts(stage: Stage) -> list[tuple[bool, str]]:
        replies = [
            ask(stage, "k", ("Authorization", "a"), ("Host", name))
            for name in ("x.shop", "y.shop", "x.shop")
        ]
        return [(reply.replayed, reply.problem) for reply in replies]

    apart = play(scope=("Authorization", "Host"))
    assert hosts(apart) == [(False, ""), (False, ""), (True, "")]
    assert [seen.headers["host"] for seen in apart.seen] == ["x.shop", "y.shop"]
    refused = play(fingerprint_headers=("Host",))
    assert hosts(refused) == [(False, ""), (False, "key-reused"), (True, "")]


@pytest.mark.item("S4")
@pytest.mark.parametrize("edge", ["asgi", "wsgi"])
@pytest.mark.parametrize("named", [None, "x" * 256, ("a",) * 20])
def test_a_scope_without_a_name_runs_nothing(play: Play, named: Any):
    known: list[str] = []
    stage = play(scope=lambda _: known or named)
    assert ask(stage, "k").status == 500
    assert stage.seen == []
    known.append("ana")
    assert ask(stage, "k").status == 201


@pytest.mark.item("S4")
def test_parts_of_a_scope_do_not_run_together(play: Play):
    stage = play(scope=lambda request: (request.header("a") or "-", request.header("b") or "-"))
    assert not ask(stage, "k", ("A", "x"), ("B", "yz")).replayed
    assert not ask(stage, "k", ("A", "xy"), ("B", "z")).replayed


@pytest.mark.item("S5")
@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_of_an_inner_login_is_not_kept(stage: Stage, status: int):
    stage.handler = lambda _: Answer(status)
    assert ask(stage, "k", ("Authorization", "a")).status == status
    stage.handler = lambda _: Answer(201)
    assert ask(stage, "k", ("Authorization", "a")).status == 201


@pytest.mark.item("S5", "D4")
def test_an_outer_login_is_asked_before_a_replay(play: Play, edge: str):
    revoked: list[bool] = []

    def around(app):
        async def asgi(scope, receive, send):
            if not revoked:
                await app(scope, receive, send)
            else:
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b""})

        def wsgi(environ, start_response):
            if not revoked:
                return app(environ, start_response)
            start_response("401 No", [])
            return [b""]

        return wsgi if edge == "wsgi" else asgi

    stage = play(around=around)
    assert [ask(stage, "k").status for _ in range(2)] == [201, 201]
    revoked.append(True)
    assert ask(stage, "k").status == 401


@pytest.mark.item("S6")
def test_credentials_are_stored_as_a_keyed_hash(play: Play):
    shown = set()
    for secret in (b"", b"one", b"two"):
        stage = play(scope_secret=secret)
        ask(stage, "k", ("Authorization", "Bearer canary-token"))
        (row,) = stage.memory._rows.values()
        assert "canary" not in repr(row)
        shown.add(row.scope)
    assert len(shown) == 3


@pytest.mark.item("S6")
def test_neither_keys_nor_bodies_nor_credentials_are_logged(
    stage: Stage, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    who = ("Authorization", "canary-1")
    ask(stage, "canary-2", who, body=b"canary-3")
    ask(stage, "canary-2", who, body=b"canary-4")
    stage.handler = lambda _: Answer(200, [(b"x", b"canary-5")], [b"canary-6" * 200_000])
    ask(stage, "canary-7", who)
    ask(stage, "canary-7", who)
    assert "canary" not in caplog.text


@pytest.mark.parametrize("edge", ["asgi", "wsgi"])
@pytest.mark.parametrize("wait", [0, 10])
@pytest.mark.parametrize("is_one", [True, False])
def test_of_two_layers_on_one_store_the_outer_one_claims(
    edge: str, wait: int, is_one: bool, tmp_path: Path
):
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    opened = open_async_store if edge == "asgi" else open_store
    inner = opened(url)

    def around(layer: Any) -> Any:
        kind = AsyncReceiver if edge == "asgi" else Receiver
        return type(layer)(layer, receiver=kind(inner if is_one else opened(url)))

    stage = Stage(edge, HttpPolicy(wait=wait), store=inner, around=around)
    replies = [ask(stage, "k"), ask(stage, "k"), ask(stage, "j")]
    assert [(reply.status, reply.replayed) for reply in replies] == [
        (201, False),
        (201, True),
        (201, False),
    ]
    assert len(stage.seen) == 2
    stage.close()


def test_a_layer_on_another_store_claims_for_itself():
    other = MemoryStore()
    stage = Stage("wsgi", around=lambda layer: type(layer)(layer, receiver=Receiver(other)))
    assert ask(stage, "k").status == 201
    assert [store.stats().total for store in (Receiver(other), stage.records)] == [1, 1]
    stage.close()


def test_so_does_one_on_another_table_of_the_same_database(tmp_path: Path):
    outer, inner = (open_store(f"sqlite:///{tmp_path}/keys.db?table={name}") for name in "ab")
    stage = Stage(
        "wsgi", store=inner, around=lambda layer: type(layer)(layer, receiver=Receiver(outer))
    )
    assert ask(stage, "k").status == 201
    assert [Receiver(store).stats().total for store in (outer, inner)] == [1, 1]
    stage.close()


def test_a_key_that_has_ended_is_held_around_no_later_request():
    """Work that runs on after its request, in the same context, is answered like any caller."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        ran.append(copy_context())
        start_response("201 Created", [])
        return [b"%d" % len(ran)]

    def asked() -> list[bytes]:
        environ = {"REQUEST_METHOD": "POST", "HTTP_IDEMPOTENCY_KEY": "k", "wsgi.input": None}
        return list(layer(environ, lambda *_: None))

    ran: list[Context] = []
    layer = wsgi.IdempotencyMiddleware(app, receiver=Receiver(MemoryStore()))
    assert asked() == ran[0].run(asked) == [b"1"]


@pytest.mark.item("S1", "D1")
async def test_keys_belong_to_the_scope_around_the_middleware():
    """`key_scope` in an outer layer names the tenant, as it does for every other way to make a key."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": dict(scope["headers"])[b"host"]})

    async with AsyncReceiver.open("memory://") as receiver:
        layer = asgi.IdempotencyMiddleware(app, receiver=receiver)

        async def tenants(scope: Any, receive: Any, send: Any) -> None:
            with key_scope(dict(scope["headers"])[b"host"].decode()):
                await layer(scope, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(tenants)) as client:
            asked = ["a.example", "b.example", "a.example"]
            replies = [
                await client.post(f"http://{host}/", headers={"Idempotency-Key": '"k"'})
                for host in asked
            ]
    assert [reply.text for reply in replies] == asked
    assert [reply.headers.get("idempotent-replayed") for reply in replies] == [None, None, "true"]


@pytest.mark.item("S1", "D1")
def test_keys_belong_to_the_scope_around_the_middleware_under_wsgi():
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("201 Created", [])
        return [environ["HTTP_HOST"].encode()]

    with Receiver.open("memory://") as receiver:
        layer = wsgi.IdempotencyMiddleware(app, receiver=receiver)

        def tenants(environ: Any, start_response: Any) -> Any:
            with key_scope(environ["HTTP_HOST"]):
                return layer(environ, start_response)

        with httpx.Client(transport=httpx.WSGITransport(tenants)) as client:
            asked = ["a.example", "b.example", "a.example"]
            post = [client.post(f"http://{h}/", headers={"Idempotency-Key": '"k"'}) for h in asked]
    assert [reply.text for reply in post] == asked
