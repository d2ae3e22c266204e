"""Wake-ups by PUBLISH: one thread per process subscribes to keys for all waiters.

Scripts announce the end of a claim on a channel with the name of the key. The thread has one
connection per server, and subscribes only to keys that have waiters. A waiter must ask the store again
*after* `ready`: it gets no announcement of what happened before. If the thread fails, it wakes all
waiters, and they ask the store.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from ..._forking import in_child
from .settings import Address

__all__ = ["Waiter", "WakeupListener"]


class Waiter:
    """`ready` is called when the subscription is active, `changed` when the key may have changed."""

    __slots__ = ("changed", "channel", "ready")

    def __init__(
        self, channel: bytes, ready: Callable[[], object], changed: Callable[[], object]
    ) -> None:
        self.channel, self.ready, self.changed = channel, ready, changed


class WakeupListener:
    """Shared by all waiters of a store; its thread starts with the first one."""

    def __init__(
        self,
        locate: Callable[[bytes], Address],
        connect: Callable[[Address], Any],
        sharded: bool,
    ) -> None:
        self._locate = locate
        self._connect = connect
        self._commands = (
            (b"SSUBSCRIBE", b"SUNSUBSCRIBE") if sharded else (b"SUBSCRIBE", b"UNSUBSCRIBE")
        )
        self._reset()
        in_child(self._reset)  # the thread exists in the parent only

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[bytes, set[Waiter]] = {}
        self._subscribed: set[bytes] = set()
        """Channels that the server confirmed."""
        self._jobs: deque[bytes | None] = deque()
        self._thread: threading.Thread | None = None
        self._wake: socket.socket | None = None
        self.failures = 0

    # -- for waiters ------------------------------------------------------------------------------

    def watch(self, waiter: Waiter) -> None:
        with self._lock:
            waiters = self._waiters.setdefault(waiter.channel, set())
            waiters.add(waiter)
            known = waiter.channel in self._subscribed
            if not known:
                self._put(waiter.channel)
        if known:
            waiter.ready()

    def unwatch(self, waiter: Waiter) -> None:
        with self._lock:
            waiters = self._waiters.get(waiter.channel)
            if waiters is None:
                return
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[waiter.channel]
                if self._thread is not None:  # otherwise the thread has ended
                    self._put(waiter.channel)

    def restart(self) -> None:
        """Another server became the primary: wake all waiters; they subscribe again."""
        with self._lock:
            if self._thread is not None:
                self._put(None)

    def close(self) -> None:
        with self._lock:
            thread = self._thread
            if thread is not None:
                self._put(None)
        if thread is not None:
            thread.join(2)

    def _put(self, job: bytes | None) -> None:
        self._jobs.append(job)
        if self._thread is None:
            jobs_socket, wake = socket.socketpair()
            wake.setblocking(False)
            thread = threading.Thread(
                target=self._work, args=(jobs_socket,), name="twicesafe-redis-wakeups", daemon=True
            )
            try:
                thread.start()
            except BaseException:  # the system has no thread left: the next waiter tries again
                jobs_socket.close()
                wake.close()
                raise
            self._thread, self._wake = thread, wake
        assert self._wake is not None
        try:
            self._wake.send(b".")
        except BlockingIOError:
            return  # the thread has not read the earlier wake-ups yet

    # -- the thread -----------------------------------------------------------------------------

    def _work(self, jobs_socket: socket.socket) -> None:
        links: dict[Address, Any] = {}
        selector = selectors.DefaultSelector()
        selector.register(jobs_socket, selectors.EVENT_READ)
        try:
            while self._step(jobs_socket, selector, links):
                pass
        except Exception:
            # All waiters are woken below; the next one starts a new thread.
            self.failures += 1
        finally:
            with self._lock:
                all_waiters = [waiter for group in self._waiters.values() for waiter in group]
                self._subscribed.clear()
                self._thread = None
                if self._wake is not None:
                    self._wake.close()
                self._jobs.clear()
            selector.close()
            jobs_socket.close()
            for link in links.values():
                link.disconnect()
            _wake_all(all_waiters)

    def _step(
        self,
        jobs_socket: socket.socket,
        selector: selectors.BaseSelector,
        links: dict[Address, Any],
    ) -> bool:
        for ready, _ in selector.select():
            if ready.fileobj is jobs_socket:
                jobs_socket.recv(4096)
                continue
            link = ready.data
            while True:
                self._receive(link.read_response(disable_decoding=True))
                if not link.can_read(0):
                    break
        while self._jobs:
            channel = self._jobs.popleft()
            if channel is None:
                return False
            self._update_subscription(channel, selector, links)
        return True

    def _update_subscription(
        self, channel: bytes, selector: selectors.BaseSelector, links: dict[Address, Any]
    ) -> None:
        with self._lock:
            wanted, subscribed = channel in self._waiters, channel in self._subscribed
            if wanted == subscribed:
                return
            if subscribed:
                self._subscribed.discard(channel)
        address = self._locate(channel)
        link = links.get(address)
        if link is None:
            link = links[address] = self._connect(address)
            link.connect()
            selector.register(link._sock, selectors.EVENT_READ, link)
        subscribe, unsubscribe = self._commands
        link.send_command(subscribe if wanted else unsubscribe, channel)

    def _receive(self, message: Any) -> None:
        kind, channel = message[0], message[1]
        with self._lock:
            waiters = list(self._waiters.get(channel, ()))
            if kind in (b"subscribe", b"ssubscribe"):
                self._subscribed.add(channel)
                if not waiters:  # they are gone meanwhile
                    self._put(channel)
            elif kind in (b"unsubscribe", b"sunsubscribe"):
                self._subscribed.discard(channel)
                if waiters:  # a new waiter came, or the slot moved: subscribe again
                    self._put(channel)
        if kind in (b"subscribe", b"ssubscribe"):
            for waiter in waiters:
                waiter.ready()
        elif kind in (b"message", b"smessage"):
            for waiter in waiters:
                waiter.changed()


def _wake_all(waiters: list[Waiter]) -> None:
    for waiter in waiters:
        waiter.ready()
        waiter.changed()
