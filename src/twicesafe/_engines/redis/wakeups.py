"""One ear per process: a thread that hears what is announced about keys, and wakes who waits.

Scripts announce the end of a claim on a channel that has the key's own name. The ear holds one
connection per server and subscribes to the keys that somebody waits for, no others. Whoever waits
must ask the store once more *after* `ready`: what happened before the ear was there is not heard.
If the ear fails, all who wait are rung: they look for themselves.
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
    """Calls `ready` once it would hear, and `news` when there is something to hear."""

    __slots__ = ("channel", "news", "ready")

    def __init__(
        self, channel: bytes, ready: Callable[[], object], news: Callable[[], object]
    ) -> None:
        self.channel, self.ready, self.news = channel, ready, news


class WakeupListener:
    def __init__(
        self,
        locate: Callable[[bytes], Address],
        connect: Callable[[Address], Any],
        sharded: bool,
    ) -> None:
        self._locate = locate
        self._connect = connect
        self._words = (
            (b"SSUBSCRIBE", b"SUNSUBSCRIBE") if sharded else (b"SUBSCRIBE", b"UNSUBSCRIBE")
        )
        self._fresh()
        in_child(self._fresh)  # the thread stays with the parent

    def _fresh(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[bytes, set[Waiter]] = {}
        self._heard: set[bytes] = set()
        """Channels that the server confirmed."""
        self._jobs: deque[bytes | None] = deque()
        self._thread: threading.Thread | None = None
        self._bell: socket.socket | None = None
        self.failures = 0

    # -- for those who wait ---------------------------------------------------------------------

    def attend(self, waiter: Waiter) -> None:
        with self._lock:
            waiters = self._waiters.setdefault(waiter.channel, set())
            waiters.add(waiter)
            known = waiter.channel in self._heard
            if not known:
                self._put(waiter.channel)
        if known:
            waiter.ready()

    def leave(self, waiter: Waiter) -> None:
        with self._lock:
            waiters = self._waiters.get(waiter.channel)
            if waiters is None:
                return
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[waiter.channel]
                if self._thread is not None:  # else nobody listens any more
                    self._put(waiter.channel)

    def restart(self) -> None:
        """A server took another one's place: all who wait are rung, and are heard anew."""
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
            inside, self._bell = socket.socketpair()
            self._bell.setblocking(False)
            self._thread = threading.Thread(
                target=self._work, args=(inside,), name="twicesafe-redis-wakeups", daemon=True
            )
            self._thread.start()
        assert self._bell is not None
        try:
            self._bell.send(b".")
        except BlockingIOError:
            return  # it has been rung often enough

    # -- the thread -----------------------------------------------------------------------------

    def _work(self, inside: socket.socket) -> None:
        links: dict[Address, Any] = {}
        selector = selectors.DefaultSelector()
        selector.register(inside, selectors.EVENT_READ)
        try:
            while self._turn(inside, selector, links):
                pass
        except Exception:
            # Whatever it was, those who wait are rung below; the next who comes starts us again.
            self.failures += 1
        finally:
            with self._lock:
                everyone = [waiter for group in self._waiters.values() for waiter in group]
                self._heard.clear()
                self._thread = None
                if self._bell is not None:
                    self._bell.close()
                self._jobs.clear()
            selector.close()
            inside.close()
            for link in links.values():
                link.disconnect()
            _ring(everyone)

    def _turn(
        self, inside: socket.socket, selector: selectors.BaseSelector, links: dict[Address, Any]
    ) -> bool:
        for ready, _ in selector.select():
            if ready.fileobj is inside:
                inside.recv(4096)
                continue
            link = ready.data
            while True:
                self._hear(link.read_response(disable_decoding=True))
                if not link.can_read(0):
                    break
        while self._jobs:
            channel = self._jobs.popleft()
            if channel is None:
                return False
            self._tune(channel, selector, links)
        return True

    def _tune(
        self, channel: bytes, selector: selectors.BaseSelector, links: dict[Address, Any]
    ) -> None:
        with self._lock:
            wanted, heard = channel in self._waiters, channel in self._heard
            if wanted == heard:
                return
            if heard:
                self._heard.discard(channel)
        address = self._locate(channel)
        link = links.get(address)
        if link is None:
            link = links[address] = self._connect(address)
            link.connect()
            selector.register(link._sock, selectors.EVENT_READ, link)
        listen, ignore = self._words
        link.send_command(listen if wanted else ignore, channel)

    def _hear(self, message: Any) -> None:
        kind, channel = message[0], message[1]
        with self._lock:
            waiters = list(self._waiters.get(channel, ()))
            if kind in (b"subscribe", b"ssubscribe"):
                self._heard.add(channel)
                if not waiters:  # they left meanwhile
                    self._put(channel)
            elif kind in (b"unsubscribe", b"sunsubscribe"):
                self._heard.discard(channel)
                if waiters:  # somebody came, or the slot went elsewhere: once more
                    self._put(channel)
        if kind in (b"subscribe", b"ssubscribe"):
            for waiter in waiters:
                waiter.ready()
        elif kind in (b"message", b"smessage"):
            for waiter in waiters:
                waiter.news()


def _ring(waiters: list[Waiter]) -> None:
    for waiter in waiters:
        waiter.ready()
        waiter.news()
