"""Records as DynamoDB items, and the calls that write them.

An item has one attribute per field of `Row`, under the field's name; a field that is empty, zero or
false has none, nor has the first ``attempt``. Four more belong to the store:

    changes    the revision, if it is not 0; with fence and state it is the *version* that a write is based on
    lease      the milliseconds that the owner was granted: how long others must watch one version;
               only after a renewal, before it the times of the claim tell it
    audit      what operators did, oldest first, written with the action itself
    ttl        when DynamoDB may delete the item (seconds); only records that expire have it

A record with ``revision`` has the first layout, of no released version. A version that changes this
layout will write its number in ``layout``. Both are refused, never misread.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Final, NamedTuple

from ..._values.records import Cause, Row, State
from ...errors import CorruptRecordError
from ..versioned.record import (
    EMPTY,
    SPARE,
    Versioned,
    WriteRefused,
    granted,
    is_empty,
    other_layout,
)

__all__ = [
    "CONFLICT",
    "RETURN_OLD",
    "Attributes",
    "BotoCall",
    "ConditionFailed",
    "attribute",
    "delete",
    "get",
    "item_of",
    "names_of",
    "put",
    "refused_by",
    "time_to_live",
]

Attributes = dict[str, Any]


class BotoCall(NamedTuple):
    """One call of the service: the name of boto3's method, and its arguments."""

    operation: str
    arguments: Attributes
    once: bool = False
    """Never repeat it by itself: if its reply is lost, its outcome is unknown."""


class ConditionFailed(NamedTuple):
    """The reply to a write whose condition did not hold."""

    item: Attributes | None
    """The item that is there; None: there is none."""


CONFLICT: Final = ConditionFailed(None)
"""Another region writes the item at this moment; which item is there must be read."""


# --- attributes ------------------------------------------------------------------------------


def _number(value: int) -> Attributes:
    return {"N": f"{value:d}"}  # of a wrong type it raises, and nothing is sent


def _binary(value: bytes) -> Attributes:
    return {"B": value}


def _text(value: str) -> Attributes:
    return {"S": value.encode(errors="replace").decode()}


_FIELDS: Final[dict[str, tuple[Any, Any]]] = {
    "id": (_binary, lambda a: bytes(a["B"])),
    "scope": (
        lambda parts: {"L": [_text(part) for part in parts]},
        lambda a: tuple(part["S"] for part in a["L"]),
    ),
    "value": (_text, lambda a: a["S"]),
    "state": (_text, lambda a: State(a["S"])),
    "fence": (_number, lambda a: int(a["N"])),
    "attempt": (_number, lambda a: int(a["N"])),
    "owner": (_binary, lambda a: bytes(a["B"])),
    "lease_until": (_number, lambda a: int(a["N"])),
    "created_at": (_number, lambda a: int(a["N"])),
    "changed_at": (_number, lambda a: int(a["N"])),
    "expires_at": (_number, lambda a: int(a["N"])),
    "hold": (lambda value: {"BOOL": value}, lambda a: bool(a["BOOL"])),
    "cause": (_text, lambda a: Cause(a["S"])),
    "fingerprint": (_binary, lambda a: bytes(a["B"])),
    "result": (_binary, lambda a: bytes(a["B"])),
    "error": (lambda value: _text(value[:4000]), lambda a: a["S"]),
}


def names_of(names: Iterable[str]) -> dict[str, str]:
    """Placeholders: many of our names are reserved words of DynamoDB."""
    return {f"#{name}": name for name in names}


def attribute(name: str, value: Any) -> Attributes | None:
    """A field of a row as an attribute; None: the item has none."""
    if is_empty(name, value):
        return None
    found: Attributes = _FIELDS[name][0](value)
    return found


