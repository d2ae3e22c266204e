"""Requests with hidden keys: no key and no user is readable after them, whichever edge they came through (D17)."""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.http.django_site import Site
from tests.http.stage import EDGES, Seen, Stage
from tests.http.test_proxy_processes import Proxy, Shop
from tests.logged import logged
from tests.polling import until
from twicesafe import Receiver
from twicesafe.encryption import HiddenKeys
from twicesafe.http import HttpPolicy
from twicesafe.observers import LogObserver
from twicesafe.stores import open_async_store, open_store

KEY, USER = "canary-edge-7b1", "canary-user-7b2"
SECRET = os.urandom(32)
HIDDEN = HiddenKeys(SECRET)
OPEN = "readable-7b3"


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    monkeypatch.setenv("SECRET", base64.b64encode(SECRET).decode())
    caplog.set_level(logging.DEBUG, "twicesafe")
    yield
    assert not is_readable(logged(caplog))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/keys.db?hidden_keys=env:SECRET"


def files(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def is_readable(heap: bytes) -> bool:
    return KEY.encode() in heap or USER.encode() in heap


def check(url: str, folder: Path) -> None:
    """One record, found by what was sent; nothing readable beside it; and a readable key would be found."""
    with Receiver.open(url) as receiver:
        [record] = [r for r in receiver.records() if r.scope[:1] != ("twicesafe",)]
        assert [found.id for found in receiver.records(value=KEY)] == [record.id]
        assert record.value == HIDDEN.value(KEY)
        assert all(part.startswith("hidden:") for part in record.scope)
    assert not is_readable(files(folder))
    with Receiver.open(url.partition("?")[0]) as plain:
        plain.process(OPEN, lambda: None)
    assert OPEN.encode() in files(folder)


@pytest.mark.attack("D17")
@pytest.mark.parametrize("edge", EDGES)
def test_requests(edge: str, url: str, tmp_path: Path):
    def scope(_: object) -> str:
        return USER

    opener: Callable[[str], object] = open_store if edge == "wsgi" else open_async_store
    policy = HttpPolicy(scope=scope)
    with closing(Stage(edge, policy, store=opener(url), observers=[LogObserver()])) as stage:
        first, again = (stage.send(KEY) for _ in range(2))
        refused = stage.send(KEY, b'{"amount":6}')
    assert (first.status, first.replayed, again.status, again.replayed) == (201, False, 201, True)
    assert (refused.status, len(stage.seen)) == (422, 1)
    assert not is_readable(refused.body)
    check(url, tmp_path)


@pytest.mark.attack("D17")
@pytest.mark.parametrize("edge", ["wsgi", "asgi"])
def test_requests_to_django(edge: str, url: str, tmp_path: Path):
    with closing(Site(edge, url)) as site:
        first, again = site.twice("/charges", KEY, ("X-User", USER))
    assert (first.status, first.replayed, again.status, again.replayed) == (201, False, 201, True)
    assert HIDDEN.value(KEY).encode() in first.body  # what the view sees is the hidden key
    check(url, tmp_path)


@pytest.mark.attack("D17")
def test_requests_through_the_proxy(url: str, tmp_path: Path):
    """As users run it: by its command, with every line of its log and its metrics."""
    own, behind = tmp_path / "proxy", tmp_path / "shop"
    own.mkdir()
    behind.mkdir()
    (own / "twicesafe.toml").write_text(
        '[proxy]\naccess_log = true\nlog_format = "json"\nlog_level = "debug"\ntrusted = ["127.0.0.1"]\n'
        '[http]\nscope = ["header:X-User"]\n'
    )
    with (
        closing(Shop(behind, "python")) as shop,
        closing(Proxy(shop, own, store=url)) as proxy,
    ):
        first, again = (proxy.send(KEY, ("X-User", USER)) for _ in range(2))
        until(lambda: proxy.errors.read_text().count('"responded"') == 2)
        assert not is_readable(proxy.admin("/metrics")[1].encode())
    assert (first.status, first.replayed, again.status, again.replayed) == (201, False, 201, True)
    assert sum(shop.effects().values()) == 1
    assert not is_readable(files(own))
    (tmp_path / "shop" / "ledger").unlink()  # the upstream gets the key itself
    check(url, tmp_path)


@pytest.mark.attack("D17")
def test_another_secret_is_refused_by_every_edge(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    with Receiver.open(url) as receiver:
        receiver.process(KEY, lambda: None)
    monkeypatch.setenv("SECRET", base64.b64encode(os.urandom(32)).decode())

    def run(_: Seen) -> None:
        raise AssertionError("it ran")

    for edge in EDGES:
        opener: Callable[[str], object] = open_store if edge == "wsgi" else open_async_store
        with closing(Stage(edge, store=opener(url))) as stage:
            stage.handler = run  # type: ignore[assignment]
            assert stage.send(KEY).problem == "store-unavailable"
            assert not stage.seen
        assert "another secret" in caplog.text
        caplog.clear()
