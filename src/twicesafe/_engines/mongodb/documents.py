"""Records as documents, and the calls that read and write them.

``_id`` is the key's id in hex digits, as the command line shows it. There is one field per field of `Row`, under its
name; one that is empty, zero or false is absent. Four more belong to the store:

    revision   counts the writes; with the fence it is the *version* that a write is based on
    lease      the milliseconds that the owner was granted, after a renewal; before it the claim's times tell it
    audit      what operators did, oldest first, written with the action itself
    ttl        when MongoDB may delete the document; only records that expire have it

A version that changes this layout will write its number in ``layout``: a record that has one is refused,
never misread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypedDict

from msgspec import Struct, ValidationError, convert

from ..._values.records import Row, State
from ...errors import CorruptRecordError, SchemaVersionError, StoreError
from ..versioned.record import EMPTY, SPARE, Believed, Versioned, granted, is_empty

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
    "expires_at": _whole,
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


def _time_to_live(expires_at: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=min(expires_at + SPARE * 1000, _LAST))


def _body_of(record: Versioned) -> Document:
    """All but ``_id``."""
    row = record.row
    found: Document = {
        name: encode(value)
        for value, (encode, empty, kind, name) in zip(_values_of(row), _WRITTEN, strict=True)
        if value is not empty and (value != empty or type(value) is not kind)
    }
    found["revision"] = record.revision
    if record.lease and record.lease != granted(row):
        found["lease"] = record.lease
    if record.audit:
        found["audit"] = [
            {name: _text(said) if isinstance(said, str) else said for name, said in entry.items()}
            for entry in record.audit
        ]
    if row.expires_at:
        found["ttl"] = _time_to_live(row.expires_at)
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

    revision: int
    lease: int | None = None
    audit: list[_Entry] = []


_BYTES: Final = (bytes,)
"""Binary values are bytes; text is never taken for base64."""


def record_of(found: Document) -> Versioned:
    """What a document says. One that cannot be read is an error, never an empty record."""
    try:
        if "layout" in found:
            raise SchemaVersionError(
                f"a newer twicesafe wrote the record {_short(found)} (layout {found['layout']}); the "
                "handler does not run; update this twicesafe"
            )
        fields = {**EMPTY, **found, "id": bytes.fromhex(found["_id"])}
        row = convert(fields, Row, builtin_types=_BYTES)
        beside = convert(found, _Beside)
        lease = granted(row) if beside.lease is None else beside.lease
        return Versioned(row, beside.revision, lease, [{**entry} for entry in beside.audit])
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
    return DriverCall("find_one_and_update", (where, change), {"upsert": True})


def replace(record: Versioned, before: Versioned) -> DriverCall:
    """Write it if the present one is still `before`."""
    return DriverCall("replace_one", (_based_on(before), _body_of(record)))


def update(belief: Believed) -> DriverCall:
    return DriverCall("update_one", _changed(belief))


def insert_of(record: Versioned) -> Write:
    """`upsert`, in a bulk."""
    return Write("UpdateOne", _inserted(record), {"upsert": True})


def change_of(belief: Believed) -> Write:
    """`update`, in a bulk."""
    return Write("UpdateOne", _changed(belief))


def delete_of(record: Versioned) -> Write:
    """Delete it if it is still this version."""
    return Write("DeleteOne", (_based_on(record),))


def bulk(writes: Sequence[Write]) -> DriverCall:
    """Each of them for itself, in any order."""
    return DriverCall("bulk_write", (writes,), {"ordered": False})


def _based_on(before: Versioned) -> Document:
    fence, revision = before.version
    return {"_id": before.row.id.hex(), "fence": fence, "revision": revision}


def _inserted(record: Versioned) -> tuple[Document, Document]:
    return {"_id": record.row.id.hex()}, {"$setOnInsert": _body_of(record)}


def _changed(belief: Believed) -> tuple[Document, Document]:
    where: Document = {
        "_id": belief.id.hex(),
        "owner": belief.owner,
        "fence": belief.fence,
        "state": State.IN_PROGRESS.value,
    }
    if belief.ends_by is not None:
        where["lease_until"] = {"$lte": belief.ends_by}
    if belief.attempts_below is not None:
        where["attempt"] = {"$lt": belief.attempts_below}
    changes = belief.changes
    kept: Document = {}
    gone: Document = {}
    for name, value in changes.items():
        if is_empty(name, value):
            gone[name] = ""
        else:
            kept[name] = _ENCODE[name](value)
    if changes.get("expires_at"):
        kept["ttl"] = _time_to_live(changes["expires_at"])
    elif "expires_at" in changes:
        gone["ttl"] = ""
    if belief.lease is None:
        gone["lease"] = ""
    else:
        kept["lease"] = belief.lease
    change: Document = {"$set": kept, "$inc": {"revision": 1}}
    if gone:
        change["$unset"] = gone
    return where, change