def time_to_live(expires_at: int) -> Attributes | None:
    return _number(-(-expires_at // 1000) + SPARE) if expires_at else None


_WRITTEN: Final = [
    (encode, EMPTY.get(name, EMPTY), type(EMPTY.get(name)), name)
    for name, (encode, _) in _FIELDS.items()
]
"""With what a field has if it says nothing, and its type: `is_empty`, without a call for every field."""
_values_of: Final = attrgetter(*_FIELDS)


def attributes_of(item: Versioned) -> Attributes:
    row = item.row
    found = {
        name: encode(value)
        for value, (encode, empty, kind, name) in zip(_values_of(row), _WRITTEN, strict=True)
        if value is not empty and (value != empty or type(value) is not kind)
    }
    if item.revision:
        found["changes"] = _number(item.revision)
    if item.lease and item.lease != granted(row):
        found["lease"] = _number(item.lease)
    if item.audit:
        found["audit"] = {"L": [_entry(one) for one in item.audit]}
    if row.expires_at:
        found["ttl"] = time_to_live(row.expires_at)
    return found


def item_of(found: Attributes) -> Versioned:
    """What an item says. One that cannot be read is an error, never an empty record."""
    try:
        if "layout" in found or "revision" in found:
            raise other_layout(_short(found), found.get("layout"))
        fields = {
            name: EMPTY[name] if name in EMPTY and name not in found else decode(found[name])
            for name, (_, decode) in _FIELDS.items()
        }
        row, lease = Row(**fields), found.get("lease")
        return Versioned(
            row,
            int(found["changes"]["N"]) if "changes" in found else 0,
            granted(row) if lease is None else int(lease["N"]),
            [_entry_of(one) for one in found["audit"]["L"]] if "audit" in found else [],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptRecordError(
            f"the record {_short(found)} cannot be read ({type(error).__name__}: {error}); the handler "
            "does not run; look at its item in the table"
        ) from error


def refused_by(reply: Any) -> WriteRefused | None:
    """What stands against a write, unless it is a `CONFLICT`; None: it was written."""
    if not isinstance(reply, ConditionFailed):
        return None
    return WriteRefused(None if reply.item is None else item_of(reply.item))


def id_of(found: Attributes) -> str:
    """In hex; the table's key is always there."""
    return bytes(found.get("id", {}).get("B", b"")).hex()


def _short(found: Attributes) -> str:
    return id_of(found)[:8] or "?"


# --- calls -----------------------------------------------------------------------------------


def get(id_: bytes) -> BotoCall:
    return BotoCall("get_item", {"Key": {"id": _binary(id_)}, "ConsistentRead": True})


def put(item: Versioned, before: Versioned | None, once: bool = False) -> BotoCall:
    """Write this item if the present one is still `before`; None: if there is none."""
    if before is None:
        based: Attributes = {"ConditionExpression": "attribute_not_exists(id)"}
    else:
        based = _based_on(before)
    return BotoCall("put_item", {"Item": attributes_of(item), **based, **RETURN_OLD}, once)


def delete(before: Versioned) -> BotoCall:
    """Delete this item if it is still this version."""
    return BotoCall("delete_item", {"Key": {"id": _binary(before.row.id)}, **_based_on(before)})


RETURN_OLD: Final = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


def _based_on(before: Versioned) -> Attributes:
    fence, state, revision = before.version
    values = {":fence": _number(fence), ":state": _text(state.value)}
    if revision:
        values[":changes"] = _number(revision)
    same = "#changes = :changes" if revision else "attribute_not_exists(#changes)"
    return {
        "ConditionExpression": f"fence = :fence AND #state = :state AND {same}",
        "ExpressionAttributeNames": {"#state": "state", "#changes": "changes"},
        "ExpressionAttributeValues": values,
    }


# --- the audit trail -------------------------------------------------------------------------


def _entry(entry: dict[str, Any]) -> Attributes:
    texts = {name: _text(entry[name]) for name in ("action", "by", "why", "before")}
    return {"M": {"at": _number(entry["at"]), **texts}}


def _entry_of(found: Attributes) -> dict[str, Any]:
    said = found["M"]
    texts = {name: said[name]["S"] for name in ("action", "by", "why", "before")}
    return {"at": int(said["at"]["N"]), **texts}
