"""Webhook senders over real sockets: a signature outside of the layer, an event's id as the key."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.http.stage import Answer, Play, Reply, Seen, Stage
from twicesafe.http import HeaderField, HttpPolicy

SECRET = b"shared"
SIGNATURE = "X-Signature"
DAY = 86400


def sign(body: bytes) -> str:
    return hmac.new(SECRET, body, hashlib.sha256).hexdigest()


def verified(app: Any) -> Any:
    """What a sender's library does: 401 before the layer sees the request. Either mode."""

    def wsgi(environ: Any, start_response: Any) -> Any:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        given = environ.get("HTTP_X_SIGNATURE", "").encode("latin-1")
        if not hmac.compare_digest(sign(body).encode(), given):
            start_response("401 No", [("Content-Length", "0")])
            return [b""]
        return app({**environ, "wsgi.input": io.BytesIO(body)}, start_response)

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        given = dict(scope["headers"]).get(SIGNATURE.lower().encode(), b"")
        if not hmac.compare_digest(sign(body).encode(), given):
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def again() -> Any:
            return next(messages, None) or await receive()

        await app(scope, again, send)

    return wsgi if type(app).__module__.startswith("twicesafe.wsgi") else asgi


@pytest.fixture(params=["stripe", "github", "shopify"])
def sender(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def deliver(
    stage: Stage,
    sender: str,
    event: str,
    attempt: int = 1,
    *,
    forged: bool = False,
    key: str | None = None,
) -> Reply:
    """A delivery as the sender makes it: the id stays, the rest may change."""
    body = {"attempt": attempt} | ({"id": event} if sender == "stripe" else {})
    text = json.dumps(body).encode()
    fields = [(SIGNATURE, sign(b"x" if forged else text))]
    if sender == "github":
        fields.append(("X-GitHub-Delivery", event))
    if sender == "shopify":
        fields += [("X-Shopify-Webhook-Id", event), ("X-Shopify-Event-Id", "the same for all")]
    return stage.send(key, text, "POST", "/hook", *fields)


@pytest.mark.item("O4", "S5")
def test_a_forged_delivery_uses_up_nothing_and_learns_nothing(play: Play, sender: str):
    stage = play(HttpPolicy.webhook(sender), around=verified)
    assert deliver(stage, sender, "e-1", forged=True).status == 401
    assert deliver(stage, sender, "e-1").status == 201
    assert deliver(stage, sender, "e-1", 2).replayed
    assert deliver(stage, sender, "e-1", 3, forged=True).status == 401
    assert deliver(stage, sender, "e-2").status == 201
    assert len(stage.seen) == 2


@pytest.mark.item("O4", "D14")
def test_a_key_of_the_senders_own_does_not_make_it_another_event(play: Play, sender: str):
    stage = play(HttpPolicy.webhook(sender), around=verified)
    assert deliver(stage, sender, "e-1").status == 201
    for key in ("mine", "yours", '"quoted"', "two, keys"):
        assert deliver(stage, sender, "e-1", 2, key=key).replayed
    assert deliver(stage, sender, "e-2", key="mine").status == 201
    assert len(stage.seen) == 2
    assert stage.seen[1].headers["idempotency-key"] == "mine"  # the handler may see it


ID_FIELDS = {"github": "X-GitHub-Delivery", "shopify": "X-Shopify-Webhook-Id"}


@pytest.mark.item("O4", "K10", "D14")
@pytest.mark.parametrize("name", sorted(ID_FIELDS))
def test_an_id_in_two_lines_does_not_make_it_another_event(play: Play, name: str):
    """One signed delivery, caught on its way and sent on with more lines, was a new event each time."""
    stage = play(HttpPolicy.webhook(name), around=verified)
    assert deliver(stage, name, "e-1").status == 201
    text = json.dumps({"attempt": 1}).encode()
    field, signed = ID_FIELDS[name], (SIGNATURE, sign(text))
    for ids in (["e-1", "e-1"], ["e-1", "x"], ["x", "e-1"], ["", "e-1"], ["e-1", ""], ["e-1,x"]):
        lines = [(field, one) for one in ids]
        reply = stage.send(None, text, "POST", "/hook", signed, *lines)
        assert (reply.status, reply.problem) == (400, "key-invalid"), ids
    for same in ("e-1 ", "e-1\t", "\t e-1"):  # blanks around a value are no part of it
        assert stage.send(None, text, "POST", "/hook", signed, (field, same)).replayed
    assert len(stage.seen) == 1


@pytest.mark.item("O4", "K10")
@pytest.mark.parametrize(
    "body",
    [
        b'{"id":"e-1","id":"x"}',
        b'{"id":"x","id":"e-1"}',
        b'{"id":"e-1","ID":"x"}',
        b'{"Id":"x","id":"e-1"}',
        b'{"id":"x","\\u0069d":"e-1"}',
        b'{"id":1.0}',
        b'{"id":NaN}',
        b'{"id":true}',
        b'{"id":{}}',
        b'{"id":""}',
    ],
)
def test_a_body_with_two_ids_or_one_of_another_kind_is_refused(play: Play, body: bytes):
    stage = play(HttpPolicy.webhook("stripe", required=False))
    reply = stage.send(None, body, "POST", "/hook")
    assert (reply.status, reply.problem) == (400, "key-invalid")
    assert stage.seen == []


@pytest.mark.item("O4")
@pytest.mark.parametrize("edge", ["asgi"])
def test_an_id_is_read_wherever_an_application_could_read_it(play: Play):
    """Python's json.loads takes these: as if there were no id, they would run each time."""
    stage = play(HttpPolicy.webhook("stripe", required=False))
    text = '{"id":"e-1","rate":NaN}'
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"):
        stage.send(None, text.encode(encoding), "POST", "/hook")
    stage.send(None, b'{"id":"e-1","text":"\\ud800"}', "POST", "/hook", kind="text/plain")
    assert len(stage.seen) == 1
    for _ in range(2):  # these have none
        stage.send(None, b"id=e-1", "POST", "/hook", kind="application/x-www-form-urlencoded")
        stage.send(None, b'{"ID":"e-1"}', "POST", "/hook")
        stage.send(None, b"", "POST", "/hook")
    assert len(stage.seen) == 7


@pytest.mark.item("O4", "F7")
@pytest.mark.parametrize("edge", ["wsgi"])
def test_a_number_is_not_the_text_of_its_digits(play: Play):
    stage = play(HttpPolicy.webhook("stripe"))
    ids = [b"1", b'"1"', b'"json:1"', b'"json:\\"json:1\\""', b"-0", b"0", b"1" * 200]
    for number in (*ids, *ids):
        stage.send(None, b'{"id":%b}' % number, "POST", "/hook")
    assert len(stage.seen) == len(ids)


@pytest.mark.item("O4")
def test_a_delivery_without_an_id_gets_an_error_that_says_where_it_belongs(play: Play, sender: str):
    stage = play(HttpPolicy.webhook(sender))
    reply = stage.send("a key", b"{}", "POST", "/hook")
    assert reply.problem == "key-missing"
    place = {"stripe": "the member id", "github": "X-GitHub-Delivery", "shopify": "X-Shopify-"}
    assert place[sender] in json.loads(reply.body)["detail"]
    assert stage.seen == []


@pytest.mark.item("O4", "E3")
@pytest.mark.parametrize("status", [302, 400, 404, 500, 503])
def test_only_a_success_is_kept(play: Play, sender: str, status: int):
    stage = play(HttpPolicy.webhook(sender))
    stage.handler = lambda _: Answer(status if len(stage.seen) == 1 else 200, [], [b""])
    answers = [deliver(stage, sender, "e-1", n) for n in range(3)]
    assert [(reply.status, reply.replayed) for reply in answers] == [
        (status, False),
        (200, False),
        (200, True),
    ]


@pytest.mark.item("O4", "C2")
def test_a_delivery_during_the_first_comes_back_later(play: Play, sender: str):
    stage = play(HttpPolicy.webhook(sender))
    go, begun = threading.Event(), threading.Event()

    def slow(_: Seen) -> Answer:
        begun.set()
        assert go.wait(60)
        return Answer()

    stage.handler = slow
    first = stage.pool.submit(deliver, stage, sender, "e-1")
    assert begun.wait(60)
    assert deliver(stage, sender, "e-1", 2).problem == "in-progress"
    go.set()
    assert first.result(120).status == 201
    assert deliver(stage, sender, "e-1", 3).replayed


@pytest.mark.item("O4", "O1")
def test_an_event_is_known_for_as_long_as_it_may_be_sent_again(play: Play, sender: str):
    now = [1_000_000_000]
    stage = play(HttpPolicy.webhook(sender), now=lambda: now[0])
    deliver(stage, sender, "e-1")
    now[0] += 29 * DAY * 1000
    assert deliver(stage, sender, "e-1", 2).replayed


@pytest.mark.item("O4", "S4")
@pytest.mark.parametrize("edge", ["asgi", "wsgi"])  # a proxy asks first who may set such a field
def test_two_hooks_of_github_share_an_id_and_are_both_meant(play: Play):
    stage = play(HttpPolicy.webhook("github", scope=("X-GitHub-Hook-ID",)))
    for hook in ("1", "2", "1", "2"):
        stage.send(None, b"{}", "POST", "/hook", ("X-GitHub-Delivery", "g"), ("X-GitHub-Hook-ID", hook))  # fmt: skip
    assert [seen.headers["x-github-hook-id"] for seen in stage.seen] == ["1", "2"]


@pytest.mark.item("O4")
def test_a_sender_without_a_profile(play: Play):
    stage = play(HttpPolicy.webhook("github", key_from=(HeaderField("webhook-id"),)))
    for _ in range(2):
        stage.send(None, b"{}", "POST", "/hook", ("webhook-id", "msg_35bE2UOtsaBIqUl7VW4mLuR9q2B"))
    assert len(stage.seen) == 1


@pytest.mark.item("K1", "K7", "A1")
def test_the_paypal_profile_is_that_of_its_orders_and_payments(play: Play):
    stage = play(HttpPolicy.paypal())
    name = "PayPal-Request-Id"
    assert stage.send(None, b"{}", "POST", "/", (name, "x" * 108)).status == 201
    assert stage.send(None, b"{}", "POST", "/", (name, "x" * 109)).problem == "key-invalid"
    for _ in range(2):  # the header is for POST
        assert not stage.send(None, b"{}", "PATCH", "/", (name, "p")).replayed
    assert HttpPolicy.paypal().retention == 45 * DAY


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.item("O4", "S5")
@pytest.mark.parametrize(
    "name, field",
    [
        ("github", "HTTP_X_HUB_SIGNATURE_256"),
        ("shopify", "HTTP_X_SHOPIFY_HMAC_SHA256"),
        ("stripe", "HTTP_STRIPE_SIGNATURE"),
    ],
)
def test_the_checks_of_the_examples_refuse_and_never_raise(name: str, field: str):
    """What people copy: the part of each example that checks a signature, with hostile headers."""
    source = (EXAMPLES / f"webhook_{name}.py").read_text().partition("\nwith Receiver.open")[0]
    example: dict[str, Any] = {}
    exec(compile(source, name, "exec"), example)
    ran: list[str] = []

    def app(environ: Any, _: Any) -> list[bytes]:
        ran.append("app")
        return [b""]

    def status(given: str) -> str:
        ran.clear()
        environ = {field: given, "CONTENT_LENGTH": "2", "wsgi.input": io.BytesIO(b"{}")}
        example["signed"](app)(environ, lambda said, _: ran.append(said))
        assert len(ran) == 1
        return ran[0]

    hostile = ["", "\xe9", "sha256=\xff", "t=\xb2,v1=\xe9", "t=" + "9" * 5000 + ",v1=0", "v1=0"]
    for given in (*hostile, f"t={'9' * 400},v1=0", "t=1", "t=,v1=", ",,=,"):
        assert status(given)[:3] in ("400", "401"), given
    if name == "stripe":
        now = str(int(time.time()))
        text = f"{now}.{{}}".encode()
        made = hmac.new(example["SECRET"], text, hashlib.sha256).hexdigest()
        assert status(f"t={now},v1={made}") == "app"
        assert status(f"t={now},v1={made},v1=old") == status(f"t={now},v1=old,v1={made}") == "app"
        assert status(f"t={now},v1={made},t=1").startswith("400")
        assert status(f"t=1,v1={made},t={now}").startswith("400")
    else:
        assert status(example["signature"](b"{}")) == "app"
