"""PyMongo's clients for this store, and what the blocking and the async one have in common."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from .documents import DUPLICATE, DriverCall, Write
from .error_messages import DUPLICATE_KEY, code_of, explain
from .settings import Settings

__all__ = ["Places", "checked", "connected", "places_of", "refused"]

_CURSORS = ("find", "aggregate", "list_indexes")
"""Calls whose reply is a cursor."""


class Places(NamedTuple):
    """Where calls go, on one client."""

    client: Any
    collection: Any
    one: Any
    """The same collection, for reads of one document that must be the newest."""
    admin: Any

    def begin(self, call: DriverCall) -> Any:
        """DriverCall the driver; the reply is awaited if it is the async one."""
        arguments = call.arguments
        if call.operation == "bulk_write":
            arguments = ([_request(write) for write in arguments[0]],)
        return getattr(getattr(self, call.on), call.operation)(*arguments, **call.options)


def _request(write: Write) -> Any:
    import pymongo

    return getattr(pymongo, write.kind)(*write.arguments, **write.options)


def is_cursor(call: DriverCall) -> bool:
    return call.operation in _CURSORS


def checked(settings: Settings) -> Settings:
    """Refuse what the driver would only warn about: an unknown option, or a wrong value."""
    from pymongo.errors import PyMongoError
    from pymongo.uri_parser import split_options

    try:
        if settings.query:
            with warnings.catch_warnings():
                split_options(settings.query, validate=True, warn=False)
    except (PyMongoError, OSError, TypeError, ValueError) as error:
        raise explain(error, settings.url) from error
    return settings


def connected(kind: Any, settings: Settings, *, retries: bool) -> Any:
    """A client of this class. It connects in the background, and on first use.

    Without ``retries`` the driver does not repeat a write, which a server on its own does not
    support. PyMongo (4.19) finds that out when it repeats, and takes its own refusal for an outage:
    it empties the pool, other calls fail and repeat for that, and so on until all of them time out,
    although the server answers.
    """
    from pymongo.errors import PyMongoError

    try:
        return kind(
            settings.dsn,
            timeoutMS=round(settings.timeout * 1000),
            maxPoolSize=settings.pool,
            appname="twicesafe",
            **({} if retries else {"retryWrites": False}),
        )
    except (PyMongoError, ValueError) as error:
        raise explain(error, settings.url) from error


def places_of(client: Any, settings: Settings, replicated: bool) -> Places:
    """A majority acknowledges every write, with its journal. What it acknowledged is what reads see.

    A server on its own has no majority to ask: there these read concerns are an error.
    """
    from pymongo.read_concern import ReadConcern
    from pymongo.read_preferences import ReadPreference
    from pymongo.write_concern import WriteConcern

    settled: dict[str, Any] = {
        "write_concern": WriteConcern(w="majority", j=True),
        "read_preference": ReadPreference.PRIMARY,
    }
    database = client[settings.database]
    collection, one = (
        database.get_collection(
            settings.collection,
            read_concern=ReadConcern(level if replicated else None),
            **settled,
        )
        for level in ("majority", "linearizable")
    )
    return Places(client, collection, one, client["admin"])


def refused(error: Exception, call: DriverCall, settings: Settings) -> Any:
    """The reply of a write that lost a race; raises our error for any other error."""
    if code_of(error) == DUPLICATE_KEY:
        details = getattr(error, "details", None) or {}
        if call.operation == "find_one_and_update" and _is_race(details):
            return DUPLICATE
        if call.operation == "bulk_write" and all(map(_is_race, details["writeErrors"])):
            return details  # the others are written
    raise explain(error, settings.url) from error


def _is_race(details: Mapping[str, Any]) -> bool:
    """Two inserts of one document, and not a unique index that someone added."""
    return list(details.get("keyPattern") or ("_id",)) == ["_id"]
