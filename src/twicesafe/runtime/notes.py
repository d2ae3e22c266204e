"""Notes: what must be kept although the caller's transaction is rolled back.

A failed attempt is counted, and a failure that is the answer is kept, in a transaction of its own.
That can only be written once the caller has rolled back: until then its transaction holds the key.
So a thread of ours waits for that, in the caller's stead. A note that cannot be written within a
minute is given up, with a word in the log: the attempt is then not counted.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from ..core.inbox import Note
from ..core.protocol import Claimed, Verdict
from ..errors import TwicesafeError

__all__ = ["Notes"]

PATIENCE: Final = 60.0
PAUSE: Final = 0.01

_log = logging.getLogger("twicesafe")


class Notes:
    """Writes notes by `perform`, one after the other, in a thread that starts with the first."""

    def __init__(self, perform: Callable[[Any], Any]) -> None:
        self._perform = perform
        self._fresh()

    def _fresh(self) -> None:
        self._pid = os.getpid()
        self._queue: queue.SimpleQueue[Note | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._unwritten: dict[bytes, threading.Event] = {}
        self._lock = threading.Lock()

    def add(self, note: Note) -> None:
        if self._pid != os.getpid():  # forked: thread and notes stayed with the parent
            self._fresh()
        with self._lock:
            self._unwritten[note.claim.id] = threading.Event()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="twicesafe-notes", daemon=True
                )
                self._thread.start()
        self._queue.put(note)

    def unwritten(self, id: bytes) -> threading.Event | None:  # noqa: A002
        """Set when the last note about this key is written; None: there is none to wait for."""
        return self._unwritten.get(id) if self._unwritten else None

    def close(self, patience: float = 5.0) -> None:
        """Write what is left, for so many seconds."""
        thread = self._thread
        if thread is not None and self._pid == os.getpid():
            self._queue.put(None)
            thread.join(patience)
            self._thread = None

    def _run(self) -> None:
        while (note := self._queue.get()) is not None:
            try:
                self._write(note)
            except Exception as error:
                _log.warning("a failed attempt of %s was not noted: %s", note.claim.key, error)
            written = self._unwritten.pop(note.claim.id, None)
            if written is not None:
                written.set()

    def _write(self, note: Note) -> None:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return self._write_once(note)
            except TwicesafeError as error:
                if not error.retryable or time.monotonic() > until:
                    raise
            time.sleep(PAUSE)

    def _write_once(self, note: Note) -> None:
        answer: Claimed = self._perform(note.claim)
        if answer.verdict is Verdict.WON:  # else it is done meanwhile, or parked
            note.end.fence = answer.fence
            self._perform(note.end)
