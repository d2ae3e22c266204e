"""A proxy that can be cut: after so many more bytes, in one direction, both ends are closed."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

Way = Literal["request", "reply"]


class CuttingProxy:
    """Stands in front of a server, for one client after the other."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (parts.hostname or "127.0.0.1", parts.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        user = f"{parts.username}@" if parts.username else ""
        self.url = urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{port}"))
        self._left: dict[Way, int | None] = {"request": None, "reply": None}
        self._threads: list[threading.Thread] = []
        self.passed: dict[Way, int] = {"request": 0, "reply": 0}
        self._start(self._accept)

    def cut(self, way: Way, after: int | None) -> None:
        """From now on only so many bytes go this way; None: all of them."""
        self.passed = {"request": 0, "reply": 0}
        self._left = {"request": None, "reply": None}
        self._left[way] = after

    def close(self) -> None:
        self._listener.close()

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._start(self._carry, client, server, "request")
                self._start(self._carry, server, client, "reply")

    def _carry(self, source: socket.socket, target: socket.socket, way: Way) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                left = self._left[way]
                if left is not None and len(data) >= left:
                    target.sendall(data[:left])
                    break
                if left is not None:
                    self._left[way] = left - len(data)
                self.passed[way] += len(data)
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
