"""Single flight: concurrent deliveries of one key in one process share one store request.

The first caller of a key leads its flight; the others wait and get the leader's recorded answer. If
the leader ends without an answer, the waiters join again and one of them leads. A caller that must
not wait for a handler only asks what becomes of the leader's claim: it is woken when a handler
starts, when the leader itself waits for another process (delayed), or when the flight ends. One
table serves threads and event loops.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from .._core.protocol import Claimed

__all__ = ["Flight", "SingleFlight"]


class Flight:
    __slots__ = (
        "answer",
        "askers",
        "delayed",
        "ended",
        "fingerprint",
        "id",
        "started",
        "wakers",
    )

    def __init__(self, id: bytes, fingerprint: bytes | None) -> None:  # noqa: A002
        self.id = id
        self.fingerprint = fingerprint
        self.started = self.delayed = self.ended = False
        self.answer: Claimed | None = None
        self.wakers: list[Callable[[], object]] | None = None
        self.askers: list[Callable[[], object]] | None = None


class SingleFlight:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: dict[bytes, Flight] = {}

    def join(self, mine: Flight) -> Flight:
        """The flight of this key; if it is `mine`, the caller leads it and must end it."""
        return self._table.setdefault(mine.id, mine)  # atomic: exactly one thread leads

    def wait(self, flight: Flight, waker: Callable[[], object], most: int) -> bool:
        """Be woken when the flight ends. False: it has already ended."""
        with self._lock:
            if flight.ended:
                return False
            if flight.wakers is None:
                flight.wakers = []
            if len(flight.wakers) >= most:
                raise OverflowError
            flight.wakers.append(waker)
            return True

    def ask(self, flight: Flight, waker: Callable[[], object]) -> bool:
        """Be woken when it is known whether a handler runs here. False: it is already known."""
        with self._lock:
            if flight.started or flight.delayed or flight.ended:
                return False
            if flight.askers is None:
                flight.askers = []
            flight.askers.append(waker)
            return True

    def leave(self, flight: Flight, waker: Callable[[], object]) -> None:
        with self._lock:
            for waiting in (flight.wakers, flight.askers):
                if waiting is not None and waker in waiting:
                    waiting.remove(waker)

    def mark_started(self, flight: Flight) -> None:
        """The leader won the claim, and its handler runs."""
        flight.started = True
        self._wake_askers(flight)

    def mark_delayed(self, flight: Flight) -> None:
        """Another process works on the key; the leader waits for it."""
        flight.delayed = True
        self._wake_askers(flight)

    def _wake_askers(self, flight: Flight) -> None:
        with self._lock:
            askers, flight.askers = flight.askers, None
        for wake in askers or ():
            wake()

    def end(self, flight: Flight, answer: Claimed | None) -> None:
        """Wake the waiters; a new flight of this key may start."""
        with self._lock:
            if not flight.ended:
                flight.answer = answer
                flight.ended = True
            if self._table.get(flight.id) is flight:  # else it never led, or the process was forked
                del self._table[flight.id]
            # A copy: a woken waiter leaves at once, which changes the list.
            waiting = [*(flight.wakers or ()), *(flight.askers or ())]
        for wake in waiting:
            wake()

    def forget_all(self) -> None:
        """After a fork: the leaders were threads of the parent."""
        self._lock = threading.Lock()
        self._table = {}
