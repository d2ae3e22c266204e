"""Public names of the HTTP layer, shared by the ASGI and WSGI middlewares.

from twicesafe.asgi import IdempotencyMiddleware      # or twicesafe.wsgi
from twicesafe.http import HttpPolicy
"""

from __future__ import annotations

from ._core.http.key_sources import BodyHash, HeaderField, JsonMember, KeySource, QueryParameter
from ._core.http.message import HttpRequest, StoredResponse
from ._core.http.policy import NOT_EXECUTED, HttpPolicy
from ._core.http.stored_response import ResponseCodec

__all__ = [
    "NOT_EXECUTED",
    "BodyHash",
    "HeaderField",
    "HttpPolicy",
    "HttpRequest",
    "JsonMember",
    "KeySource",
    "QueryParameter",
    "ResponseCodec",
    "StoredResponse",
]
