"""The dashboard under attack: D17 to D20 of the list of attacks."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from starlette.exceptions import HTTPException

import twicesafe.dashboard
from tests.dashboard.conftest import ALL, Visitor, words
from twicesafe import Key, Receiver
from twicesafe.dashboard import Access, dashboard
from twicesafe.dashboard._security import HEADERS, host_of, refusal

Enter = Callable[..., Visitor]
SIGNED = {"by": "ana", "why": "w"}
PAYLOAD = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'><svg onload=alert(1)>"


class Tags(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))

    handle_startendtag = handle_starttag


def harmless(page: str) -> None:
    tags = Tags()
    tags.feed(page)
    for tag, attributes in tags.found:
        assert tag not in ("script", "iframe", "object", "embed", "base", "style"), tag
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        assert attributes.get("src", "/static/mark.svg") == "/static/mark.svg"
        assert (attributes.get("href") or "/").startswith(("/", "#"))


PATHS = (
    "/",
    "/keys",
    "/keys?state=parked",
    "/failures",
    "/audit",
    "/outbox",
    "/actions/release",
    "/actions/resolve?state=held",
)


@pytest.mark.attack("D18")
async def test_what_senders_and_operators_wrote_is_only_text(
    visit: Enter, receiver: Receiver, held: Any
):
    error = type(PAYLOAD.replace('"', ""), (Exception,), {})

    def broken() -> None:
        raise error

    key = held(PAYLOAD, PAYLOAD)
    with pytest.raises(error):
        receiver.process(Key("tx-2", scope=(PAYLOAD,)), broken)
    other = held("tx-3")
    receiver.release(other, by=PAYLOAD, why=PAYLOAD)
    visitor = visit(Access(level="all", show_keys=True, user=PAYLOAD))
    one = f"/keys/{key.id.hex()}"
    for path in (
        *PATHS,
        one,
        f"/keys/{other.id.hex()}",
        f"/keys/{receiver.key(Key('tx-2', scope=(PAYLOAD,))).id.hex()}",
    ):
        page = await visitor.get(path)
        assert page.status_code == 200
        harmless(page.text)
    assert PAYLOAD[:20] in words(await visitor.get("/keys"))
    for field in ("value", "scope", "error", "since", "state"):
        page = await visitor.client.get("/keys", params={field: PAYLOAD})
        harmless(page.text)
    harmless((await visitor.send(f"{one}/release", one, why=PAYLOAD)).text)
    harmless((await visitor.get(f"/{PAYLOAD}")).text)


@pytest.mark.attack("D18")
async def test_a_form_from_elsewhere_changes_nothing(visit: Enter, receiver: Receiver, held: Any):
    key, visitor = held("tx-1"), visit()
    path = f"/keys/{key.id.hex()}/release"
    await visitor.get("/keys")
    token = visitor.client.cookies["twicesafe_form"]
    for fields, headers in (
        ({}, {}),
        ({"token": ""}, {}),
        ({"token": "x" * len(token)}, {}),
        ({"token": token}, {"origin": "https://evil.example"}),
        ({"token": token}, {"origin": "null"}),
        ({"token": token}, {"origin": "http://[::1"}),
        ({"token": token}, {"origin": "http://localhost.evil.example"}),
        ({"token": token}, {"sec-fetch-site": "cross-site"}),
        ({"token": token}, {"sec-fetch-site": "same-site"}),
        ({"token": token}, {"sec-fetch-site": "none"}),
        ({"token": token}, {"cookie": ""}),
    ):
        answer = await visitor.client.post(path, data={**fields, **SIGNED}, headers=headers)
        assert answer.status_code == 403, (fields, headers)
        assert "Nothing was changed" in words(answer)
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/json"):
        sent = await visitor.client.post(
            path, content=f"token={token}&by=a&why=b", headers={"content-type": kind}
        )
        assert sent.status_code == 415
    assert receiver.audit(key) == []
    right = {"origin": "http://localhost", "sec-fetch-site": "same-origin"}
    done = await visitor.client.post(path, data={"token": token, **SIGNED}, headers=right)
    assert done.status_code == 200


@pytest.mark.attack("D18")
async def test_nothing_is_changed_by_a_get(visit: Enter, receiver: Receiver, held: Any):
    key, visitor = held("tx-1"), visit()
    for path in (f"/keys/{key.id.hex()}/release?by=a&why=b", "/actions/release?by=a&why=b&count=1"):
        await visitor.get(path)
    assert receiver.audit(key) == []


@pytest.mark.attack("D18")
async def test_cookies_are_not_sent_from_elsewhere_nor_read_by_script(visit: Enter):
    (cookie,) = (await visit().get("/")).headers.get_list("set-cookie")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie


@pytest.mark.attack("D18")
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "",
        "localhost:80:80",
        "[::2]",
        "localhost@evil",
    ],
)
async def test_another_host_name_gets_nothing(receiver: Receiver, host: str):
    """DNS rebinding: a page of another site has its own name point to this machine."""
    asked: list[Any] = []
    app = dashboard(receiver, resolve_access=lambda request: asked.append(request) or "all")
    visitor = Visitor(app)
    answer = await visitor.get("/", host=host)
    assert answer.status_code == 421
    assert "<" not in answer.text
    assert asked == []  # not even access is asked for
    await visitor.client.aclose()


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8090", "127.0.0.1:1", "[::1]:8090", "[::1]"]
)
async def test_its_own_names_are_answered(receiver: Receiver, host: str):
    visitor = Visitor(dashboard(receiver, resolve_access=lambda _: ALL))
    assert (await visitor.get("/", host=host)).status_code == 200
    await visitor.client.aclose()


def test_the_host_of_a_field():
    assert host_of("Ops.Example.com:443") == "ops.example.com"
    assert host_of("[::1]:80") == "[::1]"
    assert host_of("::1") == "::1"


@pytest.mark.attack("D18")
async def test_every_answer_forbids_frames_and_scripts(visit: Enter, receiver: Receiver, held: Any):
    key, visitor = held("tx-1"), visit()
    answers = [
        await visitor.get(path)
        for path in (*PATHS, "/nope", "/static/style.css", f"/keys/{key.id.hex()}")
    ]
    answers.append(await visitor.get("/", host="evil.example"))
    answers.append(await visitor.client.post(f"/keys/{key.id.hex()}/release"))
    answers.append(await visitor.client.put("/keys"))
    answers.append(await visit("forbidden").get("/"))
    for answer in answers:
        for name, value in HEADERS.items():
            assert answer.headers.get_list(name) == [value], answer.url
    policy = HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "script-src" not in policy


@pytest.mark.attack("D18")
async def test_the_forbidden_see_nothing(visit: Enter, receiver: Receiver, held: Any):
    key = held("tx-1")
    visitor = visit("forbidden")
    for path in (*PATHS, f"/keys/{key.id.hex()}"):
        page = await visitor.get(path)
        assert page.status_code == 403
        assert key.short not in page.text
        assert "sqlite" not in page.text
    sent = await visitor.send(f"/keys/{key.id.hex()}/release", **SIGNED)
    assert sent.status_code == 403
    assert receiver.audit(key) == []


@pytest.mark.attack("D18")
async def test_readers_cannot_act(visit: Enter, receiver: Receiver, held: Any):
    key = held("tx-1")
    visitor = visit("read-only")
    for path in ("/", "/keys", f"/keys/{key.id.hex()}", "/failures", "/outbox", "/audit"):
        page = await visitor.get(path)
        assert page.status_code == 200
        assert 'method="post"' not in page.text
    assert (await visitor.get("/actions/release")).status_code == 403
    for path in (f"/keys/{key.id.hex()}/release", "/actions/release", f"/outbox/{'0' * 32}/skip"):
        sent = await visitor.send(path, count="1", state="held", **SIGNED)
        assert sent.status_code == 403
    assert receiver.audit(key) == []


async def test_resolve_access_may_ask_for_a_password(receiver: Receiver):
    def ask(_: Any) -> Any:
        raise HTTPException(401, "Log in.", {"www-authenticate": 'Basic realm="operators"'})

    page = await Visitor(dashboard(receiver, resolve_access=ask)).get("/keys")
    assert (page.status_code, "Log in." in words(page)) == (401, True)
    assert page.headers["www-authenticate"] == 'Basic realm="operators"'


@pytest.mark.attack("D18")
@pytest.mark.parametrize("answer", [None, True, "ALL", "admin", "", 1, Access(level="root")])  # type: ignore[arg-type]
async def test_an_answer_that_is_no_level_is_no_access(receiver: Receiver, answer: Any):
    visitor = Visitor(dashboard(receiver, resolve_access=lambda _: answer))
    with pytest.raises(twicesafe.errors.ConfigurationError, match="resolve_access returned"):
        await visitor.get("/keys")
    await visitor.client.aclose()


@pytest.mark.attack("D18")
async def test_a_large_form_is_not_read_whole(visit: Enter, held: Any):
    key = held("tx-1")
    visitor = visit()
    sent = await visitor.send(f"/keys/{key.id.hex()}/release", by="a", why="x" * 500_000)
    assert (sent.status_code, "more than 262,144 bytes" in words(sent)) == (413, True)
    many = "&".join(f"a{n}=1" for n in range(500))
    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert (
        await visitor.client.post("/actions/release", content=many, headers=kind)
    ).status_code == 400


@pytest.mark.attack("D17")
async def test_without_permission_no_key_is_on_any_page(
    visit: Enter, receiver: Receiver, held: Any, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    canary = "CANARY-7f3a"
    key = held(f"{canary}-value", f"{canary}-tenant")
    receiver.process(Key(f"{canary}-done"), lambda: f"{canary}-result")
    receiver.release(held(f"{canary}-2"), by="ana", why="ok")
    visitor = visit("all")
    pages = [await visitor.get(path) for path in (*PATHS, f"/keys/{key.id.hex()}")]
    pages += [await visitor.get(f"/keys/{receiver.key(Key(f'{canary}-done')).id.hex()}")]
    one = f"/keys/{key.id.hex()}"
    pages += [await visitor.send(f"{one}/release", one, **SIGNED)]
    pages += [
        await visitor.send(f"{one}/resolve", one, kind="json", answer=f'"{canary}"', **SIGNED)
    ]
    for page in pages:
        assert canary not in page.text, page.url
        assert key.short in page.text or page.status_code == 200
    assert canary not in caplog.text
    shown = await visit(ALL).get(f"/keys/{receiver.key(Key(f'{canary}-done')).id.hex()}")
    assert f"{canary}-done" in shown.text
    assert f"{canary}-result" not in shown.text  # results are never shown


@pytest.mark.attack("D19")
async def test_hidden_characters_are_shown_as_escapes(visit: Enter, held: Any):
    held("a\u202e\x1b[31m\u200bz", "ten\u2066ant")
    page = (await visit().get("/keys")).text
    assert r"a\u202e\x1b[31m\u200bz" in page
    assert r"ten\u2066ant" in page
    assert not re.search("[\u202e\x1b\u200b\u2066]", page)


@pytest.mark.attack("D20")
def test_secrets_are_compared_in_constant_time():
    """No secret of the dashboard is compared by ``==``: `hmac.compare_digest`, or a look-up by its hash."""
    folder = Path(twicesafe.dashboard.__file__).parent
    secrets = {"token", "cookie", "given", "field", "secret", "digest"}
    found = []
    for name in ("_login.py", "_security.py", "_visits.py", "_app.py", "_serving.py"):
        for node in ast.walk(ast.parse((folder / name).read_text("utf-8"))):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
                names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                found += [f"{name}:{node.lineno}"] if names & secrets else []
    assert found == []
    assert "compare_digest" in (folder / "_login.py").read_text("utf-8")
    assert refusal({"host": "localhost"}, "a", "b")
    assert not refusal({"host": "localhost"}, "a", "a")


def test_a_proxy_that_drops_the_port_is_named():
    """nginx's `$host` has no port. On another port than 443 each form was refused as one of another site."""
    sent = {"sec-fetch-site": "same-origin", "origin": "https://ops.example.com:8443"}
    refused = refusal({**sent, "host": "ops.example.com"}, "a", "a")
    assert "a proxy in front of the dashboard does not pass on the host" in refused
    assert not refusal({**sent, "host": "ops.example.com:8443"}, "a", "a")
