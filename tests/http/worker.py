"""One worker process behind a shared listening socket. Run as a script by the tests.

    worker.py asgi|wsgi FD URL LEDGER SETTINGS

The handler's effect is a line in the ledger, `key pid`; its answer is random, so that only a replay
can give it twice. With ``X-Hang: before`` or ``after`` it stops for ever before or after the effect,
for the test to kill it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from typing import Any


class Shop:
    def __init__(self, ledger: str) -> None:
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def charge(self, key: str, hang: str) -> bytes:
        if hang == "before":
            self._say(f"{key} {os.getpid()} begins")
            threading.Event().wait()
        self._say(f"{key} {os.getpid()}")
        if hang == "after":
            threading.Event().wait()
        return os.urandom(16).hex().encode()

    def _say(self, line: str) -> None:
        os.write(self._ledger, f"{line}\n".encode())


def asgi(shop: Shop, url: str, policy: Any, listening: socket.socket) -> None:
    import asyncio

    import uvicorn

    from twicesafe import AsyncReceiver
    from twicesafe.asgi import IdempotencyMiddleware

    async def app(scope: Any, receive: Any, send: Any) -> None:
        fields = {name: value.decode() for name, value in scope["headers"]}
        key, hang = fields[b"idempotency-key"], fields.get(b"x-hang", "")
        body = await asyncio.to_thread(shop.charge, key, hang)
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": body})

    layer = IdempotencyMiddleware(app, receiver=AsyncReceiver.open(url), policy=policy)
    config = uvicorn.Config(layer, log_config=None, lifespan="off", ws="none")
    print("ready", flush=True)
    uvicorn.Server(config).run([listening])


def wsgi(shop: Shop, url: str, policy: Any, listening: socket.socket) -> None:
    from tests.http.stage import _Quiet, _Threads
    from twicesafe import Receiver
    from twicesafe.wsgi import IdempotencyMiddleware

    def app(environ: Any, start_response: Any) -> list[bytes]:
        body = shop.charge(environ["HTTP_IDEMPOTENCY_KEY"], environ.get("HTTP_X_HANG", ""))
        start_response("201 Created", [])
        return [body]

    server = _Threads(("127.0.0.1", 0), _Quiet, bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    server.server_name, server.server_port = "stage", 0
    server.setup_environ()
    server.set_app(IdempotencyMiddleware(app, receiver=Receiver.open(url), policy=policy))
    print("ready", flush=True)
    server.serve_forever(0.05)


def main() -> None:
    edge, fd, url, ledger, settings = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from twicesafe.http import HttpPolicy

    policy = HttpPolicy(**json.loads(settings))
    serve = asgi if edge == "asgi" else wsgi
    serve(Shop(ledger), url, policy, socket.socket(fileno=int(fd)))


if __name__ == "__main__":
    main()
