"""Single flight: concurrent deliveries of one key in one process share one store request.

The first caller of a key leads its flight; the others wait and get the leader's recorded answer. If
the leader ends without an answer, the waiters join again and one of them leads. A caller that must
not wait for a handler waits only for the leader's claim. It is woken when a handler starts, when the
leader itself waits for another process (delayed), or when the flight ends. One table serves threads and
event loops.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from .._core.protocol import Claimed

__all__ = ["Flight", "SingleFlight"]

_ALWAYS_LOCK: Final = not getattr(sys, "_is_gil_enabled", lambda: True)()
"""Without the GIL, threads may see each other's writes in another order."""
_NO_LOCK: Final = contextlib.nullcontext()


class Flight(msgspec.Struct, eq=False):
    id: bytes
    fingerprint: bytes | None
    awaited: bool = False
    """Its answer is wanted: by a waiting caller, or by the cache."""
    started: bool = False
    """The leader won the claim, and its handler runs."""
    delayed: bool = False
    """Another process works on the key; the leader waits for it."""
    ended: bool = False
    outdated: bool = False
    """An operator changed the record meanwhile: its answer is not for the cache."""
    answer: Claimed | None = None
    wakers: list[Callable[[], object]] | None = None
    askers: list[Callable[[], object]] | None = None


class SingleFlight:
    """A leader takes no lock. It writes what happened, then looks for waiters; a waiter registers,
    then looks at what happened. So one of the two sees the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.table: dict[bytes, Flight] = {}
        """By the id of the key. The caller whose flight is here leads it, and must end it."""

    def wait(self, flight: Flight, waker: Callable[[], object], most: int) -> bool:
        """Be woken when the flight ends. False: it has already ended."""
        with self._lock:
            flight.awaited = True
            if flight.wakers is None:
                flight.wakers = []
            if flight.ended:
                return False
            if len(flight.wakers) >= most:
                raise OverflowError
            flight.wakers.append(waker)
            return not flight.ended

    def ask(self, flight: Flight, waker: Callable[[], object]) -> bool:
        """Be woken when it is known whether a handler runs here. False: it is already known."""
        with self._lock:
            flight.awaited = True
            if flight.askers is None:
                flight.askers = []
            flight.askers.append(waker)
            return not (flight.started or flight.delayed or flight.ended)

    def leave(self, flight: Flight, waker: Callable[[], object]) -> None:
        with self._lock:
            for waiting in (flight.wakers, flight.askers):
                if waiting is not None and waker in waiting:
                    waiting.remove(waker)

    def mark_started(self, flight: Flight) -> None:
        flight.started = True
        if flight.awaited or _ALWAYS_LOCK:
            self._wake_askers(flight)

    def mark_delayed(self, flight: Flight) -> None:
        flight.delayed = True
        if flight.awaited or _ALWAYS_LOCK:
            self._wake_askers(flight)

    def _wake_askers(self, flight: Flight) -> None:
        with self._lock if _ALWAYS_LOCK else _NO_LOCK:
            askers, flight.askers = flight.askers, None
        for wake in askers or ():
            wake()

    def end(self, flight: Flight, answer: Claimed | None) -> None:
        """Wake the waiters; a new flight of this key may start."""
        if not flight.ended:
            flight.answer = answer
            flight.ended = True
        if self.table.get(flight.id) is flight:  # else it never led, or the process was forked
            del self.table[flight.id]
        if flight.awaited or _ALWAYS_LOCK:
            with self._lock if _ALWAYS_LOCK else _NO_LOCK:
                # A copy: a woken waiter leaves at once, which changes the list.
                waiting = [*(flight.wakers or ()), *(flight.askers or ())]
            for wake in waiting:
                wake()

    def outdate(self, id: bytes) -> None:  # noqa: A002
        """The flight of this key, if there is one, may end with an answer that no longer holds."""
        flight = self.table.get(id)
        if flight is not None:
            flight.outdated = True

    def forget_all(self) -> None:
        """After a fork: the leaders were threads of the parent."""
        self._lock = threading.Lock()
        self.table = {}
