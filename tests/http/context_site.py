"""Applications that tell what they find in their context, for every kind of server.

`asgi` and `wsgi` are plain ones; `django_asgi`, `django_wsgi` and ``context_site runserver`` are Django.
The answer's body is the key inside of the layer, its field ``X-Outside`` the key around it. The path says
how the answer is made: at once, in pieces, or while the application listens for its client.
"""

# ruff: noqa: E402 - most of Django can be imported only after its settings are made

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

from tests.clean_start import key_here
from twicesafe import AsyncReceiver, Receiver
from twicesafe.asgi import IdempotencyMiddleware as AsgiLayer
from twicesafe.wsgi import IdempotencyMiddleware as WsgiLayer

STORE = "sqlite:///keys.db"


async def asgi_inside(scope: Any, receive: Any, send: Any) -> None:
    found = key_here().encode()
    while (await receive()).get("more_body"):
        pass
    listening = asyncio.ensure_future(receive()) if scope["path"] == "/listens" else None
    await asyncio.sleep(0)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for piece in () if scope["path"] == "/plain" else (b"", b""):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": found})
    if listening is not None:
        listening.cancel()


def _layered() -> Any:
    layer: list[Any] = []

    async def outside(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        if not layer:
            layer.append(AsgiLayer(asgi_inside, receiver=AsyncReceiver.open(STORE)))
        found = key_here().encode()

        async def marked(message: Any) -> None:
            if message["type"] == "http.response.start":
                fields = [*message["headers"], (b"x-outside", found)]
                message = {**message, "headers": fields}
            await send(message)

        await layer[0](scope, receive, marked)

    return outside


asgi = _layered()


def wsgi_inside(environ: Any, start_response: Any) -> Any:
    found = key_here().encode()
    environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    lines = [] if environ["PATH_INFO"] == "/listens" else [("Content-Length", str(len(found)))]
    start_response("200 OK", lines)
    return [found] if environ["PATH_INFO"] == "/plain" else iter([b"", found])


def _around(app: Any) -> Any:
    def outside(environ: Any, start_response: Any) -> Any:
        found = key_here()

        def marked(status: str, headers: Any, *more: Any) -> Any:
            return start_response(status, [*headers, ("X-Outside", found)], *more)

        return app(environ, marked)

    return outside


_wsgi: list[Any] = []


def wsgi(environ: Any, start_response: Any) -> Any:
    if not _wsgi:  # in the worker, not in a master that forks
        _wsgi.append(_around(WsgiLayer(wsgi_inside, receiver=Receiver.open(STORE))))
    return _wsgi[0](environ, start_response)


# --- Django ------------------------------------------------------------------------------------


def _configured() -> None:
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(
            ALLOWED_HOSTS=["*"],
            SECRET_KEY="tests",
            ROOT_URLCONF=__name__,
            DEBUG=False,
            MIDDLEWARE=[
                f"{__name__}.outer",
                "twicesafe.integrations.django.IdempotencyMiddleware",
            ],
            TWICESAFE={"store": STORE},
            USE_TZ=True,
        )
        django.setup()


_configured()

from asgiref.sync import iscoroutinefunction
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import path
from django.utils.decorators import sync_and_async_middleware


@sync_and_async_middleware
def outer(get_response: Any) -> Any:
    if iscoroutinefunction(get_response):

        async def awaited(request: Any) -> Any:
            found = key_here()
            response = await get_response(request)
            response["X-Outside"] = found
            return response

        return awaited

    def blocking(request: Any) -> Any:
        found = key_here()
        response = get_response(request)
        response["X-Outside"] = found
        return response

    return blocking


def view(request: Any, kind: str) -> HttpResponse:
    found = key_here().encode()

    def pieces() -> Iterator[bytes]:
        yield b""
        yield found

    return HttpResponse(found) if kind == "plain" else StreamingHttpResponse(pieces())


urlpatterns = [path("<kind>", view)]
django_asgi, django_wsgi = get_asgi_application(), get_wsgi_application()


def main() -> None:
    if sys.argv[1] == "wsgiref":
        from wsgiref.simple_server import make_server

        make_server("127.0.0.1", int(sys.argv[2]), wsgi).serve_forever()
    else:
        from django.core.management import execute_from_command_line

        execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
