"""Records as documents, and the calls that read and write them.

``_id`` is the key's id in hex digits, as the command line shows it. There is one field per field of
`Row`, under its name; one that is empty, zero or false is absent, as is the first ``attempt``. Each
field costs time in every call, so there are no others in most records. Four belong to the store:

    changes    the revision, if it is not 0; with fence and state it is the *version* that a write is based on
    lease      the milliseconds that the owner was granted, after a renewal; before it the claim's times tell it
    audit      what operators did, oldest first, written with the action itself
    ttl        when MongoDB may delete the document: a fixed time after ``expires_at``, which is in the document
               only if it is too late for a date

A record with ``revision`` has the first layout, of no released version. A version that changes this
layout will write its number in ``layout``. Both are refused, never misread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypedDict

from msgspec import Struct, ValidationError, convert

from ..._core.protocol import ClaimRequest
from ..._values.records import Row, State
from ...errors import CorruptRecordError, StoreError
from ..versioned.record import (
    EMPTY,
    SPARE,
    OwnerWrite,
    Versioned,
    granted,
    is_empty,
    other_layout,
)

__all__ = [
    "DUPLICATE",
    "Document",
    "DriverCall",
    "Write",
    "bulk",
    "change_of",
    "delete_of",
    "find",
    "get",
    "insert_of",
    "record_of",
    "replace",
    "time_to_live",
    "update",
    "upsert",
]

Document = dict[str, Any]

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})

DUPLICATE: Final = "another client inserted this document at the same moment"
"""The reply to an upsert that lost this race: nothing was written."""

LARGEST: Final = 16_000_000
"""Bytes of a result. With the other fields it fits into a document of 16 MiB; in a bulk the driver does not check."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_READ: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - the driver's dates name no zone
_MS: Final = timedelta(milliseconds=1)
_LAST: Final = 253_402_300_799_000
"""The end of the year 9999, where datetime ends."""


class DriverCall(NamedTuple):
    """One call of the driver: the name of a method, and its arguments."""

    operation: str
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = _NONE
    on: str = "collection"
    """``collection``, ``one``: reads of one document, which must be the newest; or ``admin``."""


class Write(NamedTuple):
    """One write of a bulk: the name of PyMongo's class, and its arguments."""

    kind: str
    arguments: tuple[Any, ...]
    options: Mapping[str, Any] = _NONE


_UPSERT: Final[Mapping[str, Any]] = MappingProxyType({"upsert": True})
_RUNNING: Final = State.IN_PROGRESS.value


# --- fields ----------------------------------------------------------------------------------


def _text(value: str) -> str:
    return value if value.isascii() else value.encode(errors="replace").decode()


def _whole(value: int) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{type(value).__name__} instead of a number")
    return value


def _result(value: bytes) -> bytes:
    if len(value) > LARGEST:
        raise StoreError(
            f"a result of {len(value)} bytes is not possible: a document may have 16 MB; lower "
            "max_result_bytes"
        )
    return bytes(value)


_ENCODE: Final[dict[str, Callable[[Any], Any]]] = {
    "scope": lambda parts: [_text(part) for part in parts],
    "value": _text,
    "state": lambda state: state.value,
    "fence": _whole,
    "attempt": _whole,
    "owner": bytes,
    "lease_until": _whole,
    "created_at": _whole,
    "changed_at": _whole,
    "hold": bool,
    "cause": lambda cause: cause.value,
    "fingerprint": bytes,
    "result": _result,
    "error": lambda text: _text(text[:4000]),
}
"""How a field of a row is written. `record_of` reads all of them at once: BSON has the types of a row."""

_NEVER: Final = object()
_WRITTEN: Final = [
    (encode, EMPTY.get(name, _NEVER), type(EMPTY.get(name)), name)
    for name, encode in _ENCODE.items()
]
"""With what a field has if it says nothing, and its type: `is_empty`, without a call for every field."""
_values_of: Final = attrgetter(*_ENCODE)


def time_to_live(expires_at: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=min(expires_at + SPARE * 1000, _LAST))


def _expiry_of(expires_at: int) -> Document:
    if _whole(expires_at) + SPARE * 1000 > _LAST:
        return {"expires_at": expires_at, "ttl": time_to_live(expires_at)}
    return {"ttl": time_to_live(expires_at)}


def _body_of(record: Versioned) -> Document:
    """All but ``_id``."""
    row = record.row
    found: Document = {
        name: encode(value)
        for value, (encode, empty, kind, name) in zip(_values_of(row), _WRITTEN, strict=True)
        if value is not empty and (value != empty or type(value) is not kind)
    }
    if record.revision:
        found["changes"] = record.revision
    if record.lease and record.lease != granted(row):
        found["lease"] = record.lease
    if record.audit:
        found["audit"] = [
            {name: _text(said) if isinstance(said, str) else said for name, said in entry.items()}
            for entry in record.audit
        ]
    if row.expires_at:
        found |= _expiry_of(row.expires_at)
    return found


class _Entry(TypedDict):
    """An act of an operator."""

    at: int
    action: str
    by: str
    why: str
    before: str


