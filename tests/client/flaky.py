"""A server that fails on purpose: in front of another one, or with its own answers.

Each request is met with the next deed of a script, the last one for ever:

    pass     forward it, and give back the answer
    refuse   reset the connection without looking at the request
    half     read the beginning of the request, and reset the connection
    lose     read the request, reset before anything is forwarded
    drop     forward it, let it take effect, reset instead of answering
    cut      forward it, send half of the answer, reset
    bytes    its own answer, nothing is forwarded
"""

from __future__ import annotations

import http.client
import io
import socket
import struct
import threading
from typing import Any

Deed = str | bytes


class Flaky:
    def __init__(self, *script: Deed, behind: int = 0) -> None:
        self.script = list(script) or ["pass"]
        self.behind = behind
        self.seen: list[bytes] = []
        """Requests as they were read, in order."""
        self.forwarded = threading.Semaphore(0)
        """Released for each request that the server behind has answered."""
        self._lock = threading.Lock()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/charges"

    @property
    def keys(self) -> list[str]:
        """The key of each request that was read."""
        return [_field(request, b"idempotency-key") for request in self.seen]

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            with self._lock:
                deed = self.script.pop(0) if len(self.script) > 1 else self.script[0]
            if deed == "half":
                connection.recv(1024)
            elif deed != "refuse":
                request = _read_request(connection)
                if not request:
                    return
                self.seen.append(request)
                self._do(deed, request, connection)
            # Linger 0: the client gets a reset, not an orderly end.
            if deed in ("refuse", "half", "lose", "drop", "cut"):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _do(self, deed: Deed, request: bytes, connection: socket.socket) -> None:
        if deed == "lose":
            return
        answer = deed if isinstance(deed, bytes) else self._forward(request)
        if deed == "cut":
            head, _, body = answer.partition(b"\r\n\r\n")
            connection.sendall(head + b"\r\n\r\n" + body[: len(body) // 2])
            connection.shutdown(socket.SHUT_WR)  # what was sent arrives before the reset
            _drain(connection)
        elif deed != "drop":
            connection.sendall(answer)

    def _forward(self, request: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.behind), 120) as upstream:
            upstream.sendall(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            answer = _drain(upstream)
        self.forwarded.release()
        return answer


def response(status: int, body: bytes = b"{}", *lines: str) -> bytes:
    head = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}", "Connection: close", *lines]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def _drain(connection: socket.socket) -> bytes:
    got = b""
    while piece := connection.recv(65536):
        got += piece
    return got


def _read_request(connection: socket.socket) -> bytes:
    got = b""
    while b"\r\n\r\n" not in got:
        piece = connection.recv(65536)
        if not piece:
            return b""
        got += piece
    head, _, body = got.partition(b"\r\n\r\n")
    if _field(got, b"transfer-encoding") == "chunked":
        while not (b"\r\n" + body).endswith(b"\r\n0\r\n\r\n"):  # a boundary may end with a 0
            body += connection.recv(65536)
    else:
        while len(body) < int(_field(got, b"content-length") or 0):
            body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def _field(request: bytes, name: bytes) -> str:
    lines = io.BytesIO(request.partition(b"\r\n\r\n")[0].partition(b"\r\n")[2] + b"\r\n\r\n")
    found: Any = http.client.parse_headers(lines)
    return str(found.get(name.decode(), ""))
