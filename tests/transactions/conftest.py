"""A door of every kind, each on a database of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.transactions.kinds import ALL, Door, open_door

NAMED = [pytest.param(kind, id=kind.replace("postgresql", "pg")) for _, kind in ALL]
ENGINE_OF = {kind: engine for engine, kind in ALL}


@pytest.fixture
def url_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """The database of this test, by engine."""

    def url(engine: str) -> str:
        if engine == "sqlite":
            return f"sqlite:///{tmp_path / 'shop.db'}"
        found: str = request.getfixturevalue(f"{engine}_url")
        return found

    return url


@pytest.fixture
def opened() -> Iterator[list[Door]]:
    """Asked for after the database: so all doors are closed before it goes."""
    doors: list[Door] = []
    yield doors
    for door in doors:
        door.close()


@pytest.fixture
def open_kind(request: pytest.FixtureRequest, url_of: Callable[[str], str]) -> Callable[[str], Any]:
    def open_one(kind: str) -> Door:
        door = open_door(kind, url_of(ENGINE_OF[kind]))
        request.getfixturevalue("opened").append(door)
        return door

    return open_one


@pytest.fixture(params=NAMED)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def door(kind: str, open_kind: Callable[[str], Door]) -> Door:
    return open_kind(kind)
