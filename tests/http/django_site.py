"""A small Django site for the tests: its settings, its views, and both of its handlers.

`Site` serves it over a real socket, under WSGI or ASGI, with the layer as a line in MIDDLEWARE.
"""

# ruff: noqa: E402 - most of Django can be imported only after its settings are made

from __future__ import annotations

import asyncio
import tempfile
import threading
from pathlib import Path
from typing import Any

import django
from django.conf import settings

FOLDER = tempfile.TemporaryDirectory(prefix="twicesafe-django-")

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="tests",
        ROOT_URLCONF=__name__,
        INSTALLED_APPS=[
            "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
            "rest_framework",
        ],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(Path(FOLDER.name, "shop.db")),
                "ATOMIC_REQUESTS": True,
                "OPTIONS": {"transaction_mode": "IMMEDIATE"},
            }
        },
        MIDDLEWARE=[
            f"{__name__}.login",
            "twicesafe.integrations.django.IdempotencyMiddleware",
            f"{__name__}.inner",
        ],
        LOGGING_CONFIG=None,
        USE_TZ=True,
        REST_FRAMEWORK={"UNAUTHENTICATED_USER": None},
    )  # fmt: skip
    django.setup()

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.db import connection, transaction
from django.http import FileResponse, Http404, HttpResponse, JsonResponse, StreamingHttpResponse
from django.test import override_settings
from django.urls import path
from django.utils.decorators import sync_and_async_middleware, sync_only_middleware
from rest_framework import exceptions, serializers
from rest_framework.decorators import api_view
from rest_framework.response import Response

from tests.http.stage import Stage
from twicesafe import Receiver, current_claim, current_key
from twicesafe._core.http.problems import Problem, RequestRefused

seen: list[str] = []
gate, entered = threading.Event(), threading.Event()


class User:
    is_authenticated = True

    def __init__(self, pk: str) -> None:
        self.pk = pk


@sync_and_async_middleware
def login(get_response: Any) -> Any:
    """``X-User`` says who it is; a request without it has no user."""

    def known(request: Any) -> None:
        if "X-User" in request.headers:
            request.user = User(request.headers["X-User"])

    if iscoroutinefunction(get_response):

        async def awaited(request: Any) -> Any:
            known(request)
            return await get_response(request)

        return awaited

    def blocking(request: Any) -> Any:
        known(request)
        return get_response(request)

    return blocking


@sync_and_async_middleware
def inner(get_response: Any) -> Any:
    """A middleware inside of the layer, which fails if it is asked to."""

    def check(request: Any) -> None:
        if "X-Fail-Inside" in request.headers:
            raise ValueError("a bug of a middleware")

    if iscoroutinefunction(get_response):

        async def awaited(request: Any) -> Any:
            check(request)
            return await get_response(request)

        return awaited

    def blocking(request: Any) -> Any:
        check(request)
        return get_response(request)

    return blocking


@sync_only_middleware
def blocking(get_response: Any) -> Any:
    """Does nothing. Django runs it in a thread, also under ASGI."""
    return get_response


@sync_and_async_middleware
def awaiting(get_response: Any) -> Any:
    """Does nothing."""
    return get_response


def charge(request: Any) -> HttpResponse:
    key = current_key()
    seen.append(request.headers.get("Idempotency-Key", ""))
    response = JsonResponse({"key": key and key.value, "n": len(seen)}, status=201)
    response["X-Own"] = "kept"
    response.set_cookie("c", "1")
    return response


def fail(request: Any, kind: str) -> HttpResponse:
    seen.append(kind)
    if kind == "refused":
        raise RequestRefused(Problem("upstream-unavailable"))
    raise {"missing": Http404, "denied": PermissionDenied, "bug": ValueError}[kind]("no")


