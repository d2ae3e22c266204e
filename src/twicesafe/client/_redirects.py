"""Redirects: the key of a request that a library sends to follow a redirect.

    POST a.example/charges   key K                    307 → b.example/charges
    POST b.example/charges   key derived from K and that address
    GET  b.example/receipt   no key                   after 301, 302 or 303

The same key would be refused at another path of the same server (422), and it would reveal the key to
another host. A new key would cause a second effect when the whole call is repeated. The first server
replays its redirect, and the second server gets an unknown key. The derived key is the same for each
repeat, differs for each address, and does not reveal the original key.

Each library has its own way to attach a `Root` to the request. The key itself is removed from a
redirected request, so that nothing can copy it.
"""

from __future__ import annotations

import hashlib
from collections.abc import MutableMapping
from typing import Any, Final

import msgspec

from .._core.http.key_field import field_of, parse_key
from .._values.keys import Key
from ..propagation import as_sent
from ._final_answers import ResponseSummary, Unanswered
from ._policy import RetryPolicy
from ._sending import SAFE, KeyedRequest, call_of

__all__ = ["ROOT", "Root", "call_from", "is_redirect", "start", "take_off"]

ROOT: Final = "twicesafe.root"
"""The name under which a library's request holds its `Root`."""

_STATUSES: Final = frozenset({301, 302, 303, 307, 308})


class Root(msgspec.Struct, frozen=True):
    """The call that a redirected request belongs to."""

    key: str
    url: str
    """The URL of the first request."""
    fresh: bool

    def __repr__(self) -> str:
        return f"<Root {Key(self.key).short}>"


def start(
    policy: RetryPolicy,
    method: str,
    url: str,
    path: str,
    headers: MutableMapping[str, Any],
    root: Root | None,
) -> tuple[KeyedRequest | None, Root | None]:
    """The call that a request is, its key written into the headers; and where it began.

    `root`: set if it follows a redirect, or is sent again after one.
    """
    if root is None:
        lines = [(name, _text(value)) for name, value in headers.items()]
        call = call_of(policy, method, path, lines)
        root = None if call is None else Root(call.key, url, call.fresh)
    else:
        take_off(policy, headers)
        call = call_from(policy, root, method, url)
    if call is not None and call.field is not None:
        headers[policy.http.sent_as] = call.field
    if call is not None and policy.signer is not None:
        sent = call.key if call.field is None else parse_key([call.field.encode()])
        headers[policy.http.signature_header] = policy.signer.sign(sent)
    return call, root


def call_from(policy: RetryPolicy, root: Root, method: str, url: str) -> KeyedRequest | None:
    """The call at this address; None: the redirected request needs no key."""
    if method in SAFE:
        return None
    key = root.key
    if url != root.url:
        place = hashlib.sha256(f"{method} {url}".encode("utf-8", "surrogatepass")).hexdigest()
        key = as_sent(Key(key).derive(f"redirect {place}"), policy.http)
    return KeyedRequest(root.key, field_of(key, strict=policy.http.strict), root.fresh)


def take_off(policy: RetryPolicy, headers: MutableMapping[str, Any]) -> None:
    """Remove the key from these headers, even one that the caller set."""
    for name in (*policy.http.key_fields, policy.http.signature_header):
        while headers.pop(name, None) is not None:
            pass  # aiohttp's takes off one line at a time


def is_redirect(reply: ResponseSummary | Unanswered) -> bool:
    return (
        isinstance(reply, ResponseSummary)
        and reply.status in _STATUSES
        and bool(reply.headers.get("location"))
    )


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
