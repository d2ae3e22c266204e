"""A web hook: a real HTTP server that answers as the test says, and keeps what it took."""

from __future__ import annotations

import socketserver
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Hook", "Raw"]


class Hook:
    def __init__(self) -> None:
        hook = self
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        """Statuses of the next answers."""
        self.refuses: dict[bytes, int] = {}
        """By body: always this status."""
        self.drops: set[bytes] = set()
        """Bodies on which it hangs up."""
        self.connections = 0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                hook.connections += 1
                super().setup()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if body in hook.drops:
                    self.close_connection = True
                    return
                status = hook.refuses.get(body) or (hook.answers.pop(0) if hook.answers else 204)
                if status < 300 or body not in hook.refuses:
                    hook.got.append(({k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(status)
                self.send_header("content-length", "0")
                if 300 <= status < 400:
                    self.send_header("location", hook.url)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Raw:
    """A server that answers a request with `head`, and then sends `rest` until the client has gone."""

    def __init__(self, head: bytes, rest: bytes) -> None:
        gone = self._gone = threading.Event()

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                try:
                    self.request.recv(65536)
                    self.request.sendall(head)
                    while rest and not gone.is_set():
                        self.request.sendall(rest)
                    gone.wait(60)
                except OSError:
                    return

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._gone.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
