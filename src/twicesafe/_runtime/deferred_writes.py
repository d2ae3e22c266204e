"""Notes: what must be kept although the caller's transaction is rolled back.

A failed attempt is counted, and a failure that is the answer is kept, in a transaction of its own.
That can only be written once the caller has rolled back: until then its transaction holds the key.
So a thread of ours waits for that, in the caller's stead. A note that cannot be written within a
minute is given up, with a word in the log: the attempt is then not counted.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Final

from .._core.inbox_flow import DeferredWrite
from .._core.recording import without_payload
from .._forking import in_child
from .._values.clocks import WorkerClock, since_boot
from ..errors import StoreError, TwicesafeError

__all__ = ["DeferredWrites"]

PATIENCE: Final = 60.0
PAUSE: Final = 0.01

_log = logging.getLogger("twicesafe")


class DeferredWrites:
    """Writes notes by `write`, one after the other, in a thread that starts with the first."""

    def __init__(
        self,
        write: Callable[[DeferredWrite], object],
        clock: WorkerClock = since_boot,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._write, self._clock, self._sleep = write, clock, sleep
        self._fresh()
        in_child(self._fresh)  # thread and notes stay with the parent

    def _fresh(self) -> None:
        self._queue: queue.SimpleQueue[DeferredWrite | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._unwritten: dict[bytes, list[DeferredWrite]] = {}
        self._changed = threading.Condition()

    def add(self, note: DeferredWrite) -> None:
        with self._changed:
            self._unwritten.setdefault(note.claim.id, []).append(note)
            self._queue.put(note)
            if self._thread is None:
                self._thread = self._start()

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="twicesafe-notes", daemon=True)
        thread.start()
        return thread

    def unwritten(self, id: bytes) -> list[DeferredWrite]:  # noqa: A002
        """What is known about this key and not in the store yet."""
        return list(self._unwritten.get(id, ())) if self._unwritten else []

    def wait(self, id: bytes, seconds: float) -> None:  # noqa: A002
        """Until all notes about this key are written, or for so long."""
        with self._changed:
            self._changed.wait_for(lambda: id not in self._unwritten, seconds)

    def close(self, patience: float = 5.0) -> None:
        """Write what is left, for so many seconds."""
        thread = self._thread
        if thread is not None:
            self._queue.put(None)
            thread.join(patience)
            self._thread = None

    def _run(self) -> None:
        while (note := self._queue.get()) is not None:
            try:
                self._insist(note)
            except Exception as error:
                _log.warning("a failed attempt of %s was not noted: %s", note.claim.key, error)
            with self._changed:
                left = self._unwritten[note.claim.id]
                left.remove(note)
                if not left:
                    del self._unwritten[note.claim.id]
                self._changed.notify_all()

    def _insist(self, note: DeferredWrite) -> None:
        until = self._clock() + PATIENCE
        pause = PAUSE
        refused = 0
        while True:
            try:
                self._write(note)
            except TwicesafeError as error:
                if self._clock() > until:
                    raise
                refused += isinstance(error, StoreError) and not error.retryable
                if refused == 3:  # once or twice, it may have been a race with another note
                    note.end = without_payload(note.end)  # a failure without words still counts
            else:
                return
            self._sleep(pause)
            pause = min(2 * pause, 0.5)
