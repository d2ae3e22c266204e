"""Other places where a key may be found, if its header field is absent.

A source is any callable of the request that returns the key, or None for "not here". With
``reads_body`` it is called after the body has arrived. The key must have the same length and
characters as one in the header.

The application and signature checks parse the same request with their own parsers. So where two
parsers could find different keys (a field in two lines, a repeated parameter or member), the key is
refused with `BadKey`. It is never the first, the last, or all of them joined.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import ClassVar, Final, TypeAlias

import msgspec

from .json_reading import Members, WholeNumber, read_json
from .key_field import BadKey
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
    """A header field, not parsed as a structured field: delivery ids of webhooks.

    It must be sent once. WSGI servers join lines with a comma, so an id with a comma is refused.
    """

    name: str
    reads_body: ClassVar[bool] = False

    def __call__(self, request: HttpRequest) -> str | None:
        values = request.values(self.name)
        if not values:
            return None
        if len(values) > 1 or b"," in values[0]:
            raise BadKey("the field must be sent once, with one id that has no comma")
        return values[0].strip(b" \t").decode("latin-1")


class QueryParameter(msgspec.Struct, frozen=True):
    """A query parameter: ``?request_id=…``. A repeated parameter is refused."""

    name: str
    reads_body: ClassVar[bool] = False

    def __call__(self, request: HttpRequest) -> str | None:
        folded = self.name.casefold()
        parts = (part.partition(b"=") for part in request.query.split(b"&"))
        pairs = [(_decoded(name), value) for name, _, value in parts]
        found = [(name, value) for name, value in pairs if name.casefold() == folded]
        if all(name != self.name for name, _ in found):
            return None
        if len(found) > 1:
            raise BadKey("the parameter is repeated, perhaps in another case")
        return _decoded(found[0][1])


class JsonMember(msgspec.Struct, frozen=True):
    """A member of a JSON body: ``idempotency_key``, or a dotted path into nested objects.

    Everything that Python parses as JSON is accepted, also UTF-16 and a byte order mark. The number
    ``7`` is the key ``json:7``, which differs from the text ``"7"``.
    """

    path: str
    reads_body: ClassVar[bool] = True

    def __call__(self, request: HttpRequest) -> str | None:
        try:
            here = read_json(request.body)
        except ValueError:
            return None
        for name in self.path.split("."):
            if not isinstance(here, Members):
                return None
            found = here.named(name)
            if not found:
                return None
            here = found[0]
            if len(found) > 1:
                raise BadKey("a member on its path is repeated, perhaps in another case")
        if here is None:
            return None
        if isinstance(here, WholeNumber):
            return _NOT_TEXT + here
        if type(here) is not str:
            raise BadKey("the member is neither text nor a whole number")
        return _NOT_TEXT + f'"{here}"' if here.startswith(_NOT_TEXT) else here


_NOT_TEXT: Final = "json:"
"""Prefix of keys that are not text."""


class BodyHash(msgspec.Struct, frozen=True):
    """A hash of the request, for senders without ids. Two intended orders with the same content
    become one, so use it only if the sender cannot be changed."""

    reads_body: ClassVar[bool] = True

    def __call__(self, request: HttpRequest) -> str | None:
        from .fingerprint import canonical_print

        return "sha256:" + hashlib.sha256(canonical_print(request)).hexdigest()


WEBHOOKS: Final[dict[str, KeySource]] = {
    "stripe": JsonMember("id"),
    "github": HeaderField("X-GitHub-Delivery"),
    "shopify": HeaderField("X-Shopify-Webhook-Id"),
}
"""Where these senders put the id of an event. It stays the same when they deliver it again.

GitHub has one id per event, not per hook: two hooks with one URL need a scope (X-GitHub-Hook-ID).
Shopify has one per subscription. Its X-Shopify-Event-Id is the same for all topics of one action, so
it would drop the second topic."""


def reads_body(source: KeySource) -> bool:
    return getattr(source, "reads_body", True)


def place_of(source: KeySource) -> str:
    """The place of the key, for a client that sent none."""
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
