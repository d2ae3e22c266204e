"""Responses are encrypted at rest, whichever edge they went through: nothing of them is readable in the store (D17)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.http.django_site import Site
from tests.http.stage import EDGES, Answer, Stage
from tests.http.test_proxy_processes import Proxy, Shop
from twicesafe import Policy
from twicesafe.encryption import KeyRing
from twicesafe.stores import open_async_store, open_store

CANARY = b"canary-response-8c1"


@pytest.fixture(autouse=True)
def _ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RING", KeyRing.new_key("a"))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/keys.db"


def in_files(folder: Path, text: bytes) -> bool:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return any(text in path.read_bytes() for path in files)


@pytest.mark.attack("D17")
@pytest.mark.parametrize("encrypted", [True, False])
@pytest.mark.parametrize("edge", EDGES)
def test_responses(edge: str, encrypted: bool, url: str, tmp_path: Path):
    policy = Policy(encryption=KeyRing.load("env:RING") if encrypted else None)
    store: Any = (open_store if edge == "wsgi" else open_async_store)(url)
    with closing(Stage(edge, store=store, receiver_policy=policy)) as stage:
        fields = [(b"location", b"/cards/" + CANARY)]
        stage.handler = lambda _: Answer(headers=fields, body=[CANARY])
        first, again = (stage.send("k") for _ in range(2))
        assert (first.replayed, again.replayed) == (False, True)
        assert first.body == again.body == CANARY
        assert again["location"] == first["location"]
        assert in_files(tmp_path, CANARY) is not encrypted


@pytest.mark.attack("D17")
@pytest.mark.parametrize("encrypted", [True, False])
@pytest.mark.parametrize("edge", ["wsgi", "asgi"])
def test_responses_of_django(edge: str, encrypted: bool, url: str, tmp_path: Path):
    with closing(Site(edge, url, encryption="env:RING" if encrypted else None)) as site:
        first, again = site.twice("/charges")
        assert (first.replayed, again.replayed, again.body) == (False, True, first.body)
        assert in_files(tmp_path, first.body) is not encrypted


@pytest.mark.attack("D17")
@pytest.mark.parametrize("encrypted", [True, False])
def test_responses_of_the_proxy(
    encrypted: bool, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if encrypted:
        monkeypatch.setenv("TWICESAFE_POLICY_ENCRYPTION", "env:RING")
    with (
        closing(Shop(tmp_path, "python")) as shop,
        closing(Proxy(shop, tmp_path, store=url)) as proxy,
    ):
        first, again = (proxy.send("k") for _ in range(2))
    assert (first.replayed, again.replayed, again.body) == (False, True, first.body)
    assert in_files(tmp_path, first.body) is not encrypted