class _Beside(Struct, gc=False):
    """What a document has beside the row."""

    changes: int = 0
    lease: int | None = None
    audit: list[_Entry] = []


_RARE: Final = frozenset(_Beside.__struct_fields__)
_BYTES: Final = (bytes,)
"""Binary values are bytes; text is never taken for base64."""


def record_of(found: Document) -> Versioned:
    """What a document says. One that cannot be read is an error, never an empty record."""
    try:
        if "layout" in found or "revision" in found:
            raise other_layout(_short(found), found.get("layout"))
        fields = {**EMPTY, **found, "id": bytes.fromhex(found["_id"])}
        if "ttl" in found and "expires_at" not in found:
            fields["expires_at"] = (found["ttl"] - _EPOCH_READ) // _MS - SPARE * 1000
        row = convert(fields, Row, builtin_types=_BYTES)
        if found.keys().isdisjoint(_RARE):
            return Versioned(row, 0, granted(row))
        beside = convert(found, _Beside)
        lease = granted(row) if beside.lease is None else beside.lease
        return Versioned(row, beside.changes, lease, [{**entry} for entry in beside.audit])
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise CorruptRecordError(
            f"the record {_short(found)} cannot be read ({type(error).__name__}: {error}); the handler "
            "does not run; look at its document in the collection"
        ) from error


def _short(found: Document) -> str:
    return str(found.get("_id", "?"))[:8]


# --- calls -----------------------------------------------------------------------------------


def get(id_: bytes) -> DriverCall:
    return DriverCall("find_one", ({"_id": id_.hex()},), on="one")


def find(where: Document, **options: Any) -> DriverCall:
    return DriverCall("find", (where,), options)


def upsert(record: Versioned) -> DriverCall:
    """Write it if there is no document; the reply is the one that was there, or None."""
    where, change = _inserted(record)
    return DriverCall("find_one_and_update", (where, change), _UPSERT)


def insert_claim(ask: ClaimRequest, now: int) -> DriverCall:
    """The `upsert` of a new key's record, made from the request alone. Most repeats need no other command."""
    key = ask.key
    body: Document = {"scope": [_text(part) for part in key.scope]} if key.scope else {}
    body |= {
        "value": _text(key.value),
        "state": _RUNNING,
        "fence": now * 1000,
        "owner": bytes(ask.owner),
        "lease_until": _whole(now + ask.lease),
        "created_at": now,
        "changed_at": now,
    }
    if ask.hold:
        body["hold"] = True
    if ask.fingerprint is not None:
        body["fingerprint"] = bytes(ask.fingerprint)
    change = {"$setOnInsert": body}
    return DriverCall("find_one_and_update", ({"_id": key.id.hex()}, change), _UPSERT)


def replace(record: Versioned, before: Versioned) -> DriverCall:
    """Write it if the present one is still `before`."""
    return DriverCall("replace_one", (_based_on(before), _body_of(record)))


def update(write: OwnerWrite) -> DriverCall:
    return DriverCall("update_one", _changed(write))


def insert_of(record: Versioned) -> Write:
    """`upsert`, in a bulk."""
    return Write("UpdateOne", _inserted(record), {"upsert": True})


def change_of(write: OwnerWrite) -> Write:
    """`update`, in a bulk."""
    return Write("UpdateOne", _changed(write))


def delete_of(record: Versioned) -> Write:
    """Delete it if it is still this version."""
    return Write("DeleteOne", (_based_on(record),))


def bulk(writes: Sequence[Write]) -> DriverCall:
    """Each of them for itself, in any order."""
    return DriverCall("bulk_write", (writes,), {"ordered": False})


def _based_on(before: Versioned) -> Document:
    fence, state, revision = before.version
    id_ = before.row.id.hex()
    return {"_id": id_, "fence": fence, "state": state.value, "changes": revision or None}


def _inserted(record: Versioned) -> tuple[Document, Document]:
    return {"_id": record.row.id.hex()}, {"$setOnInsert": _body_of(record)}


def _changed(write: OwnerWrite) -> tuple[Document, Document]:
    where: Document = {
        "_id": write.id.hex(),
        "owner": write.owner,
        "fence": write.fence,
        "state": State.IN_PROGRESS.value,
    }
    if write.ends_by is not None:
        where["lease_until"] = {"$lte": write.ends_by}
    if write.attempts_below is not None:
        below = write.attempts_below  # an absent one is 1
        where["attempt"] = {"$not": {"$gte": below}} if below > 1 else {"$lt": below}
    changes = write.changes
    kept: Document = {}
    gone: Document = {}
    for name, value in changes.items():
        if name == "expires_at":
            if value:
                kept |= _expiry_of(value)
            else:
                gone["ttl"] = ""
        elif name == "lease_until" or not is_empty(name, value):
            kept[name] = _ENCODE[name](value)  # a lease of 0 costs less than to remove it
        elif name != "error" or not write.bare:
            gone[name] = ""
    change: Document = {"$set": kept}
    if write.lease is not None:
        kept["lease"] = write.lease
        change["$inc"] = {"changes": 1}
    elif not write.bare:
        gone["lease"] = ""
    if gone:
        change["$unset"] = gone
    return where, change
