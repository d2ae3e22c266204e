"""Real processes on real stores: every test that takes `store_url` runs once per engine.

A new engine is one word in `ENGINES`: the name of its server in `tests.servers`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

ENGINES = ("sqlite", "postgres", "valkey", "mariadb")


@pytest.fixture(params=ENGINES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store of each engine, which many processes may open."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'keys.db'}"
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def seed() -> int:
    """Fixed by TWICESAFE_SEED; otherwise new each time, and shown when a test fails."""
    chosen = int(os.environ.get("TWICESAFE_SEED") or random.randrange(10**6))
    print(f"TWICESAFE_SEED={chosen} repeats this run")
    return chosen


@pytest.fixture
def run_script() -> Callable[..., Any]:
    """Run a script of this folder to its end; what it printed, as JSON."""

    def run(name: str, *args: object) -> Any:
        command = [sys.executable, str(HERE / name), *map(str, args)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)

    return run
