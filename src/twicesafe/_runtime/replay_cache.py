"""The local replay cache: recorded answers, so that frequent duplicates need no store request.

It holds only answers that the store confirmed, as bytes, and none beyond its retention; the oldest
are evicted first. An operator's `release` or `forget` in another process is not seen until an entry
expires. That is why the cache is off by default.
"""

from __future__ import annotations

from collections import OrderedDict

from .._core.protocol import Claimed
from .._forking import RenewedLock
from .._values.clocks import WorkerClock

__all__ = ["ReplayCache"]


class ReplayCache:
    def __init__(self, size: int, clock: WorkerClock) -> None:
        self._size = size
        self._clock = clock
        self._lock = RenewedLock()
        self._kept: OrderedDict[bytes, tuple[float, Claimed]] = OrderedDict()

    def get(self, id: bytes) -> Claimed | None:  # noqa: A002
        found = self._kept.get(id)
        if found is None:
            return None
        until, answer = found
        if self._clock() >= until:
            self.drop(id)
            return None
        return answer

    def put(self, id: bytes, answer: Claimed) -> None:  # noqa: A002
        # Counted from the answer's arrival, minus a margin: never later than in the store.
        until = self._clock() + answer.expires_in / 1000 * 0.99
        with self._lock.now:
            self._kept[id] = (until, answer)
            self._kept.move_to_end(id)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)

    def drop(self, id: bytes) -> None:  # noqa: A002
        with self._lock.now:
            self._kept.pop(id, None)
