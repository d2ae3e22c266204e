"""A web hook: a real HTTP server that answers as the test says, and keeps what it took."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Hook"]


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

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

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
