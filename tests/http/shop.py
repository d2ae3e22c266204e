"""The shop of `shop.mjs` in Python's standard library, where there is no Node: shop.py LEDGER"""

from __future__ import annotations

import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Shop(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        key, hang = self.headers.get("idempotency-key", "none"), self.headers.get("x-hang")
        say(f"{key} begins")
        if hang == "before":
            threading.Event().wait()
        while hang == "wait" and os.path.exists(f"{sys.argv[1]}.wait"):
            threading.Event().wait(0.005)
        say(key)
        if hang == "after":
            threading.Event().wait()
        body = os.urandom(16).hex().encode()
        head = f"HTTP/1.1 201 Created\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        self.wfile.write(head + body)

    def log_message(self, *_: Any) -> None: ...


def say(line: str) -> None:
    os.write(ledger, f"{line}\n".encode())


if __name__ == "__main__":
    ledger = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    shop = Shop(("127.0.0.1", 0), Handler)
    print(shop.server_address[1], flush=True)
    shop.serve_forever()
