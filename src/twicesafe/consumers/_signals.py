"""SIGTERM and SIGINT: a signal stops all consumers that run in the main thread.

Several may run there, as tasks of one event loop. The first signal stops them all. The same signal
a second time does what it did before they ran. The other signal does not, because supervisors send
SIGTERM after a terminal's SIGINT. The old handlers are restored when the last consumer has ended.
In a forked child they are restored immediately, so that a handler can terminate the child.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from .._forking import in_child

__all__ = ["stopping_on_signals"]

KNOWN: Final = (signal.SIGTERM, signal.SIGINT)

_stops: dict[object, Callable[[], None]] = {}
"""How to stop each consumer that runs in the main thread."""
_before: dict[int, Any] = {}


@contextlib.contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """While this runs, the first SIGTERM or SIGINT calls `stop`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    me = object()
    _stops[me] = stop
    for number in KNOWN:
        if signal.getsignal(number) is not _heed:
            _before[number] = signal.signal(number, _heed)
    try:
        yield
    finally:
        _stops.pop(me, None)
        if not _stops:
            _restore_all()


def _heed(number: int, frame: object) -> None:
    _restore(number)
    for stop in list(_stops.values()):
        stop()


def _restore(number: int) -> None:
    old = _before.get(number)
    signal.signal(number, signal.SIG_DFL if old is None else old)  # None: not set by Python


def _restore_all() -> None:
    for number in KNOWN:
        if signal.getsignal(number) is _heed:
            _restore(number)


def _leave_to_parent() -> None:
    _stops.clear()
    _restore_all()


in_child(_leave_to_parent)
