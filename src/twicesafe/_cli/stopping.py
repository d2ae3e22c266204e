"""SIGINT and SIGTERM end a long command after its current piece of work."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from .. import _forking

__all__ = ["interruptible"]


@contextmanager
def interruptible(on_stop: Callable[[], None] | None = None) -> Iterator[threading.Event]:
    """SIGINT and SIGTERM set the event, so the command finishes its current batch and exits with 0.

    ``on_stop`` is called at the same time, for work that does not check the event. A second signal
    raises `KeyboardInterrupt`. In a forked child a signal acts as it did before.
    """
    stop = threading.Event()
    parent = _forking.pid

    def handle(number: int, _: FrameType | None) -> None:
        if _forking.pid != parent:
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)
            return
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        if on_stop is not None:
            on_stop()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
