"""The programs of DynamoDB: each request as conditional writes, decided by `_core.lifecycle`.

A program yields a `Call`, or a list of calls that may run at once, and receives the reply. If the condition
of a write does not hold, the reply is a `Refused` with the present item.

    claim     put, if there is no item. If there is one, it decides: most repeats end here, after one
              call; a takeover is one more put, if the item is still that version.
    complete  update, if the item is in progress under this owner and fence. So do renew and fail.
              If it is not, the item that came back decides, as for a claim.
    others    read, decide, put, if the item is still that version.

The driver may repeat a worker's call after a lost reply. If the first write had succeeded, the second is
refused, and the item shows that it is ours. An operator's act is not repeated: others may have acted on the
record since, and it would be a second act.
"""

from __future__ import annotations

from typing import Any, Final

from ..._core import lifecycle
from ..._core.protocol import (
    Ack,
    Claimed,
    ClaimRequest,
    Complete,
    Discard,
    Fail,
    Forget,
    History,
    Read,
    Release,
    Renew,
    Request,
    Resolve,
)
from ..._values.records import AuditEntry, Row, State
from ...errors import StoreUnavailableError
from ...stores._base import Program
from .items import (
    RETURN_OLD,
    Attributes,
    Call,
    Item,
    Refused,
    attribute,
    audited,
    entries_of,
    get,
    item_of,
    names_of,
    put,
    time_to_live,
)
from .lease_watch import LeaseWatch
from .table_scans import TableScans

__all__ = ["SCANS", "DynamodbPrograms"]

SCANS: Final = frozenset({"sweep", "survey", "browse", "count", "audit_log"})
"""Requests that read the table; all others are about one item."""

OPERATORS: Final = (Release, Resolve, Forget, Discard)
"""Each of these is in the audit trail, so it is never sent twice."""

TRIES: Final = 30
"""Each refused try means that another worker wrote this item meanwhile."""

_BYTES: Final = bytes(bytearray(b"not known"))
_TEXT: Final = str(_BYTES, "ascii")
"""In place of fields that an owner does not know. No request contains these two objects, so a field of a
decision that is another object was set by the decision."""

_MAY_DIFFER: Final = (
    "state", "attempt", "lease_until", "changed_at", "expires_at", "cause", "fingerprint", "result",
    "error",
)  # fmt: skip


