"""Real processes: how the tests start them, and the seed that a red run prints."""

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
        done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)

    return run
