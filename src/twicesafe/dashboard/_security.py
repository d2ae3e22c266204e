"""Protects the dashboard: which hosts it answers for, and what browsers may do with its pages.

    Host        only the names in ``hosts``: a page of another site that has its name point here (DNS
                rebinding) gets nothing
    headers     no script at all, only our own stylesheet; in no frame; stored nowhere
    forms       a POST must come from our own page: the browser says where it comes from (Sec-Fetch-Site,
                Origin), and the form has the token of a cookie that other sites cannot read or send

Every check fails closed: a request that cannot be judged is refused.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Final
from urllib.parse import urlsplit

from ..errors import ConfigurationError

__all__ = [
    "FORM_COOKIE",
    "HEADERS",
    "LOOPBACK",
    "SecurityMiddleware",
    "checked_hosts",
    "new_token",
    "refusal",
]

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
FORM_COOKIE: Final = "twicesafe_form"

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    # Not no-referrer: with that, browsers send "Origin: null" with our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cache-control": "no-store",
}
_RAW: Final = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


class SecurityMiddleware:
    """An ASGI application around another one."""

    def __init__(self, app: Any, hosts: Iterable[str]) -> None:
        self._app, self._hosts = app, checked_hosts(hosts)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket: there is none here
            await send({"type": "websocket.close", "code": 1008})
            return

        async def shielded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                ours = {name for name, _ in _RAW}
                kept = [line for line in message.get("headers", ()) if line[0].lower() not in ours]
                message = {**message, "headers": [*kept, *_RAW]}
            await send(message)

        names = [value for name, value in scope["headers"] if name == b"host"]
        if len(names) != 1 or host_of(names[0].decode("latin-1")) not in self._hosts:
            await _refuse(shielded)
            return
        await self._app(scope, receive, shielded)


async def _refuse(send: Any) -> None:
    body = (
        b"421: this dashboard does not answer for this host name. If the name is right, add it: "
        b"--host NAME on the command line, hosts=(...) in Python.\n"
    )
    lines = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": "http.response.start", "status": 421, "headers": lines})
    await send({"type": "http.response.body", "body": body})


def checked_hosts(hosts: Iterable[str]) -> frozenset[str]:
    """The names, in lower case and without a port."""
    if isinstance(hosts, str):
        raise ConfigurationError(f"hosts={hosts!r} is not valid: use a list, ({hosts!r},)")
    found = frozenset(name.lower() for name in hosts)
    for name in found:
        if not name or host_of(name) != name or set(name) & set("*/ @?#"):
            raise ConfigurationError(
                f"hosts has {name!r}: use names as browsers send them, without scheme and port, "
                "like 'ops.example.com'"
            )
    if not found:
        raise ConfigurationError("hosts is empty: the dashboard would answer for no host")
    return found


def host_of(field: str) -> str:
    """The name in a Host field, without its port; an IPv6 address keeps its brackets."""
    name, _, port = field.lower().rpartition(":")
    return name if name and (port.isdigit() or not port) and _closed(name) else field.lower()


def _closed(name: str) -> bool:
    return ":" not in name or (name.startswith("[") and name.endswith("]"))


# --- forms -----------------------------------------------------------------------------------


def new_token() -> str:
    return secrets.token_urlsafe(32)


def refusal(headers: Mapping[str, str], cookie: str, field: str) -> str:
    """Why a POST is refused; empty: it comes from one of our forms.

    ``cookie``: the token that this browser has; ``field``: the one that came with the form.
    """
    site = headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return "it comes from another site"
    origin = headers.get("origin")
    if origin is not None and _host_and_port(origin) != headers.get("host", "").lower():
        return (
            "it comes from another origin; or a proxy in front of the dashboard does not pass on the "
            "host as the browser sent it, with its port"
        )
    if not cookie or not field:
        return "its form has no token: load the page again, with cookies allowed"
    if not hmac.compare_digest(cookie.encode(), field.encode()):
        return "the token of its form is not that of this browser: load the page again"
    return ""


def _host_and_port(origin: str) -> str:
    """Of an Origin field; empty: it is none that we could compare."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
