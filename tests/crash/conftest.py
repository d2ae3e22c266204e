"""Every sweep runs on both embedded stores and in both modes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.stage import World
from twicesafe._engines.sqlite import SqliteStore


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["memory", "sqlite"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty database: copied for each world, which is quicker than making one."""
    path = tmp_path_factory.mktemp("template") / "empty.db"
    SqliteStore(path).close()
    return path


@pytest.fixture
def new_world(engine: str, template: Path, tmp_path: Path) -> Callable[[], World]:
    return lambda: World(template if engine == "sqlite" else None, tmp_path)
