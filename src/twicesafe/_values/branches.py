"""Branches: which process, thread and task this code runs in. A durable function may have several."""

from __future__ import annotations

import contextlib
import sys
import threading

from .. import _forking

__all__ = ["branch"]


def branch() -> tuple[int, int, int]:
    """The process, the thread and the task that this code runs in; the task is 0 outside a loop."""
    asyncio, task = sys.modules.get("asyncio"), None
    if asyncio is not None:
        with contextlib.suppress(RuntimeError):  # no loop runs in this thread
            task = asyncio.current_task()
    return _forking.pid, threading.get_ident(), 0 if task is None else id(task)
