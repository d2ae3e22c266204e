"""Waiting for what another thread or process is about to do."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["until"]


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Give others the processor until the condition holds. The limit is for what hangs: a process may take
    20 seconds to start on a busy machine."""
    began, pause = time.monotonic(), 0.001
    while not condition():
        assert time.monotonic() - began < seconds, "it never happened"
        time.sleep(pause)
        pause = min(pause * 1.1, 0.02)
