"""Records as DynamoDB items, and the calls that write them.

An item has one attribute per field of `Row`, under the field's name; a field that is empty, zero or
false has none. Four more belong to the store:

    revision   counts the writes; with the fence it is the *version* that a write is based on
    lease      the milliseconds that the owner was granted: how long others must watch one version;
               only after a renewal, before it the times of the claim tell it
    audit      what operators did, oldest first, written with the act itself
    ttl        when DynamoDB may delete the item (seconds); only records that expire have it

A version that changes this layout will write its number in ``layout``: a record that has one is refused,
never misread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from ..._values.records import AuditEntry, Cause, Row, State, moment
from ...errors import CorruptRecordError, SchemaVersionError

__all__ = [
    "RETURN_OLD",
    "Attributes",
    "Call",
    "Item",
    "Refused",
    "attribute",
    "audited",
    "delete",
    "entries_of",
    "get",
    "item_of",
    "names_of",
    "put",
    "time_to_live",
]

SPARE: Final = 3660
"""Seconds between the end of retention and the time when DynamoDB may delete the item: the largest
``skew`` and a minute. A worker that is late by ``skew`` still gives a new item a higher fence (P3)."""
ENTRIES: Final = 100
"""Audit entries that are kept of one key: the newest."""
TRAIL: Final = 65_536
"""Bytes of all of them together: an item may have 400 KB, and the result needs most of it."""

Attributes = dict[str, Any]


class Call(NamedTuple):
    """One call of the service: the name of boto3's method, and its arguments."""

    operation: str
    arguments: Attributes
    once: bool = False
    """Never repeat it by itself: if its reply is lost, its outcome is unknown."""


class Refused(NamedTuple):
    """The reply to a write whose condition did not hold."""

    found: Attributes | None
    """The item that is there; None: there is none."""


class Item(msgspec.Struct, gc=False):
    """A record with what this store keeps beside it."""

    row: Row
    revision: int
    lease: int = 0
    audit: list[Any] = []

    @property
    def version(self) -> tuple[int, int]:
        """Different for any two writes of a key: fences never restart."""
        return self.row.fence, self.revision


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
_EMPTY: Final[dict[str, Any]] = {
    "scope": (), "value": "", "owner": b"", "attempt": 0, "lease_until": 0, "expires_at": 0,
    "hold": False, "cause": None, "fingerprint": None, "result": None, "error": "",
}  # fmt: skip
"""The fields that may be absent, and what that means."""


def names_of(names: Iterable[str]) -> dict[str, str]:
    """Placeholders: many of our names are reserved words of DynamoDB."""
    return {f"#{name}": name for name in names}


def attribute(name: str, value: Any) -> Attributes | None:
    """A field of a row as an attribute; None: the item has none."""
    if name in _EMPTY and value == _EMPTY[name] and type(value) is type(_EMPTY[name]):
        return None
    found: Attributes = _FIELDS[name][0](value)
    return found


def time_to_live(expires_at: int) -> Attributes | None:
    return _number(-(-expires_at // 1000) + SPARE) if expires_at else None


def attributes_of(item: Item) -> Attributes:
    row = item.row
    found = {name: attribute(name, getattr(row, name)) for name in _FIELDS}
    found["revision"] = _number(item.revision)
    renewed = item.lease != _claimed(row)
    found["lease"] = _number(item.lease) if item.lease and renewed else None
    found["audit"] = {"L": item.audit} if item.audit else None
    found["ttl"] = time_to_live(row.expires_at)
    return {name: value for name, value in found.items() if value is not None}


def item_of(found: Attributes) -> Item:
    """What an item says. One that cannot be read is an error, never an empty record."""
    try:
        if "layout" in found:
            raise SchemaVersionError(
                f"a newer twicesafe wrote the record {_short(found)} (layout {found['layout']}); the "
                "handler does not run; update this one"
            )
        fields = {
            name: _EMPTY[name] if name in _EMPTY and name not in found else decode(found[name])
            for name, (_, decode) in _FIELDS.items()
        }
        row, lease = Row(**fields), found.get("lease")
        return Item(
            row,
            int(found["revision"]["N"]),
            _claimed(row) if lease is None else int(lease["N"]),
            found.get("audit", {"L": []})["L"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptRecordError(
            f"the record {_short(found)} cannot be read ({type(error).__name__}: {error}); the handler "
            "does not run; look at its item in the table"
        ) from error


def _claimed(row: Row) -> int:
    """The lease that a claim was granted; 0 if the record is not in progress."""
    return row.lease_until - row.changed_at if row.state is State.IN_PROGRESS else 0


def _short(found: Attributes) -> str:
    id_ = found.get("id", {}).get("B", b"")
    return bytes(id_)[:4].hex() or "?"


# --- calls -----------------------------------------------------------------------------------


def get(id_: bytes) -> Call:
    return Call("get_item", {"Key": {"id": _binary(id_)}, "ConsistentRead": True})


def put(item: Item, before: Item | None, once: bool = False) -> Call:
    """Write this item if the present one is still `before`; None: if there is none."""
    if before is None:
        based: Attributes = {
            "ConditionExpression": "attribute_not_exists(#id)",
            "ExpressionAttributeNames": {"#id": "id"},
        }
    else:
        based = _based_on(before)
    return Call("put_item", {"Item": attributes_of(item), **based, **RETURN_OLD}, once)


def delete(before: Item) -> Call:
    """Delete this item if it is still this version."""
    return Call("delete_item", {"Key": {"id": _binary(before.row.id)}, **_based_on(before)})


RETURN_OLD: Final = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


def _based_on(before: Item) -> Attributes:
    fence, revision = before.version
    return {
        "ConditionExpression": "#fence = :fence AND #revision = :revision",
        "ExpressionAttributeNames": {"#fence": "fence", "#revision": "revision"},
        "ExpressionAttributeValues": {":fence": _number(fence), ":revision": _number(revision)},
    }


# --- the audit trail -------------------------------------------------------------------------


def audited(item: Item, ask: Any, at: int) -> list[Any]:
    """The trail with one more act; names and reasons are cut, so that they never fail a write."""
    entry = {
        "at": _number(at),
        "action": _text(ask.op),
        "by": _text(ask.by[:4000]),
        "why": _text(ask.why[:4000]),
        "before": _text(item.row.state.value),
    }
    return _newest([*item.audit[1 - ENTRIES :], {"M": entry}])


def _newest(audit: list[Any]) -> list[Any]:
    """The last of these entries that have room; the very last one always has."""
    room, kept = TRAIL, len(audit) - 1
    while kept and (room := room - _size(audit[kept])) >= _size(audit[kept - 1]):
        kept -= 1
    return audit[kept:]


def _size(entry: Any) -> int:
    """Bytes of an entry, about as DynamoDB counts them."""
    values = (value for attribute in entry["M"].values() for value in attribute.values())
    return 60 + sum(len(value.encode()) for value in values)


def entries_of(id_: bytes, audit: list[Any]) -> list[AuditEntry]:
    return [
        AuditEntry(
            id=id_,
            at=moment(int(entry["M"]["at"]["N"])),
            action=entry["M"]["action"]["S"],
            by=entry["M"]["by"]["S"],
            why=entry["M"]["why"]["S"],
            state_before=State(entry["M"]["before"]["S"]),
        )
        for entry in audit
    ]
