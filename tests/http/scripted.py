"""An upstream that does what a test says with the octets of its connections, and counts requests.

    service = Scripted([OK], [reset])      the first connection answers, the second is reset

Each connection has a script: for each request that arrives whole, bytes to send, or a callable of the
socket. What is left to say after the last step is nothing: the connection is closed.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

Step = bytes | Callable[[socket.socket], Any]

OK = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok"


def reset(connection: socket.socket) -> None:
    """End it so that the other side sees an error, not an end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class Scripted:
    def __init__(self, *scripts: Sequence[Step], context: ssl.SSLContext | None = None) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._listening.getsockname()[1]}"
        self._context = context
        self._scripts = list(scripts)
        self.requests: list[bytes] = []
        self.connections = 0
        self.arrived = threading.Semaphore(0)
        """Released for each request that arrived whole."""
        self.open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()
        for connection in self.open:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            self.open.append(connection)
            script = self._scripts.pop(0) if self._scripts else [OK] * 100
            threading.Thread(target=self._play, args=(connection, script), daemon=True).start()

    def _play(self, connection: socket.socket, script: Sequence[Step]) -> None:
        try:
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)
            for step in script:
                if not (request := self._request(connection)):
                    break
                self.requests.append(request)
                self.arrived.release()
                if isinstance(step, bytes):
                    connection.sendall(step)
                else:
                    step(connection)
        except OSError:
            pass
        finally:
            connection.close()

    def _request(self, connection: socket.socket) -> bytes:
        data = b""
        while not whole(data):
            piece = connection.recv(65536)
            if not piece:
                return b""
            data += piece
        return data


def whole(data: bytes) -> bool:
    head, end, body = data.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return bool(end) and len(body) >= int(line.partition(b":")[2])
        if line == b"transfer-encoding: chunked":
            return body.endswith(b"0\r\n\r\n")
    return bool(end)
