"""Tests of the clients: each library over real sockets, against servers that fail on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.client.flaky import Flaky
from tests.client.libraries import HTTPX, LIBRARIES, Library
from tests.http.stage import EDGES, Stage


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Library:
    return Library(request.param)


@pytest.fixture(params=HTTPX)
def both(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """httpx, and httpx2; each with our module for it."""
    return HTTPX[request.param]


@pytest.fixture
def flaky() -> Iterator[Callable[..., Flaky]]:
    opened: list[Flaky] = []

    def make(*script: Any, behind: int = 0) -> Flaky:
        opened.append(Flaky(*script, behind=behind))
        return opened[-1]

    yield make
    for server in opened:
        server.close()


@pytest.fixture(params=EDGES)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """Our own middleware, over real sockets."""
    made = Stage(request.param)
    yield made
    made.close()
