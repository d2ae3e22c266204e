"""Health: whether a receiver works well, and what to do next if it does not.

    receiver.health().status                    "ok", "degraded" or "failing"
    app.mount("/twicesafe", health_app(receiver))     /twicesafe/health and /twicesafe/ready, ASGI
    wsgi_health_app(receiver)                   the same for WSGI

``/ready`` asks the store for one key: 200, or 503 while neither it nor its fallback answers. ``/health``
answers with all checks as JSON: 200 if ok or degraded, 503 if failing. Counting the records of a large
store is slow, so ``/health`` counts at most every half minute, and spends at most 5 % of the time on it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ._core.health import Check, Health, Thresholds, thresholds_of
from .errors import ConfigurationError
from .receiver import AsyncReceiver, Receiver
from .receiver._health import Cached, is_reachable, is_reachable_async
from .receiver._receiver import check_any_receiver

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

__all__ = ["Check", "Health", "Thresholds", "health_app", "wsgi_health_app"]

_Message: TypeAlias = MutableMapping[str, Any]
_Answer: TypeAlias = tuple[int, dict[str, Any]]

_STATUS: Final = {
    200: "200 OK",
    404: "404 Not Found",
    405: "405 Method Not Allowed",
    503: "503 Service Unavailable",
}
_PATHS: Final = ("/health", "/ready")


def health_app(
    receiver: Receiver | AsyncReceiver, thresholds: Thresholds | None = None
) -> Callable[[_Message, Any, Any], Awaitable[None]]:
    """An ASGI application with ``/health`` and ``/ready``, to mount where only operators can reach it."""
    check_any_receiver(receiver, "health_app")
    cached = Cached(receiver, thresholds_of(thresholds))

    async def ask(path: str) -> _Answer:
        if isinstance(receiver, AsyncReceiver):
            return await _asked_async(receiver, cached, path)
        return await asyncio.to_thread(_asked, receiver, cached, path)

    async def app(scope: _Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        refused = _refused(scope["method"], scope["path"])
        status, said = refused or await ask(_path(scope["path"]))
        body = _body(said)
        fields = _fields(body, status)
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": _sent(scope["method"], body)})

    return app


def wsgi_health_app(
    receiver: Receiver, thresholds: Thresholds | None = None
) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    """A WSGI application with ``/health`` and ``/ready``."""
    if not isinstance(receiver, Receiver):
        raise ConfigurationError(
            f"wsgi_health_app needs a Receiver, and this is {type(receiver).__name__}: use health_app"
        )
    cached = Cached(receiver, thresholds_of(thresholds))
    return _wsgi(partial(_asked, receiver, cached))


def _wsgi(
    ask: Callable[[str], _Answer],
) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    def app(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        refused = _refused(environ["REQUEST_METHOD"], path)
        status, said = refused or ask(_path(path))
        body = _body(said)
        fields = _fields(body, status)
        start(_STATUS[status], [(name.decode(), value.decode()) for name, value in fields])
        return [_sent(environ["REQUEST_METHOD"], body)]

    return app


def _asked(receiver: Receiver, cached: Cached, path: str) -> _Answer:
    return _ready(is_reachable(receiver)) if path == "/ready" else _health(cached.health())


async def _asked_async(receiver: AsyncReceiver, cached: Cached, path: str) -> _Answer:
    if path == "/ready":
        return _ready(await is_reachable_async(receiver))
    return _health(await cached.health_async())


def _path(path: str) -> str:
    """The last part: a mounted application sees the whole path, or what is left of it."""
    return "/" + path.rstrip("/").rpartition("/")[2]


def _refused(method: str, path: str) -> _Answer | None:
    if _path(path) not in _PATHS:
        return 404, {"error": "not found: use /health or /ready"}
    return None if method in ("GET", "HEAD") else (405, {"error": "only GET"})


def _ready(error: str | None) -> _Answer:
    return (200, {"ready": True}) if error is None else (503, {"ready": False, "reason": error})


def _health(found: Health) -> _Answer:
    return 503 if found.status == "failing" else 200, found.as_dict()


def _body(said: dict[str, Any]) -> bytes:
    return json.dumps(said).encode() + b"\n"


def _sent(method: str, body: bytes) -> bytes:
    return b"" if method == "HEAD" else body


def _fields(body: bytes, status: int) -> list[tuple[bytes, bytes]]:
    return [
        *([(b"allow", b"GET, HEAD")] if status == 405 else []),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
