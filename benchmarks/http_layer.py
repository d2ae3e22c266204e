"""The HTTP layer alone: an ASGI application that is called in this process, with and without the layer.

There is no server, no socket and no framework, and the store is memory, so what remains above the floor is
the layer itself. The application reads the body and answers 200 bytes of JSON.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import msgspec

from . import ours
from .case import FLOOR, Case
from .workload import RESULT, Contestant

BODY = b'{"amount": 129900, "currency": "EUR", "items": ["a", "b"]}'
ANSWER = msgspec.json.encode(RESULT)
SECTION = "HTTP layer alone: an ASGI application in the same process, memory store"

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


async def application(scope: Message, receive: Receive, send: Send) -> None:
    message = await receive()
    assert message["body"] == BODY
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


def http_layer() -> Iterator[Case]:
    for what in ("first", "replay"):
        yield Case(
            f"http-layer/{what}",
            SECTION,
            f"{what}, against the bare application",
            lambda folder: called(FLOOR, application),
            with_ours,
            mode="async",
            fresh=what == "first",
            waits=False,
        )


def with_ours(folder: Path) -> Contestant:
    from twicesafe import AsyncReceiver
    from twicesafe.asgi import IdempotencyMiddleware

    receiver = AsyncReceiver.open("memory://")
    log = logging.getLogger("twicesafe")
    log.disabled = True  # it warns of memory://, rightly
    layer: Any = IdempotencyMiddleware(application, receiver=receiver)
    log.disabled = False
    return called(ours.NAME, layer, receiver.close)


def called(name: str, app: Application, close: Callable[[], Any] = lambda: None) -> Contestant:
    async def call(key: str) -> bytes:
        """One request with this key; the body of its answer."""
        unread, sent = [{"type": "http.request", "body": BODY, "more_body": False}], []

        async def receive() -> Message:
            if unread:
                return unread.pop()
            await asyncio.get_running_loop().create_future()  # the client stays
            raise AssertionError

        async def send(message: Message) -> None:
            sent.append(message)

        await app(_scope(key), receive, send)
        assert sent[0]["status"] == 201
        return b"".join(message.get("body", b"") for message in sent[1:])

    return Contestant(name, call, close)


def _scope(key: str) -> Message:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/charges",
        "raw_path": b"/charges",
        "query_string": b"",
        "root_path": "",
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
        "headers": [
            (b"host", b"127.0.0.1:8000"),
            (b"authorization", b"Bearer bench"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(BODY)),
            (b"idempotency-key", key.encode()),
        ],
        "state": {},
    }
