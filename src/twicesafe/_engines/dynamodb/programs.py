"""The programs of DynamoDB: each request as conditional writes.

A program yields a `BotoCall`, or a list of calls that may run at once, and receives the reply. If
the condition of a write does not hold, the reply is a `ConditionFailed` with the present item. A
claim is a put, an owner's request is an update (`versioned.deciding`).
"""

from __future__ import annotations

from typing import Final

from ..._values.records import State
from ...stores._base import Program
from ..versioned.record import OwnerWrite, Versioned, WriteRefused
from .items import (
    CONFLICT,
    RETURN_OLD,
    Attributes,
    BotoCall,
    attribute,
    get,
    item_of,
    put,
    refused_by,
    time_to_live,
)
from .sweep_and_search import SweepAndSearch

__all__ = ["SCANS", "DynamodbPrograms"]

SCANS: Final = frozenset({"sweep", "survey", "browse", "count", "audit_log"})
"""Requests that read the table; all others are about one item."""


class DynamodbPrograms(SweepAndSearch):
    def load(self, id_: bytes) -> Program[Versioned | None]:
        reply = yield get(id_)
        found = reply.get("Item")
        return None if found is None else item_of(found)

    def write(
        self, after: Versioned, before: Versioned | None, once: bool
    ) -> Program[WriteRefused | None]:
        return (yield from self._written(after.row.id, put(after, before, once)))

    def update(self, write: OwnerWrite) -> Program[WriteRefused | None]:
        return (yield from self._written(write.id, _update_item(write)))

    def _written(self, id_: bytes, call: BotoCall) -> Program[WriteRefused | None]:
        reply = yield call
        return WriteRefused((yield from self.load(id_))) if reply is CONFLICT else refused_by(reply)


_NAMES: Final = {
    name: f"#{name}" for name in ("owner", "state", "result", "error", "ttl", "changes", "cause")
}
"""Placeholders, which cost a little: most of these are reserved words of DynamoDB, or may become one."""


def _update_item(write: OwnerWrite) -> BotoCall:
    changes = {name: attribute(name, value) for name, value in write.changes.items()}
    if "expires_at" in write.changes:
        changes["ttl"] = time_to_live(write.changes["expires_at"])
    if write.lease is not None:
        changes["lease"] = {"N": str(write.lease)}
    elif not write.bare:
        changes["lease"] = None
    elif not write.changes.get("error"):
        changes.pop("error", None)
    condition = "#owner = :owner AND fence = :fence AND #state = :running"
    values: Attributes = {
        ":owner": {"B": write.owner},
        ":fence": {"N": str(write.fence)},
        ":running": {"S": State.IN_PROGRESS.value},
    }
    if write.ends_by is not None:
        condition += " AND lease_until <= :ends_by"
        values[":ends_by"] = {"N": str(write.ends_by)}
    if write.attempts_below is not None:
        least = "attribute_not_exists(attempt) OR " if write.attempts_below > 1 else ""
        condition += f" AND ({least}attempt < :most)"  # an absent one is 1
        values[":most"] = {"N": str(write.attempts_below)}
    kept, gone = [], []
    for name, value in changes.items():
        if value is None:
            gone.append(_NAMES.get(name, name))
        else:
            kept.append(f"{_NAMES.get(name, name)} = :{name}")
            values[f":{name}"] = value
    update = f"SET {', '.join(kept)}"
    if gone:
        update += f" REMOVE {', '.join(gone)}"
    if write.lease is not None:
        update += " ADD #changes :one"
        values[":one"] = {"N": "1"}
    text = update + condition
    return BotoCall(
        "update_item",
        {
            "Key": {"id": {"B": write.id}},
            "UpdateExpression": update,
            "ConditionExpression": condition,
            "ExpressionAttributeNames": {
                short: name for name, short in _NAMES.items() if short in text
            },
            "ExpressionAttributeValues": values,
            **RETURN_OLD,
        },
    )
