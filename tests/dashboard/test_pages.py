"""Every page, as a visitor without JavaScript loads it."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.consumers.test_dead_letters import Place
from tests.dashboard.conftest import ALL, HIDDEN, Visitor, words
from tests.regions.test_unreadable_records import damage
from twicesafe import AsyncReceiver, Key, Outbox, OutboxRelay, Policy, Receiver
from twicesafe.consumers import DeadLetter, DeadLetters
from twicesafe.dashboard import Access, dashboard
from twicesafe.errors import ConfigurationError
from twicesafe.testing import FakeClock

Enter = Callable[..., Visitor]
SIGNED = {"by": "ana", "why": "customer is gone"}


def broken() -> None:
    raise TimeoutError


async def test_an_empty_store(visit: Enter):
    visitor = visit()
    assert "All checks pass" in words(await visitor.get("/"))
    assert "There are no keys yet" in words(await visitor.get("/keys"))
    assert "There is no outbox in this store" in words(await visitor.get("/outbox"))
    assert "No operator has changed a key" in words(await visitor.get("/audit"))
    assert "No source of dead letters is configured" in words(await visitor.get("/dead-letters"))


async def test_keys_are_found_by_value_scope_state_error_and_age(
    visit: Enter, receiver: Receiver, held: Any, clock: FakeClock
):
    receiver.process(Key("old", scope=("acme",)), int)
    clock.advance(3600)
    held("tx-1", "acme", "pay")
    with contextlib.suppress(TimeoutError):
        receiver.process(Key("tx-2", scope=("globex",)), broken)
    visitor = visit()

    async def found(query: str) -> list[str]:
        page = await visitor.get(f"/keys?{query}")
        return re.findall(r'class="key"[^>]*><span>([^<]*)</span>', page.text)

    assert await found("") == ["tx-2", "tx-1", "old"]
    assert await found("value=tx-1") == ["tx-1"]
    assert await found("scope=acme") == ["tx-1", "old"]
    assert await found("scope=acme&scope=pay") == ["tx-1"]
    assert await found("state=held&state=parked") == ["tx-2", "tx-1"]
    assert await found("error=Timeout") == ["tx-2"]
    assert await found(f"id={receiver.key(Key('tx-2', scope=('globex',))).short.upper()}") == [
        "tx-2"
    ]
    assert await found("cause=lease_expired") == []
    assert await found("value=tx-9") == []
    assert "2 keys match" in words(await visitor.get("/keys?state=held&state=parked"))


async def test_a_filter_that_cannot_be_read_shows_nothing(visit: Enter, receiver: Receiver):
    receiver.process("tx-1", int)
    page = await visit().get("/keys?since=soon")
    assert page.status_code == 400
    assert "soon is not a duration" in words(page)
    assert "tx-1" not in page.text


async def test_pages_of_keys_newest_first(visit: Enter, receiver: Receiver, clock: FakeClock):
    for n in range(120):
        clock.advance(1)
        receiver.process(f"tx-{n:03}", int)
    visitor, path, seen = visit(), "/keys", []
    while path:
        page = await visitor.get(path)
        seen += re.findall(r"<span>(tx-\d+)</span>", page.text)
        following = re.search(r'href="([^"]+)" rel="next"', page.text)
        path = unescape(following[1]) if following else ""
    assert seen == [f"tx-{n:03}" for n in reversed(range(120))]


async def test_a_cursor_that_is_not_ours_is_an_error_page(visit: Enter):
    assert (await visit().get("/keys?after=x%27--")).status_code == 400


async def test_one_key_with_its_timeline(
    visit: Enter, receiver: Receiver, held: Any, clock: FakeClock
):
    key = held("tx-1", "acme")
    clock.advance(60)
    receiver.release(key, by="ana", why="not charged")
    clock.advance(60)
    receiver.process(key, int)
    text = words(await visit().get(f"/keys/{key.id.hex()}"))
    assert text.index("First delivery claimed") < text.index("ana released the key")
    assert text.index("not charged (it was held)") < text.index("Answer recorded")


@pytest.mark.parametrize("id_", ["00" * 32, "00" * 16, "00", "zz", "0" * 63])
async def test_a_key_that_is_not_there(visit: Enter, id_: str):
    page = await visit().get(f"/keys/{id_}")
    assert page.status_code == 404
    assert "There is no record of this key" in words(page)


async def test_a_forgotten_key_still_has_a_page(visit: Enter, receiver: Receiver):
    receiver.process("tx-1", int)
    receiver.forget("tx-1", by="ana", why="erasure request")
    visitor = visit()
    listed = re.search(r'href="(/keys/[0-9a-f]+)"', (await visitor.get("/keys")).text)
    assert listed is not None
    for path in (listed[1], f"/keys/{receiver.key('tx-1').id.hex()}"):
        page = await visitor.get(path)
        assert page.status_code == 200
        assert "Forgotten" in page.text
        assert "tx-1" not in page.text
        assert "<form" not in page.text  # its text is gone, so nothing can be done to it


@pytest.mark.parametrize("engine", ["postgres_url", "valkey_url"])
async def test_on_a_server_too(engine: str, request: pytest.FixtureRequest):
    url = request.getfixturevalue(engine)
    with Receiver.open(url, policy=Policy(max_attempts=1)) as receiver:
        with contextlib.suppress(TimeoutError):
            receiver.process("tx-1", broken)
        receiver.process("tx-2", int)
        receiver.forget("tx-2", by="ana")
        visitor = Visitor(dashboard(receiver, resolve_access=lambda _: ALL))
        assert "tx-1" in (await visitor.get("/keys?state=parked")).text
        for path in re.findall(r'href="(/keys/[0-9a-f]+)"', (await visitor.get("/keys")).text):
            assert (await visitor.get(path)).status_code == 200
        done = await visitor.send(
            "/actions/release", "/actions/release", count="1", by="ana", why="ok"
        )
        assert "1 key changed" in words(done)
        assert "ana" in words(await visitor.get("/audit"))
        assert (await visitor.get("/")).status_code == 200
        await visitor.client.aclose()


async def test_an_async_receiver():
    async with AsyncReceiver.open("memory://") as receiver:

        async def work() -> int:
            return 1

        key = receiver.key("tx-1")
        await receiver.process("tx-1", work)
        app = dashboard(receiver, resolve_access=lambda _: ALL)
        visitor = Visitor(app)
        assert "completed" in words(await visitor.get("/"))
        assert "tx-1" in (await visitor.get("/keys?value=tx-1")).text
        page = f"/keys/{key.id.hex()}"
        done = await visitor.send(f"{page}/forget", page, by="ana", why="asked")
        assert "1 key forgotten" in words(done)
        assert "Outbox" not in words(await visitor.get("/"))  # this store cannot have one
        await visitor.client.aclose()


async def test_access_may_be_decided_by_a_coroutine(receiver: Receiver):
    async def resolve(request: Any) -> Any:
        return "all" if request.headers.get("x-role") == "ops" else "forbidden"

    visitor = Visitor(dashboard(receiver, resolve_access=resolve))
    assert (await visitor.get("/")).status_code == 403
    assert (await visitor.get("/", **{"x-role": "ops"})).status_code == 200
    await visitor.client.aclose()


async def test_it_can_be_mounted_under_a_path(receiver: Receiver, held: Any):
    from starlette.applications import Starlette
    from starlette.routing import Mount

    key = held("tx-1")
    app = Starlette(routes=[Mount("/ops/keys", dashboard(receiver, resolve_access=lambda _: ALL))])
    visitor = Visitor(app)
    home = await visitor.get("/ops/keys/")
    links = {unescape(link) for link in re.findall(r'(?:href|src|action)="(/[^"]*)"', home.text)}
    assert all(link.startswith("/ops/keys/") for link in links)
    for link in links:
        assert (await visitor.get(link)).status_code == 200, link
    page = f"/ops/keys/keys/{key.id.hex()}"
    done = await visitor.send(f"{page}/release", page, by="ana", why="ok")
    assert "1 key released" in words(done)
    assert "Path=/ops/keys" in home.headers["set-cookie"]
    await visitor.client.aclose()


async def test_a_store_that_does_not_answer_is_said(
    visit: Enter, receiver: Receiver, monkeypatch: Any
):
    from twicesafe.errors import StoreUnavailableError

    def down(*_: Any) -> Any:
        raise StoreUnavailableError("the store is away")

    receiver.process("tx-1", int)
    visitor = visit()
    monkeypatch.setattr(receiver.store, "perform", down)
    page = await visitor.get("/keys")
    assert page.status_code == 503
    assert "the store is away" in words(page)
    home = await visitor.get("/")
    assert home.status_code == 200
    assert "1 check needs a look" in words(home)


@pytest.mark.parametrize("path", ["/", "/keys", "/keys/" + 64 * "0", "/actions/release", "/audit"])
async def test_a_closed_receiver_is_not_the_visitors_fault(path: str):
    receiver = Receiver.open("memory://")
    visitor = Visitor(dashboard(receiver, resolve_access=lambda _: ALL))
    receiver.close()
    page = await visitor.get(path)
    assert page.status_code == 503
    assert "this process is about to stop" in words(page)
    await visitor.client.aclose()


async def test_skip_on_a_page_that_was_left_open_drops_no_other_message(
    visit: Enter, receiver: Receiver, tmp_path: Path, clock: FakeClock
):
    def refuse(_: Any) -> None:
        raise ValueError("no such customer")

    with Outbox.open(f"sqlite:///{tmp_path}/keys.db") as outbox:
        with contextlib.closing(sqlite3.connect(tmp_path / "keys.db")) as connection, connection:
            connection.execute("BEGIN")
            for body in ("first", "second"):
                outbox.add(connection, topic="invoices", body=body, key="ann")
        relay = OutboxRelay(receiver.store, refuse, max_attempts=1)
        relay.drain()
        visitor = visit()
        (lane,) = outbox.parked()
        shown = dict(re.findall(HIDDEN, (await visitor.get("/outbox")).text))
        assert (await visitor.send(f"/outbox/{lane.lane}/skip", "/outbox", **SIGNED)).is_success
        clock.advance(60)
        relay.drain()
        (other,) = outbox.parked()
        assert (other.lane, other.message_id != lane.message_id) == (lane.lane, True)
        late = await visitor.client.post(f"/outbox/{lane.lane}/skip", data={**shown, **SIGNED})
        assert (late.status_code, "was parked again" in words(late)) == (409, True)
        assert outbox.parked() == [other]


async def test_the_text_of_a_refusal_is_for_who_may_see_keys(
    visit: Enter, receiver: Receiver, tmp_path: Path
):
    """It may contain a part of the message. The class of the error is shown to all, as for dead letters."""

    def refuse(_: Any) -> None:
        raise ValueError("no customer ann@example.com: see the log")

    with Outbox.open(f"sqlite:///{tmp_path}/keys.db") as outbox:
        with contextlib.closing(sqlite3.connect(tmp_path / "keys.db")) as connection, connection:
            connection.execute("BEGIN")
            outbox.add(connection, topic="invoices", body="x", key="ann")
        OutboxRelay(receiver.store, refuse, max_attempts=1).drain()
        hidden = words(await visit(Access(level="all")).get("/outbox"))
        shown = words(await visit(Access(level="all", show_keys=True)).get("/outbox"))
    assert "ValueError: no customer ann@example.com: see the log" in shown
    assert "ValueError" in hidden
    assert "customer" not in hidden


async def test_the_outbox_and_its_parked_lanes(visit: Enter, receiver: Receiver, tmp_path: Path):
    def refuse(_: Any) -> None:
        raise ValueError("no such customer")

    with Outbox.open(f"sqlite:///{tmp_path}/keys.db") as outbox:
        with contextlib.closing(sqlite3.connect(tmp_path / "keys.db")) as connection, connection:
            connection.execute("BEGIN")
            for key in ("ann", "bob"):
                outbox.add(connection, topic="invoices", body="x", key=key)
        OutboxRelay(outbox.store, refuse, max_attempts=1).drain()
        visitor = visit()
        page = await visitor.get("/outbox")
        assert "2 in 2 lanes" in words(page)
        assert "no such customer" in words(page)
        first, second = (lane.lane for lane in outbox.parked())
        done = await visitor.send(f"/outbox/{first}/retry", "/outbox", by="ana", why="fixed")
        assert (done.status_code, "The lane continues" in words(done)) == (200, True)
        skipped = await visitor.send(f"/outbox/{second}/skip", "/outbox", by="ana", why="gone")
        assert "after the refused message" in words(skipped)
        assert outbox.parked() == []
        audit = await visitor.get("/audit")
        assert ("retry lane" in words(audit), "skip lane" in words(audit)) == (True, True)
        assert audit.text.count('href="/outbox"') == 3, "the menu, and two actions on lanes"
        again = await visitor.send(f"/outbox/{first}/retry", "/outbox", by="ana", why="fixed")
        assert (again.status_code, "Nothing was changed" in words(again)) == (409, True)
        assert (
            await visitor.send("/outbox/zz/retry", "/outbox", by="a", why="b")
        ).status_code == 400
        assert (
            await visitor.send(f"/outbox/{first}/drop", "/outbox", by="a", why="b")
        ).status_code == 404


async def test_to_look_creates_no_tables(visit: Enter, receiver: Receiver, tmp_path: Path):
    receiver.process("tx-1", int)

    def tables() -> list[Any]:
        with contextlib.closing(sqlite3.connect(tmp_path / "keys.db")) as connection:
            return connection.execute("SELECT name FROM sqlite_master ORDER BY 1").fetchall()

    before = tables()
    visitor = visit()
    for path in ("/", "/keys", "/outbox", "/audit", "/actions/release"):
        await visitor.get(path)
    assert tables() == before


async def test_dead_letters(visit: Enter, valkey: Any, receiver: Receiver, tmp_path: Path):
    """Those of a real broker: a stream whose consumer gave up."""

    def handle(_: Any) -> None:
        raise DeadLetter("no such <b>customer</b>")

    place = Place(valkey, receiver, f"sqlite:///{tmp_path}/keys.db")
    place.send("order-7", body="secret-body")
    assert place.consume(handle).dead == 1
    with DeadLetters.open(place.dead_url) as dead:
        before = [letter.message.id for letter in dead.look()]
    page = await visit(dead_letters=place.dead_url).get("/dead-letters")
    assert "no such <b>customer</b>" in words(page)
    assert "secret-body" in page.text
    (link,) = re.findall(r'href="(/keys/[0-9a-f]+)"', page.text)
    visitor = visit(Access(level="all"), dead_letters=place.dead_url)
    assert "parked" in words(await visitor.get(link))
    hidden = await visitor.get("/dead-letters")
    assert "DeadLetter" in words(hidden)
    for secret in ("secret-body", "customer", "order-7"):
        assert secret not in hidden.text
    with DeadLetters.open(place.dead_url) as dead:
        # Looking changed nothing.
        assert [letter.message.id for letter in dead.look()] == before != []


def test_what_cannot_be_a_dashboard_is_refused(receiver: Receiver):
    with pytest.raises(ConfigurationError, match="needs a Receiver"):
        dashboard("sqlite:///keys.db", resolve_access=lambda _: "all")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="resolve_access must be a function"):
        dashboard(receiver, resolve_access="all")  # type: ignore[arg-type]
    for hosts in ("ops.example.com", (), ("*",), ("https://ops.example.com",), ("ops:80",)):
        with pytest.raises(ConfigurationError, match="hosts"):
            dashboard(receiver, resolve_access=lambda _: "all", hosts=hosts)


async def test_keys_that_cannot_be_read_are_named(visit: Enter, receiver: Receiver, tmp_path: Path):
    receiver.process("k0", int)
    receiver.process("k1", int)
    damage(f"sqlite:///{tmp_path}/keys.db", "k1")
    page = words(await visit().get("/keys"))
    assert f"1 record cannot be read ({Key('k1').short})" in page
    assert "k0" in page
    page = words(await visit().get(f"/keys?id={Key('k1').short}"))
    assert f"1 record cannot be read ({Key('k1').short})" in page
    assert "No key matches" not in page
