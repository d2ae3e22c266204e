"""Deferred writes: what must be recorded although the caller rolls back its transaction.

A failed attempt must be counted, and a remembered failure stored, in a separate transaction. That
is only possible after the caller has rolled back, because its transaction holds the key. So a
background thread waits for the rollback. If a write fails for a minute, it is dropped and logged;
the attempt is then not counted.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Final

from .._core.inbox_requests import DeferredWrite
from .._core.outcome_recording import without_payload
from .._forking import in_child
from .._values.clocks import WorkerClock, since_boot
from ..errors import StoreError, TwicesafeError

__all__ = ["DeferredWrites"]

RETRY_FOR: Final = 60.0
"""Seconds for which a write that fails is tried again; then it is dropped and logged."""
PAUSE: Final = 0.01
"""Seconds before the second try. Each further pause is twice as long, up to half a second."""

_log = logging.getLogger("twicesafe")


class DeferredWrites:
    """Calls `write` for each deferred write, in order, in a thread that starts with the first."""

    def __init__(
        self,
        write: Callable[[DeferredWrite], object],
        clock: WorkerClock = since_boot,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._write, self._clock, self._sleep = write, clock, sleep
        self._fresh()
        in_child(self._fresh)  # the thread and its queue stay with the parent

    def _fresh(self) -> None:
        self._queue: queue.SimpleQueue[DeferredWrite | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.pending: dict[bytes, list[DeferredWrite]] = {}
        """What is not in the store yet, or only just, by key; empty almost always."""
        self._changed = threading.Condition()

    def add(self, deferred: DeferredWrite) -> None:
        with self._changed:
            self.pending.setdefault(deferred.claim.id, []).append(deferred)
            self._queue.put(deferred)
            if self._thread is None:
                self._thread = self._start()

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="twicesafe-deferred-writes", daemon=True)
        thread.start()
        return thread

    def unwritten(self, id: bytes) -> list[DeferredWrite]:  # noqa: A002
        """Deferred writes for this key that are not in the store yet."""
        return [one for one in list(self.pending.get(id, ())) if not one.written]

    def wait(self, id: bytes, seconds: float) -> None:  # noqa: A002
        """Wait until all deferred writes for this key are done, at most this long."""
        with self._changed:
            self._changed.wait_for(lambda: id not in self.pending, seconds)

    def close(self, timeout: float = 5.0) -> None:
        """Finish the remaining writes, waiting at most this many seconds."""
        thread = self._thread
        if thread is not None:
            self._queue.put(None)
            thread.join(timeout)
            self._thread = None

    def _run(self) -> None:
        while (deferred := self._queue.get()) is not None:
            try:
                self._insist(deferred)
            except Exception as error:
                _log.warning(
                    "a failed attempt of %s was not recorded: %s", deferred.claim.key, error
                )
            with self._changed:
                left = self.pending[deferred.claim.id]
                left.remove(deferred)
                if not left:
                    del self.pending[deferred.claim.id]
                self._changed.notify_all()

    def _insist(self, deferred: DeferredWrite) -> None:
        until = self._clock() + RETRY_FOR
        pause = PAUSE
        refused = 0
        while True:
            try:
                self._write(deferred)
            except TwicesafeError as error:
                deferred.written = False
                if self._clock() > until:
                    raise
                refused += isinstance(error, StoreError) and not error.retryable
                if refused == 3:  # once or twice may be a race with another write
                    deferred.end = without_payload(deferred.end)  # count it without its text
            else:
                return
            self._sleep(pause)
            pause = min(2 * pause, 0.5)
