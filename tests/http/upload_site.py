"""An application behind the layer whose effect is a line in a file: the body that it was given."""

from __future__ import annotations

import sys
from typing import Any

from twicesafe import AsyncReceiver, Receiver
from twicesafe.asgi import IdempotencyMiddleware as AsgiLayer
from twicesafe.wsgi import IdempotencyMiddleware as WsgiLayer

STORE = "sqlite:///keys.db"
_made: dict[str, Any] = {}  # in the worker, not in a master that forks


def _ran(body: bytes) -> None:
    with open("ran", "ab") as ledger:
        ledger.write(body + b"\n")


async def _awaited(scope: Any, receive: Any, send: Any) -> None:
    message = await receive()
    _ran(message["body"])
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


def _blocking(environ: Any, start_response: Any) -> list[bytes]:
    _ran(environ["wsgi.input"].read())
    start_response("201 Created", [])
    return [b"done"]


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    if "asgi" not in _made:
        _made["asgi"] = AsgiLayer(_awaited, receiver=AsyncReceiver.open(STORE))
    await _made["asgi"](scope, receive, send)


def wsgi(environ: Any, start_response: Any) -> Any:
    if "wsgi" not in _made:
        _made["wsgi"] = WsgiLayer(_blocking, receiver=Receiver.open(STORE))
    return _made["wsgi"](environ, start_response)


if __name__ == "__main__":
    from werkzeug.serving import run_simple

    run_simple("127.0.0.1", int(sys.argv[1]), wsgi)
