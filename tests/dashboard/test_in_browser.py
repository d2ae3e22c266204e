"""The dashboard in a real browser: readable at every width, light and dark, and usable without JavaScript."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests.consumers.test_dead_letters import Place
from tests.dashboard.conftest import ALL
from tests.dashboard.test_pages import broken
from tests.house.browser import opened
from tests.polling import until
from twicesafe import Key, Receiver, Steps, SuspendedError
from twicesafe.consumers import DeadLetter
from twicesafe.dashboard import dashboard
from twicesafe.testing import FakeClock

DESKTOP, TABLET, PHONE = 1200, 760, 400


@contextlib.contextmanager
def served(app: Any) -> Iterator[str]:
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off", access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def story(receiver: Receiver, clock: FakeClock, held: Callable[..., Key]) -> Key:
    """A store with something on every page, long and hostile names included."""
    for n in range(60):
        clock.advance(7)
        receiver.process(Key(f"order-{n}", scope=("acme", "POST /charges")), int)
        receiver.process(Key(f"order-{n // 2}", scope=("acme", "POST /charges")), int)
    with contextlib.suppress(TimeoutError):
        receiver.process(Key("x" * 200, scope=("t" * 120,)), broken)
    held("<b>bold</b>")
    key = held("tx-1", "acme")
    clock.advance(1800)
    return key


def test_every_page_is_readable_and_fetches_nothing(receiver: Receiver, story: Key):
    pages = (
        "",
        "keys",
        f"keys/{story.id.hex()}",
        "keys?state=parked",
        "failures",
        "actions/release",
        "outbox",
        "running",
        "dead-letters",
        "audit",
        "nope",
    )
    said: list[str] = []
    with (
        served(dashboard(receiver, resolve_access=lambda _: ALL)) as home,
        opened(home) as browser,
    ):
        browser.page.on("console", lambda message: said.append(message.text))
        browser.page.on("pageerror", lambda error: said.append(str(error)))
        seen = {path: browser.look(path, DESKTOP, TABLET, PHONE) for path in pages}
        wide = {
            f"{path or 'overview'} at {width} px"
            for path, looks in seen.items()
            for width, look in zip((DESKTOP, TABLET, PHONE), looks, strict=True)
            if look["page"] > 0
        }
        paper = []
        for scheme in ("light", "dark"):
            browser.page.emulate_media(color_scheme=scheme)
            browser.page.goto(home)
            style = "getComputedStyle(document.body)"
            paper.append(browser.page.evaluate(f"[{style}.backgroundColor, {style}.color]"))
    assert wide == set()
    assert browser.left == []
    assert [line for line in browser.failed if "/nope" not in line] == []
    assert [
        line for line in said if "404" not in line
    ] == []  # a refused style or script is said here
    assert paper[0] != paper[1]


def test_an_operator_without_javascript(receiver: Receiver, story: Key):
    with (
        served(dashboard(receiver, resolve_access=lambda _: ALL)) as home,
        opened(home, java_script_enabled=False) as browser,
    ):
        page = browser.page
        page.goto(home)
        page.get_by_role("link", name="2 held").click()
        page.get_by_role("link", name="tx-1").click()
        page.get_by_text("Resolve", exact=True).click()
        form = page.locator("form[action$=resolve]")
        form.get_by_label("Value, or body").fill('"ch_42"')
        form.get_by_label("Your name").fill("ana")
        form.get_by_label("Why").fill("seen at the bank")
        form.get_by_role("button").click()
        assert page.get_by_role("heading").inner_text().startswith("1 key resolved")
        page.get_by_role("link", name="Back to the key").click()
        assert "ana resolved the key" in page.inner_text("ol")
        page.goto(f"{home}keys?state=held")
        page.get_by_role("link", name="Release…").click()
        assert page.get_by_role("heading", level=1).inner_text() == "Release 1 key?"
        page.get_by_label("Your name").fill("ana")
        page.get_by_label("Why").fill("not charged")
        page.get_by_role("button", name="Release 1 key").click()
        assert page.get_by_role("heading").inner_text() == "1 key changed"
    assert receiver.process(story, broken).value == "ch_42"
    assert [entry.action for entry in receiver.audit_log()] == ["release", "resolve"]


def test_names_with_line_ends_survive_a_form(receiver: Receiver, held: Callable[..., Key]):
    """Browsers send every line end of a hidden field as two characters."""

    @receiver.durable(key=lambda order: order)
    def ship(steps: Steps, order: str) -> Any:
        return steps.wait("the\nboss", timeout=86400)

    with pytest.raises(SuspendedError):
        ship("o-1")
    held("tx-1", "a\nb")
    with (
        served(dashboard(receiver, resolve_access=lambda _: ALL)) as home,
        opened(home) as browser,
    ):
        page = browser.page
        page.goto(f"{home}keys/{ship.key('o-1').id.hex()}")
        page.get_by_label("Your name").first.fill("ana")
        page.get_by_label("Why").first.fill("ok")
        page.get_by_role("button", name="Approve").click()
        page.goto(f"{home}actions/release?scope=a%0Ab")
        page.get_by_label("Your name").fill("ana")
        page.get_by_label("Why").fill("not charged")
        page.get_by_role("button", name="Release 1 key").click()
        assert page.get_by_role("heading").inner_text() == "1 key changed"
    assert ship("o-1") is True


def test_dead_letters_are_replayed_without_javascript(
    receiver: Receiver, valkey: Any, tmp_path: Path
):
    place = Place(valkey, receiver, f"sqlite:///{tmp_path}/keys.db")
    for id_ in ("o-1", "o-2"):
        place.send(id_, body="x" * 300)

    def give_up(_: Any) -> None:
        raise DeadLetter("no such customer " + "y" * 200)

    assert place.consume(give_up).dead == 2
    app = dashboard(
        receiver,
        resolve_access=lambda _: ALL,
        dead_letters=place.dead_url,
        consumers=[place.url],
    )
    with served(app) as home, opened(home, java_script_enabled=False) as browser:
        page = browser.page
        for path in ("dead-letters", "dead-letters/replay", "running"):
            looks = browser.look(path, DESKTOP, PHONE)
            assert [look["page"] for look in looks if look["page"] > 0] == [], path
        page.goto(f"{home}dead-letters")
        page.get_by_label("Reason contains").fill("no such customer")
        page.get_by_role("button", name="Filter").click()
        page.get_by_role("link", name="Replay…").last.click()
        assert page.get_by_role("heading", level=1).inner_text() == "Replay 2 dead letters?"
        page.get_by_label("Your name").fill("ana")
        page.get_by_label("Why").fill("they exist now")
        page.get_by_role("button", name="Replay 2 letters").click()
        assert page.get_by_role("heading").inner_text() == "2 letters replayed"
        page.get_by_role("link", name="Running").click()
        assert "billing" in page.inner_text("main")
    assert [entry.by for entry in receiver.audit_log()] == ["ana", "ana"]
    assert place.consume(lambda message: None).ran == 2


@pytest.mark.attack("D18")
def test_a_page_of_another_site_can_neither_frame_nor_send(receiver: Receiver, story: Key):
    """A browser that is logged in visits another site, which tries to use the dashboard."""
    app = dashboard(receiver, resolve_access=lambda _: ALL)
    with served(app) as home, served(_evil) as elsewhere, opened(home) as browser:
        page, other = browser.page, elsewhere.replace("127.0.0.1", "localhost")
        page.goto(home)  # the form's cookie is set
        page.goto(f"{other}?{home}keys/{story.id.hex()}/release")
        page.wait_for_load_state("networkidle")
        assert "Nothing was changed" in page.content()
        page.goto(f"{other}frame?{home}")
        frame = page.frames[-1]
        assert "checks" not in frame.content()
    assert receiver.audit(story) == []


async def _evil(scope: Any, _: Any, send: Any) -> None:
    target = scope["query_string"].decode()
    body = (
        f'<iframe src="{target}"></iframe>'
        if scope["path"] == "/frame"
        else f'<form method="post" action="{target}"><input name="by" value="m"><input name="why" value="m">'
        "</form><script>document.forms[0].submit()</script>"
    ).encode()
    headers = [(b"content-type", b"text/html"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
