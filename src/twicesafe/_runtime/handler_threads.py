"""The threads of a blocking consumer's handlers, and of a relay's publisher: only as many run as they need.

A thread that takes a job wakes one more thread if there are more jobs, and then runs its own. A
handler that waits (for a server, a file) releases the interpreter to that other thread, which takes
the next job, and so on. So all jobs wait at the same time. A handler that does not wait has ended
before the other thread gets its turn, so one thread does all the work, without the cost of
switching to another thread for each message.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

__all__ = ["HandlerThreads"]

Job = Callable[[], None]


class HandlerThreads:
    """Up to `most` threads, which are started when they are needed. A job must not raise.

    ``daemon``: the program may end while a job runs.
    """

    def __init__(self, most: int, name: str, *, daemon: bool = False) -> None:
        self._most, self._name, self._daemon = most, name, daemon
        self._jobs: deque[Job] = deque()
        self._turn = threading.Semaphore(0)
        self._lock = threading.Lock()  # guards what follows
        self._started = self._idle = 0
        self._is_coming = False
        """A thread was woken or started, and has not looked for a job yet."""
        self._is_closed = False

    def run(self, jobs: Iterable[Job]) -> None:
        self._jobs.extend(jobs)
        self._wake()

    def close(self) -> None:
        """Drop jobs that have not begun. Threads end after the jobs that they run."""
        with self._lock:
            self._is_closed = True
            self._jobs.clear()
            for _ in range(self._idle):
                self._turn.release()

    def _wake(self) -> None:
        with self._lock:
            if self._is_coming or self._is_closed or not self._jobs:
                return
            if self._idle:
                self._idle -= 1
                self._turn.release()
            elif self._started < self._most:
                name = f"{self._name}_{self._started + 1}"
                try:
                    threading.Thread(target=self._work, name=name, daemon=self._daemon).start()
                except RuntimeError:  # the system has no thread left
                    if not self._started:
                        raise
                    return  # those that run take the jobs
                self._started += 1
            else:
                return
            self._is_coming = True

    def _work(self) -> None:
        jobs = self._jobs
        while True:
            with self._lock:
                self._is_coming = False
            while jobs:
                try:
                    job = jobs.popleft()
                except IndexError:
                    break
                if jobs and not self._is_coming:
                    self._wake()
                job()
                del job
            with self._lock:
                if self._is_closed:
                    return
                if jobs:
                    continue
                self._idle += 1
            self._turn.acquire()
