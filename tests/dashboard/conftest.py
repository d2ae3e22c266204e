"""A dashboard in this process, on a store with a clock of our own, and a visitor without a browser."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from twicesafe import Policy, Receiver
from twicesafe._engines.sqlite import SqliteStore
from twicesafe.dashboard import Access, dashboard
from twicesafe.observers import LogObserver
from twicesafe.testing import FakeClock

ALL = Access(level="all", show_keys=True)
HIDDEN = r'<input type="hidden" name="([^"]+)" value="([^"]*)">'


class Visitor:
    """Loads pages and sends their forms, as a browser without JavaScript does."""

    def __init__(self, app: Any, host: str = "localhost") -> None:
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app, client=("127.0.0.1", 5)), base_url=f"http://{host}"
        )

    async def get(self, path: str = "/", **headers: str) -> httpx.Response:
        return await self.client.get(path, headers=headers)

    async def send(self, path: str, _from: str = "/keys", **fields: str) -> httpx.Response:
        """Send a form of this page with its hidden fields; if it has no such form, with a token alone."""
        page = (await self.client.get(_from)).text
        start = rf'<form method="post" action="({re.escape(path)}(?:\?[^"]*)?)">(.*?)</form>'
        form = re.search(start, page, re.S)
        given = dict(re.findall(HIDDEN, unescape(form[2] if form else page)))
        token = given.get("token") or self.client.cookies.get("twicesafe_form") or ""
        kept, to = (given, unescape(form[1])) if form else ({}, path)
        return await self.client.post(to, data={**kept, "token": token, **fields})


def words(response: httpx.Response) -> str:
    """The text of a page, without its markup."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", response.text)).split())


@pytest.fixture
def clock() -> FakeClock:
    import time

    return FakeClock(round(time.time() * 1000) - 3_600_000)


@pytest.fixture
def receiver(tmp_path: Path, clock: FakeClock) -> Iterator[Receiver]:
    store = SqliteStore(str(tmp_path / "keys.db"), synchronous="normal", now=clock)
    policy = Policy(max_attempts=1, in_flight="reject")
    with Receiver(store, policy=policy, observers=[LogObserver()]) as made:
        yield made


@pytest.fixture
async def visit(receiver: Receiver) -> AsyncIterator[Callable[..., Visitor]]:
    """`visit("read-only")`: a visitor with that access."""
    made: list[Visitor] = []

    def enter(access: Any = ALL, **settings: Any) -> Visitor:
        app = dashboard(receiver, resolve_access=lambda _: access, **settings)
        made.append(Visitor(app))
        return made[-1]

    yield enter
    for one in made:
        await one.client.aclose()


@pytest.fixture
def held(receiver: Receiver) -> Callable[..., Any]:
    """`held("tx-1", "acme")` makes a held key and returns it."""
    from twicesafe import Key

    def make(value: str, *scope: str) -> Key:
        key = receiver.key(Key(value, scope))
        holding = receiver.options(policy=Policy(takeover="hold"))
        with holding.claim(Key(value, scope)) as claim:
            claim.hold("ConnectionError")
        return key

    return make
