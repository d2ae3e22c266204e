"""Dead letters on the dashboard: a dry run, who and why, and the same actions as on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.consumers.test_dead_letters import Place
from tests.dashboard.conftest import ALL, Visitor, words
from twicesafe import AsyncReceiver, Receiver
from twicesafe.consumers import DeadLetter, DeadLetters, Letter, Message
from twicesafe.dashboard import Access, dashboard

Enter = Callable[..., Visitor]
WHO = {"by": "ana", "why": "the customer exists now"}


def refuse(_: Message) -> None:
    raise DeadLetter("no such customer")


@pytest.fixture
def place(valkey: Any, receiver: Receiver, tmp_path: Path) -> Place:
    """A stream whose consumer gave up on three messages."""
    found = Place(valkey, receiver, f"sqlite:///{tmp_path}/keys.db")
    for id_ in ("o-1", "o-2", "o-3"):
        found.send(id_)
    assert found.consume(refuse).dead == 3
    return found


def left(place: Place) -> list[Letter]:
    with DeadLetters.open(place.dead_url) as dead:
        return dead.look()


async def test_one_letter_is_replayed(visit: Enter, place: Place, receiver: Receiver):
    visitor = visit(dead_letters=place.dead_url)
    page = await visitor.get("/dead-letters")
    (digits,) = (one.digits for one in left(place) if one.id == "o-2")
    link = f"/dead-letters/replay?letter={digits}"
    assert f'href="{link}"' in page.text
    dry = await visitor.get(link)
    assert "Replay 1 dead letter?" in words(dry)
    assert len(left(place)) == 3, "a dry run changes nothing"
    form = {"letter": digits, "count": "1", **WHO}
    done = await visitor.send("/dead-letters/replay", link, **form)
    assert (done.status_code, "1 letter replayed" in words(done)) == (200, True)
    assert {one.id for one in left(place)} == {"o-1", "o-3"}
    ran: list[str] = []
    assert place.consume(lambda message: ran.append(message.id)).ran == 1
    assert ran == ["o-2"]
    (entry,) = receiver.audit_log()
    assert (entry.action, entry.by, entry.why) == ("release", *WHO.values())


async def test_all_that_match_are_discarded(visit: Enter, place: Place, receiver: Receiver):
    visitor = visit(dead_letters=place.dead_url)
    query = "reason=no+such+customer"
    dry = await visitor.get(f"/dead-letters/discard?{query}")
    assert "Discard 3 dead letters?" in words(dry)
    form = {"reason": "no such customer", **WHO}
    few = await visitor.send(
        "/dead-letters/discard", f"/dead-letters/discard?{query}", **form, count="2"
    )
    assert (few.status_code, "3 letters match now" in words(few)) == (409, True)
    assert len(left(place)) == 3, "more than were confirmed"
    keys = [one.key for one in left(place)]
    done = await visitor.send(
        "/dead-letters/discard", f"/dead-letters/discard?{query}", **form, count="3"
    )
    assert "3 letters discarded" in words(done)
    assert left(place) == []
    assert {(e.action, e.by) for key in keys for e in receiver.audit(key)} == {("discard", "ana")}  # type: ignore[arg-type]
    assert {receiver.record(key).state for key in keys} == {"parked"}  # type: ignore[arg-type,union-attr]
    assert "discard" in words(await visitor.get("/audit"))
    again = await visitor.send("/dead-letters/discard", "/dead-letters", **form, count="3")
    assert (again.status_code, "letter no longer exists" in words(again)) == (409, True)


async def test_an_act_needs_a_name_a_reason_and_the_right(visit: Enter, place: Place):
    visitor = visit(dead_letters=place.dead_url)
    nameless = await visitor.send("/dead-letters/discard", "/dead-letters/discard", count="9")
    assert nameless.status_code == 422
    assert (await visitor.get("/dead-letters/burn")).status_code == 404
    reader = visit("read-only", dead_letters=place.dead_url)
    assert "Replay…" not in words(await reader.get("/dead-letters"))
    assert (await reader.get("/dead-letters/replay")).status_code == 403
    denied = await reader.send("/dead-letters/replay", "/dead-letters", count="9", **WHO)
    assert denied.status_code == 403
    hidden = await visit(Access(level="all"), dead_letters=place.dead_url).get("/dead-letters")
    assert ("Replay…" in words(hidden), "o-1" in words(hidden)) == (True, False)
    assert len(left(place)) == 3


async def test_hidden_reasons_cannot_be_guessed_piece_by_piece(visit: Enter, place: Place):
    visitor = visit(Access(level="all"), dead_letters=place.dead_url)
    listed = await visitor.get("/dead-letters")
    assert ("no such" in words(listed), "Reason contains" in words(listed)) == (False, False)
    for guess in ("no+such", "wrong"):
        for page in ("", "/discard"):
            found = await visitor.get(f"/dead-letters{page}?reason={guess}")
            assert (found.status_code, "may not see reasons" in words(found)) == (400, True)
        form = {"reason": guess, "count": "9", **WHO}
        refused = await visitor.send("/dead-letters/discard", "/dead-letters", **form)
        assert (refused.status_code, "may not see reasons" in words(refused)) == (400, True)
    assert len(left(place)) == 3


async def test_a_list_says_that_there_are_more_letters_than_it_has_read(
    visit: Enter, place: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("twicesafe.dashboard._app.LETTERS", 2)
    visitor = visit(dead_letters=place.dead_url)
    for query, shown in (("", 2), ("?reason=other", 0)):
        page = await visitor.get(f"/dead-letters{query}")
        assert page.text.count('class="card letter"') == shown
        assert "Only the oldest 2 were read" in words(page)
    monkeypatch.undo()
    assert "were read" not in words(await visitor.get("/dead-letters"))


async def test_an_async_receiver_acts_on_letters_too(place: Place):
    async with AsyncReceiver.open(place.store) as receiver:
        app = dashboard(receiver, resolve_access=lambda _: ALL, dead_letters=place.dead_url)
        visitor = Visitor(app)
        form = {"count": "3", **WHO}
        done = await visitor.send("/dead-letters/replay", "/dead-letters/replay", **form)
        assert "3 letters replayed" in words(done)
        assert [entry.action for entry in await receiver.audit_log()] == ["release"] * 3
        await visitor.client.aclose()
    assert left(place) == []


async def test_a_stream_that_no_letter_has_created_yet_is_an_empty_list(visit: Enter, place: Place):
    visitor = visit(dead_letters=f"{place.base}?stream={place.stream}.none&group=operators")
    page = await visitor.get("/dead-letters")
    assert (page.status_code, "There are no dead letters" in words(page)) == (200, True)
