"""The page of failures: which errors the last attempts of keys ended with."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

from tests.dashboard.conftest import ALL, Visitor, words
from twicesafe import AsyncReceiver, Key, Policy, Receiver
from twicesafe.dashboard import _app as app
from twicesafe.dashboard import dashboard
from twicesafe.testing import FakeClock

Enter = Callable[..., Visitor]


def fail(receiver: Receiver, value: str, operation: str, error: type[Exception]) -> None:
    def handle() -> None:
        raise error

    with contextlib.suppress(error):
        receiver.process(Key(value, scope=("acme", operation)), handle)


def rows(page: Any) -> list[list[str]]:
    body = page.text.partition("<tbody>")[2].partition("</tbody>")[0]
    return [
        [unescape(re.sub(r"<[^>]*>", "", cell)) for cell in re.findall(r"<td.*?</td>", row)]
        for row in re.findall(r"<tr>.*?</tr>", body, re.S)
    ]


async def test_errors_with_counts_and_links_to_their_keys(
    visit: Enter, receiver: Receiver, held: Any, clock: FakeClock
):
    fail(receiver, "tx-1", "charge", TimeoutError)  # an hour ago, and a little more
    clock.advance(1800)
    for number in (2, 3):
        fail(receiver, f"tx-{number}", "refund", ValueError)
    held("tx-4", "acme", "charge")
    receiver.process("tx-5", int)
    visitor = visit()
    page = await visitor.get("/failures")
    found = rows(page)
    assert [(count, operation, error) for count, operation, error, _ in found] == [
        ("2", "refund", "ValueError"),
        ("1", "charge", "ConnectionError"),
        ("1", "charge", "TimeoutError"),
    ]
    assert [newest[-3:] for *_, newest in found] == ["ago"] * 3
    link = re.search(r'href="(/keys[^"]+)"[^>]*>ValueError<', page.text)
    assert link is not None
    listed = await visitor.get(unescape(link[1]))
    assert re.findall(r'class="key"[^>]*><span>([^<]*)</span>', listed.text) == ["tx-3", "tx-2"]
    recent = re.search(r'href="(/failures[^"]+)"[^>]*>last hour<', page.text)
    assert recent is not None
    assert [row[-2] for row in rows(await visitor.get(unescape(recent[1])))] == [
        "ValueError",
        "ConnectionError",
    ]


async def test_operations_are_hidden_with_the_keys(visit: Enter, receiver: Receiver):
    fail(receiver, "tx-1", "charge", TimeoutError)
    fail(receiver, "tx-2", "refund", TimeoutError)
    page = await visit("read-only").get("/failures")
    assert [(row[0], row[-2]) for row in rows(page)] == [("2", "TimeoutError")]
    assert "refund" not in page.text


async def test_who_may_not_look_sees_no_failures(visit: Enter, receiver: Receiver):
    fail(receiver, "tx-1", "charge", TimeoutError)
    page = await visit("forbidden").get("/failures")
    assert (page.status_code, "TimeoutError" in page.text) == (403, False)


async def test_nothing_failed_and_a_wrong_age(visit: Enter):
    visitor = visit()
    assert "No key's last attempt failed" in words(await visitor.get("/failures"))
    wrong = await visitor.get("/failures?since=soon")
    assert (wrong.status_code, "soon is not a duration" in words(wrong)) == (400, True)


async def test_a_part_of_the_failures_says_so(
    visit: Enter, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(app, "READ", 2)
    for number in range(3):
        fail(receiver, f"tx-{number}", "charge", TimeoutError)
    page = await visit().get("/failures")
    assert rows(page)[0][0] == "2"
    assert "Only the newest 2 failed keys are counted" in words(page)


async def test_of_an_async_receiver():
    async def handle() -> None:
        raise TimeoutError

    async with AsyncReceiver.open("memory://", policy=Policy(max_attempts=1)) as receiver:
        with contextlib.suppress(TimeoutError):
            await receiver.process(Key("tx-1", scope=("acme", "charge")), handle)
        visitor = Visitor(dashboard(receiver, resolve_access=lambda _: ALL))
        assert [row[-2] for row in rows(await visitor.get("/failures"))] == ["TimeoutError"]
        await visitor.client.aclose()
