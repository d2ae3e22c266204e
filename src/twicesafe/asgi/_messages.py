"""Converts ASGI scopes and messages to requests and responses, and back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from operator import is_
from typing import Any, TypeAlias

from .._core.http.message import HttpRequest, StoredResponse
from .._core.http.rules import HttpRules

__all__ = [
    "App",
    "InnerScope",
    "Message",
    "Receive",
    "Scope",
    "Send",
    "answer",
    "request_of",
    "version_of",
    "whole_body",
    "with_body",
]

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_BY_FILE = ("http.response.pathsend", "http.response.zerocopysend")
"""Extensions that send a body past the middleware, so that it cannot be recorded."""

_OURS = ("headers", "extensions")
"""What this middleware changes in the scope of the application."""


def request_of(scope: Scope) -> HttpRequest:
    path: str = scope["path"]
    target = scope.get("raw_path") or path.encode("utf-8", "surrogateescape")
    query, mount = scope.get("query_string", b""), scope.get("root_path", "")
    return HttpRequest(
        scope["method"].upper(), path, target, query, scope["headers"], b"", scope, mount
    )


def version_of(scope: Scope) -> tuple[int, ...]:
    """The ASGI version. Since 2.4 `send` raises OSError after a disconnect."""
    text: str = scope.get("asgi", {}).get("spec_version", "2.0")
    return tuple(map(int, text.split(".")))


class InnerScope:
    """The scope for the application. It is the outer scope, unless the application must not see all of it:
    then it is a copy without the key's fields or the extensions that bypass the recording.

    Routers write `route`, `endpoint` and `path_params` into it. `copy_to_outer` copies them to the
    outer scope, where outer middleware looks for them.
    """

    __slots__ = ("_known", "_outer", "scope")

    def __init__(self, outer: Scope, rules: HttpRules, *, records: bool = True) -> None:
        changes: dict[str, Any] = {}
        hidden = rules.hidden
        if hidden:
            changes["headers"] = [line for line in outer["headers"] if line[0] not in hidden]
        extensions = outer.get("extensions")
        if records and extensions and any(name in extensions for name in _BY_FILE):
            kept = {name: each for name, each in extensions.items() if name not in _BY_FILE}
            changes["extensions"] = kept
        self._outer = outer
        self.scope: Scope = {**outer, **changes} if changes else outer
        self._known: Scope | None = {**self.scope} if changes else None

    def copy_to_outer(self) -> None:
        """Copy what the application has changed since the last call."""
        now, known = self.scope, self._known
        if known is None or (
            list(now) == list(known) and all(map(is_, now.values(), known.values()))
        ):
            return
        for name, value in now.items():
            if name not in _OURS and known.get(name, self) is not value:
                known[name] = self._outer[name] = value


async def whole_body(receive: Receive, rules: HttpRules) -> bytes | None:
    """The whole body, or None if the client disconnected first."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > rules.max_body:
            raise rules.too_large()
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def with_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that first returns the body that was already read."""
    given = False

    async def receive_again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def answer(send: Send, response: StoredResponse) -> None:
    headers = list(response.headers)
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": False})
