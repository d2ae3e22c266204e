"""Flights: where equal keys of one process meet, so that they do not all go to the store.

The first to board a key leads; the others ride and are woken the moment it lands, by its own
recorded answer. When the leader ends without an answer, the riders board again and one of them
takes over. A caller that would not wait for a handler asks only what becomes of the leader's claim:
it is woken when the flight departs (a handler runs), when it is delayed (the leader itself waits for
another process), or when it lands. One table serves threads and event loops alike.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from .._core.protocol import Claimed

__all__ = ["Flight", "SingleFlight"]


class Flight:
    __slots__ = (
        "askers",
        "delayed",
        "departed",
        "fingerprint",
        "id",
        "landed",
        "landing",
        "wakers",
    )

    def __init__(self, id: bytes, fingerprint: bytes | None) -> None:  # noqa: A002
        self.id = id
        self.fingerprint = fingerprint
        self.departed = self.delayed = self.landed = False
        self.landing: Claimed | None = None
        self.wakers: list[Callable[[], object]] | None = None
        self.askers: list[Callable[[], object]] | None = None


class SingleFlight:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: dict[bytes, Flight] = {}

    def board(self, mine: Flight) -> Flight:
        """The flight of this key: the caller leads if it is its own.

        Whoever brings one keeps it until it has landed, whatever happens in here.
        """
        return self._table.setdefault(mine.id, mine)  # atomic: one of all threads leads

    def ride(self, flight: Flight, waker: Callable[[], object], most: int) -> bool:
        """Be woken when it lands. False: it has landed already."""
        with self._lock:
            if flight.landed:
                return False
            if flight.wakers is None:
                flight.wakers = []
            if len(flight.wakers) >= most:
                raise OverflowError
            flight.wakers.append(waker)
            return True

    def ask(self, flight: Flight, waker: Callable[[], object]) -> bool:
        """Be woken when it is known whether a handler runs here. False: it is."""
        with self._lock:
            if flight.departed or flight.delayed or flight.landed:
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

    def depart(self, flight: Flight) -> None:
        """The leader's claim is won, and its handler runs."""
        flight.departed = True
        self._tell_askers(flight)

    def delay(self, flight: Flight) -> None:
        """Another process works on the key; the leader waits for it."""
        flight.delayed = True
        self._tell_askers(flight)

    def _tell_askers(self, flight: Flight) -> None:
        with self._lock:
            askers, flight.askers = flight.askers, None
        for wake in askers or ():
            wake()

    def land(self, flight: Flight, answer: Claimed | None) -> None:
        """Tell the riders; the key may be boarded anew."""
        with self._lock:
            if not flight.landed:
                flight.landing = answer
                flight.landed = True
            if self._table.get(flight.id) is flight:  # else: it never led, or we were forked
                del self._table[flight.id]
            # A copy: who is woken leaves at once, and must not shorten the list we walk along.
            waiting = [*(flight.wakers or ()), *(flight.askers or ())]
        for wake in waiting:
            wake()

    def forget_all(self) -> None:
        """After a fork: the leaders are threads of the parent."""
        self._lock = threading.Lock()
        self._table = {}
