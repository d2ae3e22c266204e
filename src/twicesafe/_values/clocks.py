"""Clocks: the worker's own, and the one that embedded stores keep.

The *worker's* clock only measures its own timeouts and its own deadline (P7). It runs while the
machine sleeps and cannot be set, so changing the wall clock has no effect.

The *store's* clock decides leases and retention (P5). Servers bring their own. The embedded
stores have none, so they use this one: the time since boot, which all processes of a machine
share, plus an offset that the store keeps per boot. It reads like the wall clock, but steps of
the wall clock after the first opening do not reach it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TypeAlias

__all__ = [
    "WorkerClock",
    "boot_id",
    "clock_from",
    "since_boot",
    "since_boot_ms",
    "steady_wall_clock",
    "wall_clock",
]

WorkerClock: TypeAlias = Callable[[], float]
"""Seconds from an arbitrary start; never set back."""

since_boot: WorkerClock = (
    functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)
"""Seconds since boot, sleep included where the system counts it."""

_since_boot_ns: Callable[[], int] = (
    functools.partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic_ns
)


def wall_clock() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def since_boot_ms() -> int:
    return _since_boot_ns() // 1_000_000


def clock_from(offset: int) -> Callable[[], int]:
    """A clock: the milliseconds since boot, plus this offset."""

    def now() -> int:
        return _since_boot_ns() // 1_000_000 + offset

    return now


def steady_wall_clock() -> Callable[[], int]:
    """A clock that begins at the wall clock. Setting the wall clock later does not change it."""
    return clock_from(wall_clock() - since_boot_ms())


def boot_id() -> str:
    """Identifies this boot of this machine; empty if the system does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
