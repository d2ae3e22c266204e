"""A TCP proxy that counts round trips: how often a client spoke after it had been answered."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import Self


class Turns:
    """``with Turns(port) as proxy:`` connect to `proxy.port`, read `proxy.count`."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.count = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._other: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._answered: dict[socket.socket, bool] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._stop, self._stopped = socket.socketpair()
        self._selector.register(self._stopped, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.send(b".")
        self._thread.join()
        for each in (*self._other, self._listener, self._stop, self._stopped):
            each.close()
        self._selector.close()

    def cut(self) -> None:
        """Cut every connection, as a restarted router would."""
        for each in list(self._other):
            with contextlib.suppress(OSError):  # it was on its way out already
                each.shutdown(socket.SHUT_RDWR)

    def _work(self) -> None:
        while True:
            for ready, _ in self._selector.select():
                if ready.fileobj is self._stopped:
                    return
                if ready.fileobj is self._listener:
                    self._accept()
                else:
                    self._pass_on(ready.fileobj)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(("127.0.0.1", self._target))
        self._other |= {client: server, server: client}
        self._clients.add(client)
        self._answered[client] = True
        self._selector.register(client, selectors.EVENT_READ)
        self._selector.register(server, selectors.EVENT_READ)

    def _pass_on(self, from_: socket.socket) -> None:
        if from_ not in self._other:
            return
        to = self._other[from_]
        try:
            data = from_.recv(1 << 20)
            if data:
                if from_ not in self._clients:
                    self._answered[to] = True
                elif self._answered[from_]:
                    self._answered[from_] = False
                    self.count += 1
                to.sendall(data)
                return
        except OSError:
            data = b""
        for each in (from_, to):
            self._selector.unregister(each)
            del self._other[each]
            each.close()
