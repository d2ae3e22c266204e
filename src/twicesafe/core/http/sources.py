"""Sources: where a key may be found when it is not in its header field, or has none.

A source is any callable of the request that returns the key, or None for "not here". These are
the usual ones; ``reads_body`` says that the body must have arrived before it can be asked. A source
is asked only if the header is absent; what it finds is held to the same length and characters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeAlias

import msgspec

from .message import HttpRequest
from .parameters import percent_decoded

__all__ = [
    "WEBHOOKS",
    "BodyHash",
    "HeaderField",
    "JsonMember",
    "KeySource",
    "QueryParameter",
    "place_of",
    "reads_body",
]

KeySource: TypeAlias = Callable[[HttpRequest], str | None]


class HeaderField(msgspec.Struct, frozen=True):
    """A field taken as it is, not as a structured one: delivery ids of webhooks."""

    name: str
    reads_body: ClassVar[bool] = False

    def __call__(self, request: HttpRequest) -> str | None:
        return request.header(self.name)


class QueryParameter(msgspec.Struct, frozen=True):
    """A parameter of the query: ``?request_id=…``. Given twice, the key is refused as two."""

    name: str
    reads_body: ClassVar[bool] = False

    def __call__(self, request: HttpRequest) -> str | None:
        found = [
            _decoded(value)
            for name, _, value in (part.partition(b"=") for part in request.query.split(b"&"))
            if _decoded(name) == self.name
        ]
        return "\n".join(found) if found else None  # a line break is in no key


class JsonMember(msgspec.Struct, frozen=True):
    """A member of a JSON body: ``idempotency_key``, or a dotted path into nested objects."""

    path: str
    reads_body: ClassVar[bool] = True

    def __call__(self, request: HttpRequest) -> str | None:
        try:
            here: Any = request.json()
        except ValueError:
            return None
        for name in self.path.split("."):
            if not isinstance(here, dict) or name not in here:
                return None
            here = here[name]
        if isinstance(here, (str, int)) and not isinstance(here, bool):
            return str(here)
        return None if here is None else ""  # a key of another kind is a bad key, not none


class BodyHash(msgspec.Struct, frozen=True):
    """No id at all: equal requests are one. Two orders that are meant to be equal become one too,
    so this is for senders that cannot be changed."""

    reads_body: ClassVar[bool] = True

    def __call__(self, request: HttpRequest) -> str | None:
        from .fingerprint import canonical_print

        return "sha256:" + hashlib.sha256(canonical_print(request)).hexdigest()


WEBHOOKS: Final[dict[str, KeySource]] = {
    "stripe": JsonMember("id"),
    "github": HeaderField("X-GitHub-Delivery"),
    "shopify": HeaderField("X-Shopify-Webhook-Id"),
}
"""Where these senders put the id of an event, which stays the same when they deliver it again.

GitHub's is one per event, not per hook: two hooks on one address need a scope (X-GitHub-Hook-ID).
Shopify's is one per subscription; X-Shopify-Event-Id is shared by all that an action triggers, so it
would drop a second topic."""


def reads_body(source: KeySource) -> bool:
    return getattr(source, "reads_body", True)


def place_of(source: KeySource) -> str:
    """Where it looks, for a client that sent no key."""
    match source:
        case HeaderField(name=name):
            return f"the field {name}"
        case QueryParameter(name=name):
            return f"the parameter {name} of the query"
        case JsonMember(path=path):
            return f"the member {path} of the JSON body"
    return "the request"


def _decoded(text: bytes) -> str:
    return percent_decoded(text.replace(b"+", b" ")).decode("utf-8", "replace")