def write(request: Any) -> HttpResponse:
    """One row; the first attempt fails after it."""
    seen.append("write")
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO rows (name) VALUES ('x')")
    claim = current_claim()
    if claim is not None and claim.attempt == 1:
        raise ConnectionError("after the write")
    return HttpResponse("written")


def stream(request: Any, kind: str) -> HttpResponse:
    seen.append(kind)
    if kind == "late":
        entered.set()
        gate.wait(60)

    def parts() -> Any:
        yield b"1"
        if kind == "gated":
            entered.set()
            gate.wait(60)
        if kind == "cut":
            raise OSError("cut")
        if kind == "long":
            yield from (b"a", b"b", b"c")
        yield b"2"

    return StreamingHttpResponse(parts())


@transaction.non_atomic_requests  # Django has no atomic async views
async def stream_async(request: Any, kind: str) -> HttpResponse:
    seen.append(kind)
    if kind == "late":
        entered.set()
        await asyncio.to_thread(gate.wait, 20)

    async def parts() -> Any:
        yield b"1"
        if kind == "gated":
            entered.set()
            await asyncio.to_thread(gate.wait, 20)
        if kind == "cut":
            raise OSError("cut")
        yield b"2"

    return StreamingHttpResponse(parts())


def file(request: Any) -> HttpResponse:
    seen.append("file")
    return FileResponse(open(__file__, "rb"))


def slow(request: Any) -> HttpResponse:
    seen.append("slow")
    entered.set()
    gate.wait(60)
    return HttpResponse("slow")


@transaction.non_atomic_requests
async def slow_async(request: Any) -> HttpResponse:
    seen.append("slow")
    entered.set()
    await asyncio.to_thread(gate.wait, 20)
    return HttpResponse("slow")


class Order(serializers.Serializer):
    cents = serializers.IntegerField()


@api_view(["POST"])
def rest(request: Any) -> Response:
    token = request.headers.get("Authorization", "")
    if token not in tokens:
        raise exceptions.NotAuthenticated
    order = Order(data=request.data)
    order.is_valid(raise_exception=True)
    seen.append(token)
    if order.validated_data["cents"] == 13:
        raise ValueError("a bug")
    return Response({"cents": order.validated_data["cents"]}, 201)


tokens: set[str] = set()
urlpatterns = [
    path("charges", charge), path("fail/<kind>", fail), path("write", write), path("file", file),
    path("stream/<kind>", stream), path("stream-async/<kind>", stream_async),
    path("slow", slow), path("slow-async", slow_async), path("rest", rest),
]  # fmt: skip


class Site:
    """The site behind one of the test servers."""

    def __init__(
        self, edge: str, store: Path | str, *, encryption: Any = None, **policy: Any
    ) -> None:
        self.url = store if isinstance(store, str) else f"sqlite:///{store / 'keys.db'}"
        self.stage = Stage(edge)
        seen.clear()
        gate.clear()
        entered.clear()
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE IF EXISTS rows")
            cursor.execute("CREATE TABLE rows (name TEXT)")
        connection.close()
        given = {"store": self.url, "policy": policy, "encryption": encryption}
        with override_settings(TWICESAFE=given):
            self.handler: Any = ASGIHandler() if edge == "asgi" else WSGIHandler()
        self.stage.server.app = self.handler

    def send(self, key: str | None, path: str, *fields: Any, body: bytes = b"{}") -> Any:
        return self.stage.send(key, body, "POST", path, *fields)

    def twice(self, path: str, key: str = "k", *fields: Any, body: bytes = b"{}") -> Any:
        return [self.send(key, path, *fields, body=body) for _ in range(2)]

    def state(self, key: str) -> str:
        with Receiver.open(self.url) as operator:
            records = list(operator.records(limit=100))
        (state,) = [record.state for record in records if record.value == key]
        return str(state.value)

    def rows(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM rows")
            (count,) = cursor.fetchone()
        connection.close()
        return int(count)

    def close(self) -> None:
        gate.set()
        self.stage.close()
