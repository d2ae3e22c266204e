"""Wake-ups by watch: one stream and one thread per store, for all waiters.

A waiter watches the deletion of an `l` key. Etcd deletes it in the transaction that ends the claim,
or when its lease is over. It watches from the revision at which it last saw the key, so nothing can
happen in between. If the stream fails or refuses a waiter, all waiters are woken after a pause, and
they ask the store; the next one opens a new stream, with the present login. Without the pause they
would ask as fast as they can, behind a proxy that passes calls and no streams.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from ..._forking import in_child
from .messages import NOPUT, message

__all__ = ["Waiter", "WakeupListener"]

RECONNECT_DELAY: Final = 0.1
"""Seconds."""


class Waiter:
    """`changed` is called when the key is gone, or when this cannot be known."""

    __slots__ = ("changed", "id", "key", "revision")

    def __init__(self, key: bytes, revision: int, changed: Callable[[], object]) -> None:
        self.key, self.revision, self.changed = key, revision, changed
        self.id = 0


class WakeupListener:
    """Shared by all waiters of a store; its thread starts with the first one, and ends with its stream."""

    def __init__(self, open_stream: Callable[[Iterator[Any]], Any]) -> None:
        self._open = open_stream
        self._reset()
        in_child(self._reset)  # the thread exists in the parent only

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[int, Waiter] = {}
        self._numbers = itertools.count(1)
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stream: Any = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self.failures = 0

    def watch(self, waiter: Waiter) -> None:
        create = {"key": waiter.key, "start_revision": waiter.revision, "filters": [NOPUT]}
        with self._lock:
            waiter.id = next(self._numbers)
            self._waiters[waiter.id] = waiter
            if self._thread is None:
                self._closed.clear()
                self._requests = queue.SimpleQueue()
                thread = threading.Thread(
                    target=self._work,
                    args=(self._requests,),
                    name="twicesafe-etcd-wakeups",
                    daemon=True,
                )
                thread.start()  # it may fail: then the next waiter tries again
                self._thread = thread
            self._requests.put(
                message("WatchRequest")(create_request={**create, "watch_id": waiter.id})
            )

    def unwatch(self, waiter: Waiter) -> None:
        with self._lock:
            if self._waiters.pop(waiter.id, None) is not None:
                cancel = {"watch_id": waiter.id}
                self._requests.put(message("WatchRequest")(cancel_request=cancel))

    def close(self) -> None:
        with self._lock:
            thread, stream = self._thread, self._stream
            self._requests.put(None)
        self._closed.set()
        if stream is not None:
            stream.cancel()
        if thread is not None:
            thread.join(2)

    # -- the thread -----------------------------------------------------------------------------

    def _work(self, requests: queue.SimpleQueue[Any]) -> None:
        try:
            stream = self._open(iter(requests.get, None))
            with self._lock:
                self._stream = stream
            for response in stream:
                if response.created and response.canceled:
                    stream.cancel()  # its login is over: it would refuse every waiter
                    break
                if response.events or response.canceled:
                    self._wake(response.watch_id)
        except Exception:
            # All waiters are woken below; the next one starts a new thread.
            self.failures += 1
        finally:
            self._closed.wait(RECONNECT_DELAY)
            with self._lock:
                waiters, self._waiters = list(self._waiters.values()), {}
                self._thread = self._stream = None
            requests.put(None)
            for waiter in waiters:
                waiter.changed()

    def _wake(self, number: int) -> None:
        with self._lock:
            waiter = self._waiters.get(number)
        if waiter is not None:
            waiter.changed()