class DynamodbPrograms(TableScans):
    def __init__(self, leases: LeaseWatch) -> None:
        super().__init__(leases.clock, leases.skew)
        self._leases = leases

    def perform(self, ask: Request) -> Program[Any]:
        return getattr(self, ask.op)(ask)  # type: ignore[no-any-return]

    # -- decide, write, and decide again if another worker wrote first ---------------------------

    def claim(self, ask: ClaimRequest) -> Program[Claimed]:
        """A new key is the common case, so this begins as if there were no item."""
        return (yield from self._settle(ask, None))  # type: ignore[no-any-return]

    def _settle(self, ask: Any, found: Item | None) -> Program[Any]:
        for _ in range(TRIES):
            answer, after = self._decide(ask, found)
            if after is None:
                return answer
            reply = yield put(after, found, once=isinstance(ask, OPERATORS))
            if isinstance(reply, Refused):
                found = None if reply.found is None else item_of(reply.found)
                if found != after:
                    continue
                # It is ours: the driver repeated the call, because the first reply was lost.
            if after.row.state is State.IN_PROGRESS:
                self._leases.saw(after)
            return answer
        raise StoreUnavailableError(
            f"the record {ask.id[:4].hex()} changed {TRIES} times while it was being written; nothing "
            "was written; try again"
        )

    def _decide(self, ask: Any, found: Item | None) -> tuple[Any, Item | None]:
        """The answer of the lifecycle, and the item to write."""
        now = self.clock.now()
        row = None if found is None else found.row
        lease = 0
        if isinstance(ask, ClaimRequest):
            judged = None if found is None else self._leases.judged(found, now)
            # P3: the fence of a new item is the time, so it is above those of any deleted one.
            answer, after = lifecycle.claim(judged, ask, now, floor=now * 1000 - 1)
            lease = ask.lease
        else:
            if found is not None and getattr(ask, "unless_running", False):
                row = self._leases.judged(found, now)
            answer, after = getattr(lifecycle, ask.op)(row, ask, now)
            if isinstance(ask, Renew) and after is not None:
                lease = max(ask.lease, after.lease_until - now)
        if after is None:
            return answer, None
        trail = [] if found is None else found.audit
        if found is not None and isinstance(ask, OPERATORS):
            trail = audited(found, ask, now if after is row else after.changed_at)
        revision = 1 if found is None else found.revision + 1
        running = after.state is State.IN_PROGRESS
        return answer, Item(after, revision, lease if running else 0, trail)

    # -- an owner's requests: one update, if all is as the owner believes -------------------------

    def _update(self, ask: Renew | Complete | Fail) -> Program[Ack]:
        reply = yield self._as_believed(ask)
        if isinstance(reply, Refused):
            found = None if reply.found is None else item_of(reply.found)
            return (yield from self._settle(ask, found))  # type: ignore[no-any-return]
        if not isinstance(ask, Renew):
            self._leases.forget(ask.id)
        return Ack.OK

    renew = complete = fail = _update

    def _as_believed(self, ask: Renew | Complete | Fail) -> Call:
        """What the lifecycle would change in a record in progress under this owner and fence."""
        now = self.clock.now()
        believed = Row(
            ask.id, (), "", State.IN_PROGRESS, ask.fence, 0, ask.owner, -1, -1, -1, -1, False, None,
            _BYTES, _BYTES, _TEXT,
        )  # fmt: skip
        _, after = getattr(lifecycle, ask.op)(believed, ask, now)
        changes = {
            name: attribute(name, getattr(after, name))
            for name in _MAY_DIFFER
            if getattr(after, name) is not getattr(believed, name)
        }
        if "expires_at" in changes:
            changes["ttl"] = time_to_live(after.expires_at)
        changes["lease"] = {"N": str(ask.lease)} if isinstance(ask, Renew) else None
        condition = "#owner = :owner AND #fence = :fence AND #state = :running"
        values: Attributes = {
            ":owner": {"B": ask.owner},
            ":fence": {"N": str(ask.fence)},
            ":running": {"S": State.IN_PROGRESS.value},
            ":one": {"N": "1"},
        }
        if isinstance(ask, Renew):
            condition += " AND #lease_until <= :lease_until"  # a renewal never shortens
        elif isinstance(ask, Fail) and not ask.hold:
            condition += " AND #attempt < :most"  # else it is parked
            values[":most"] = {"N": str(ask.max_attempts)}
        return _update_item(ask.id, condition, values, changes)

    # -- the rest of one item ----------------------------------------------------------------------

    def _read_and_settle(self, ask: Any) -> Program[Ack]:
        found = yield from self._load(ask.id)
        return (yield from self._settle(ask, found))  # type: ignore[no-any-return]

    abandon = release = resolve = forget = discard = rewrite = _read_and_settle

    def read(self, ask: Read) -> Program[Row | None]:
        found = yield from self._load(ask.id)
        if found is None or lifecycle.is_expired(found.row, self.clock.now()):
            return None
        return found.row

    def history(self, ask: History) -> Program[list[AuditEntry]]:
        found = yield from self._load(ask.id)
        return [] if found is None else entries_of(ask.id, found.audit)

    def _load(self, id_: bytes) -> Program[Item | None]:
        reply = yield get(id_)
        found = reply.get("Item")
        return None if found is None else item_of(found)


def _update_item(id_: bytes, condition: str, values: Attributes, changes: Attributes) -> Call:
    kept = {name: value for name, value in changes.items() if value is not None}
    gone = [name for name, value in changes.items() if value is None]
    update = "SET #revision = #revision + :one"
    update += "".join(f", #{name} = :{name}" for name in kept)
    update += " REMOVE " + ", ".join(f"#{name}" for name in gone) if gone else ""
    values |= {f":{name}": value for name, value in kept.items()}
    named = ["owner", "fence", "state", "revision", *changes]
    named += ["attempt"] if "#attempt" in condition else []
    return Call(
        "update_item",
        {
            "Key": {"id": {"B": id_}},
            "UpdateExpression": update,
            "ConditionExpression": condition,
            "ExpressionAttributeNames": names_of(named),
            "ExpressionAttributeValues": values,
            **RETURN_OLD,
        },
    )
