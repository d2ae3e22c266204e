"""Converts Django requests and responses."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest as DjangoRequest
from django.http import HttpResponse

from ..._core.http.message import Fields, HttpRequest, StoredResponse

__all__ = ["fields_of", "lines_of", "request_of", "response_of"]


def fields_of(request: DjangoRequest) -> list[tuple[bytes, bytes]]:
    """The header fields of the request. Django joins the lines of one name with commas."""
    return [
        (name.lower().encode("latin-1"), str(value).encode("latin-1", "replace"))
        for name, value in request.headers.items()
    ]


def request_of(request: DjangoRequest, fields: Fields) -> HttpRequest:
    path: str = request.path
    query: Any = request.META.get("QUERY_STRING", "")
    return HttpRequest(
        request.method,
        path,
        path.encode("utf-8", "surrogateescape"),
        query if isinstance(query, bytes) else query.encode("latin-1", "replace"),
        fields,
        b"",
        request,
        path.removesuffix(request.path_info),
    )


def lines_of(response: Any) -> list[tuple[bytes, bytes]]:
    """The header fields of a response. Django keeps cookies separately."""
    lines = [(n.encode("ascii"), v.encode("latin-1")) for n, v in response.items()]
    cookies = (morsel.OutputString() for morsel in response.cookies.values())
    return lines + [(b"set-cookie", text.encode("latin-1")) for text in cookies]


def response_of(stored: StoredResponse) -> HttpResponse:
    response = HttpResponse(stored.body, status=stored.status)
    del response["Content-Type"]  # Django's own guess
    for name, value in stored.headers:
        text = value.decode("latin-1")
        if name == b"set-cookie":
            response.cookies.load(text)
        else:
            response[name.decode("ascii").title()] = text
    return response
