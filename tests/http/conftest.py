"""Tests of the HTTP layer: ``@pytest.mark.item("K2")`` names the rule of the checklist that one holds.

The reference page `docs/reference/http.md` is made from these marks; see `items.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.http.scripted import Scripted, Step
from tests.http.stage import EDGES, Before, Stage
from twicesafe.http import HttpPolicy


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "item(*ids): rules of the HTTP checklist that a test holds")


@pytest.fixture(params=EDGES)
def edge(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def play(edge: str) -> Iterator[Callable[..., Stage]]:
    """Stages with settings: ``play(required=True)``."""
    opened: list[Stage] = []

    def make(policy: HttpPolicy | None = None, /, **settings: Any) -> Stage:
        kinds = {
            name: settings.pop(name)
            for name in ("now", "memory", "store", "observers", "around", "upstream")
            if name in settings
        }
        opened.append(Stage(edge, (policy or HttpPolicy()).replace(**settings), **kinds))
        return opened[-1]

    yield make
    for stage in opened:
        stage.close()


@pytest.fixture
def stage(play: Callable[..., Stage]) -> Stage:
    """The default policy."""
    return play()


@pytest.fixture
def before(play: Callable[..., Stage]) -> Iterator[Before]:
    """A proxy in front of an upstream with these scripts: ``before([OK], http={"retry": …})``."""
    opened: list[Scripted] = []

    def make(*scripts: list[Step], **settings: Any) -> tuple[Stage, Scripted]:
        opened.append(Scripted(*scripts))
        http = settings.pop("http", {})
        settings = {"idle": 600, **settings}  # connections stay open, however slow the test is
        return play(upstream={"url": opened[-1].url, **settings}, **http), opened[-1]

    yield make
    for service in opened:
        service.close()
