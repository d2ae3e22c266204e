"""The bench in all its forms: every test that takes `bench` runs four times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.receiver.bench import Bench


@pytest.fixture(params=["memory-sync", "memory-async", "sqlite-sync", "sqlite-async"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    kind, mode = request.param.split("-")
    bench = Bench(kind, mode, tmp_path)
    yield bench
    bench.end()
