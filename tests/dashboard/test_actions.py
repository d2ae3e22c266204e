"""Actions: signed, audited, counted before they happen, and honest about what happened."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.dashboard.conftest import Visitor, words
from tests.dashboard.test_pages import broken
from twicesafe import Key, Policy, Receiver, State
from twicesafe.dashboard import Access, dashboard
from twicesafe.dashboard._forms import number
from twicesafe.errors import StoreUnavailableError
from twicesafe.http import StoredResponse
from twicesafe.testing import FakeClock

Enter = Callable[..., Visitor]
SIGNED = {"by": "ana", "why": "checked with the bank"}


async def act(visitor: Visitor, key: Key, name: str, **fields: str) -> Any:
    page = f"/keys/{key.id.hex()}"
    return await visitor.send(f"{page}/{name}", page, **{**SIGNED, **fields})


async def test_release(visit: Enter, receiver: Receiver, held: Any):
    key = held("tx-1")
    done = await act(visit(), key, "release")
    assert done.status_code == 200
    assert "It was held; now it is released." in words(done)
    (entry,) = receiver.audit(key)
    assert (entry.action, entry.by, entry.why) == ("release", "ana", "checked with the bank")
    assert receiver.process(key, lambda: 7).value == 7


@pytest.mark.parametrize("engine", ["valkey", "postgres", "mariadb"])
async def test_an_action_is_for_the_fence_that_its_page_showed(
    engine: str, request: pytest.FixtureRequest
):
    policy = Policy(max_attempts=1)
    with Receiver.open(request.getfixturevalue(f"{engine}_url"), policy=policy) as receiver:
        with pytest.raises(ZeroDivisionError):
            receiver.process("tx-1", lambda: 1 / 0)
        visitor = Visitor(dashboard(receiver, resolve_access=lambda _: "all"))
        done = await act(visitor, receiver.key("tx-1"), "release")
        assert "It was parked; now it is released." in words(done)


@pytest.mark.parametrize(
    "text, read",
    [("9223372036854775807", 2**63 - 1), ("0", 0), ("-1", -1), ("", -1), ("1" * 20, -1), ("²", -1)],
)
def test_a_number_of_a_form_is_any_fence(text: str, read: int):
    assert number(text) == read


async def test_resolve_with_a_value(visit: Enter, receiver: Receiver, held: Any):
    key = held("tx-1")
    done = await act(visit(), key, "resolve", kind="json", answer='{"charge": 7}')
    assert "now it is completed" in words(done)
    assert receiver.process(key, broken).value == {"charge": 7}


async def test_resolve_with_a_response(visit: Enter, receiver: Receiver, held: Any):
    key = held("tx-1")
    fields = {
        "kind": "response",
        "status": "201",
        "type": "application/json",
        "answer": '{"charge":7}',
    }
    await act(visit(), key, "resolve", **fields)
    from twicesafe._core.http.stored_response import RESPONSE_CODEC

    reader = receiver.options(policy=receiver.policy.replace(codec=RESPONSE_CODEC))
    answer = reader.process(key, broken).value
    assert answer == StoredResponse(201, ((b"content-type", b"application/json"),), b'{"charge":7}')


async def test_forget(visit: Enter, receiver: Receiver):
    receiver.process("tx-1", int)
    done = await act(visit(), receiver.key("tx-1"), "forget")
    assert "1 key forgotten" in words(done)
    record = receiver.record("tx-1")
    assert record is not None
    assert record.state is State.FORGOTTEN


async def test_forget_on_a_page_that_was_left_open(visit: Enter, receiver: Receiver, held: Any):
    key = held("tx-1")
    record = receiver.record(key)
    assert record is not None
    receiver.release(key, by="ben", why="not charged")
    receiver.process(key, int)
    late = await act(visit(), key, "forget", fence=str(record.fence))
    assert (late.status_code, "Another run has started" in words(late)) == (409, True)
    now = receiver.record(key)
    assert now is not None
    assert now.state is State.COMPLETED


@pytest.mark.parametrize(
    "name, fields, said",
    [
        ("release", {"why": ""}, "the reason is missing"),
        ("release", {"by": " "}, "your name is missing"),
        ("release", {"why": "x" * 300}, "more than 255 characters"),
        ("resolve", {"kind": "json", "answer": "paid"}, "not JSON"),
        ("resolve", {"kind": "json", "answer": ""}, "not JSON"),
        ("resolve", {"kind": "response", "status": "99", "answer": ""}, "from 200 to 599"),
        ("resolve", {"kind": "response", "status": "²00", "answer": ""}, "from 200 to 599"),
        ("resolve", {"kind": "response", "status": "200", "type": "a\r\nb: c", "answer": ""}, "Nothing was changed"),
        ("resolve", {"kind": "response", "status": "9" * 5000, "answer": ""}, "from 200 to 599"),
        ("resolve", {"kind": "json", "answer": "1" * 70_000}, "more than 65,536 characters"),
    ],
)  # fmt: skip
async def test_a_form_that_is_not_complete_changes_nothing(
    visit: Enter, receiver: Receiver, held: Any, name: str, fields: dict[str, str], said: str
):
    key = held("tx-1")
    done = await act(visit(), key, name, **fields)
    assert done.status_code == 422
    assert said in words(done)
    assert receiver.audit(key) == []


async def test_a_completed_key_needs_a_tick_more(visit: Enter, receiver: Receiver):
    receiver.process("tx-1", int)
    key, visitor = receiver.key("tx-1"), visit()
    refused = await act(visitor, key, "release")
    assert refused.status_code == 409
    assert "Nothing was changed" in words(refused)
    assert receiver.audit(key) == []
    assert (await act(visitor, key, "release", force="yes")).status_code == 200


async def test_an_act_that_the_store_refuses_is_never_success(visit: Enter, receiver: Receiver):
    receiver.process("tx-1", int)
    done = await act(visit(), receiver.key("tx-1"), "resolve", kind="json", answer="1")
    assert done.status_code == 409
    assert "Nothing was changed" in words(done)
    assert "cannot resolve a completed record" in words(done)


async def test_a_store_that_is_cut_off_leaves_it_unknown(
    visit: Enter, receiver: Receiver, held: Any, monkeypatch: pytest.MonkeyPatch
):
    key = held("tx-1")

    def cut(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("connection lost")

    monkeypatch.setattr(type(receiver), "_release", cut)
    done = await act(visit(), key, "release")
    assert done.status_code == 409
    assert "It is not known whether anything was changed" in words(done)
    many = await visit().send(
        "/actions/release", "/actions/release?state=held", state="held", count="1", **SIGNED
    )
    assert "It is not known whether the last key was changed" in words(many)


async def test_a_known_visitor_signs_with_that_name_only(
    visit: Enter, receiver: Receiver, held: Any
):
    key = held("tx-1")
    visitor = visit(Access(level="all", user="ben"))
    page = await visitor.get(f"/keys/{key.id.hex()}")
    assert 'name="by"' not in page.text
    await act(visitor, key, "release", by="mallory")
    assert [entry.by for entry in receiver.audit(key)] == ["ben"]


# --- everything that a filter matches --------------------------------------------------------


async def test_a_dry_run_counts_and_changes_nothing(visit: Enter, receiver: Receiver, held: Any):
    for n in range(3):
        held(f"tx-{n}")
    receiver.process("done", int)
    visitor = visit()
    page = await visitor.get("/actions/release")
    text = words(page)
    assert "Release 3 keys?" in text
    assert "held 3 would change" in text
    assert "1 match, and stay unchanged" in text
    assert receiver.audit_log() == []


async def test_all_that_match_and_no_others(visit: Enter, receiver: Receiver, held: Any):
    for n in range(3):
        held(f"tx-{n}", "acme")
    other = held("tx-9", "globex")
    fields = {"scope": "acme", "state": "held", "count": "3", **SIGNED}
    done = await visit().send("/actions/release", "/actions/release?state=held", **fields)
    assert "3 keys changed" in words(done)
    assert len(receiver.audit_log()) == 3
    record = receiver.record(other)
    assert record is not None
    assert record.state is State.HELD


async def test_resolve_all_that_match(visit: Enter, receiver: Receiver, held: Any):
    """The answer is no filter, however long it is, and the filter is no answer."""
    keys = [held("tx-1", "acme"), held("tx-1", "globex")]
    other = held("tx-2", "acme")
    page = "/actions/resolve?value=tx-1"
    visitor = visit()
    names = re.findall(r'name="(\w+)"', (await visitor.get(page)).text)
    assert len(names) == len(set(names)) + 1, "only the two radio buttons share a name"
    fields = {"value": "tx-1", "count": "2", "kind": "json", "answer": f'"{"x" * 2000}"'}
    done = await visitor.send("/actions/resolve", page, **fields, **SIGNED)
    assert "2 keys changed" in words(done)
    assert [receiver.process(key, broken).value for key in keys] == ["x" * 2000] * 2
    record = receiver.record(other)
    assert record is not None
    assert record.state is State.HELD


async def test_an_empty_answer_does_not_widen_the_filter(
    visit: Enter, receiver: Receiver, held: Any
):
    """The form as a browser sends it: every field under the name that the page gives it."""
    for scope in ("acme", "globex"):
        held("tx-1", scope)
    visitor = visit()
    page = (await visitor.get("/actions/resolve?value=tx-1")).text
    fields = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page)
    fields += [(name, "") for name in re.findall(r'<textarea name="(\w+)"', page)]
    fields += [("kind", "response"), ("status", "204"), ("type", ""), *SIGNED.items()]
    # One less here and one more below: the count alone would not stop it.
    receiver.release(Key("tx-1", ("acme",)), by="ben")
    other = held("tx-2")
    form = {"content-type": "application/x-www-form-urlencoded"}
    (to,) = re.findall(r'<form method="post" action="(/actions/[^"]+)"', page)
    done = await visitor.client.post(unescape(to), content=urlencode(fields), headers=form)
    assert "1 key changed" in words(done)
    record = receiver.record(other)
    assert record is not None
    assert record.state is State.HELD


@pytest.mark.parametrize("count", ["", "²", "9" * 900, "-1", "1.0", "one"])
async def test_a_count_that_is_no_number_confirms_nothing(
    visit: Enter, receiver: Receiver, held: Any, count: str
):
    held("tx-1")
    done = await visit().send("/actions/release", state="held", count=count, **SIGNED)
    assert done.status_code == 409
    assert receiver.count(state=State.HELD) == 1


async def test_more_than_was_confirmed_is_refused(visit: Enter, receiver: Receiver, held: Any):
    visitor = visit()
    for n in range(2):
        held(f"tx-{n}")
    for count in ("1", "", "x"):
        done = await visitor.send(
            "/actions/release", "/actions/release", state="held", count=count, **SIGNED
        )
        assert done.status_code == 409
        assert "2 keys match now" in words(done)
    assert receiver.audit_log() == []


async def test_a_bad_filter_matches_nothing(visit: Enter, receiver: Receiver, held: Any):
    held("tx-1")
    visitor = visit()
    done = await visitor.send(
        "/actions/release", "/actions/release", state="hled", count="9", **SIGNED
    )
    assert done.status_code == 422
    assert (await visitor.get("/actions/release?since=7x")).status_code == 422
    assert receiver.audit_log() == []


async def test_work_in_progress_is_left_alone_unless_its_lease_is_over(
    visit: Enter, receiver: Receiver, clock: FakeClock
):
    visitor = visit()
    with contextlib.suppress(Exception), receiver.claim("tx-1"):
        page = words(await visitor.get("/actions/release"))
        assert "Release 0 keys?" in page
        assert "There is nothing to release" in page
        clock.advance(60)
        assert "Release 1 key?" in words(await visitor.get("/actions/release?stuck=yes"))


async def test_a_key_that_changed_meanwhile_is_left_alone(
    visit: Enter, receiver: Receiver, held: Any, monkeypatch: pytest.MonkeyPatch
):
    """Between the list and the action, another operator released it and a worker has it now."""
    from twicesafe.dashboard import _bulk_actions

    key = held("tx-1")
    collected = _bulk_actions._collected

    async def collected_then_changed(*args: Any) -> Any:
        found = await collected(*args)
        receiver.release(key, by="ben", why="first")
        return found

    monkeypatch.setattr(_bulk_actions, "_collected", collected_then_changed)
    done = await visit().send(
        "/actions/release", "/actions/release", state="held", count="1", **SIGNED
    )
    assert done.status_code == 409
    assert "1 key changed meanwhile" in words(done)
    assert [entry.by for entry in receiver.audit(key)] == ["ben"]


@pytest.mark.parametrize("name", ["release", "resolve"])
async def test_an_act_is_about_the_run_that_its_page_showed(
    visit: Enter, receiver: Receiver, held: Any, name: str
):
    """The page is open while another operator releases the key and a worker starts."""
    key, visitor = held("tx-1"), visit()
    path = f"/keys/{key.id.hex()}"
    page = (await visitor.get(path)).text
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
    receiver.release(key, by="ben")
    with receiver.claim(key) as claim:
        sent = {**fields, **SIGNED, "kind": "json", "answer": "1"}
        late = await visitor.client.post(f"{path}/{name}", data=sent)
        assert late.status_code == 409
        assert "the record has changed since it was read" in words(late)
        claim.complete("paid")
    assert receiver.process(key, broken).value == "paid"


async def test_a_forgotten_key_stays_as_it_is(visit: Enter, receiver: Receiver):
    receiver.process("tx-1", int)
    receiver.forget("tx-1")
    done = await act(visit(), receiver.key("tx-1"), "release", force="yes")
    assert done.status_code == 409
    assert "nothing is left to change" in words(done)


async def test_a_large_act_says_what_is_left(
    visit: Enter, receiver: Receiver, held: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("twicesafe.dashboard._bulk_actions.AT_ONCE", 2)
    for n in range(5):
        held(f"tx-{n}")
    visitor = visit()
    done = await visitor.send(
        "/actions/release", "/actions/release", state="held", count="5", **SIGNED
    )
    assert "2 keys changed" in words(done)
    assert "3 keys still match" in words(done)


async def test_an_act_that_does_not_exist(visit: Enter, held: Any):
    key, visitor = held("tx-1"), visit()
    assert (await act(visitor, key, "explode")).status_code == 404
    assert (await visitor.get("/actions/explode")).status_code == 404
