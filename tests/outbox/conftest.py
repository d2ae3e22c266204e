from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.outbox.stage import ENGINES, Broker, RelayMode, begin, connect
from twicesafe.outbox import Outbox


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of the test's own, in each engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def outbox(url: str) -> Iterator[Outbox]:
    with Outbox.open(url) as opened:
        yield opened


@pytest.fixture
def caller(url: str, outbox: Outbox) -> Iterator[Callable[[], Any]]:
    """New connections of the caller's, in a transaction."""
    opened: list[Any] = []

    def another() -> Any:
        connection = connect(url)
        opened.append(connection)
        begin(connection)
        return connection

    yield another
    for connection in opened:
        connection.close()


@pytest.fixture
def put(outbox: Outbox, caller: Callable[[], Any]) -> Callable[..., list[str]]:
    """Add bodies in their own transaction, and commit."""
    connection = caller()

    def put(*bodies: str, key: str | None = None, topic: str = "orders") -> list[str]:
        begin(connection)
        ids = outbox.add_many(
            connection, [{"topic": topic, "body": body, "key": key} for body in bodies]
        )
        connection.commit()
        return ids

    return put


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest, url: str) -> Iterator[RelayMode]:
    made = RelayMode(request.param, url)
    yield made
    made.close()
