"""An action of an operator on a record that was listed before: done, or why not.

A list is out of date when an operator acts on it. So each record is read again right before the
action, and the store compares the fence and the lease in the same atomic request. A run that
started or was renewed meanwhile keeps its claim, and an answer that was recorded meanwhile stays.
Work that a worker is running is not touched, nor are the records of twicesafe itself: without its
register, a home would have no region.

The command line and the dashboard both use `act_on_listed` for all records that match.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

from .._values.own_records import is_own
from .._values.records import Record, Row, State
from ..errors import StoreUnavailableError, TwicesafeError
from .commands import Flow
from .protocol import Read

__all__ = ["ActionReport", "ActionResult", "act_on_listed"]


class ActionResult(enum.StrEnum):
    """What happened to one key."""

    DONE = "done"
    REFUSED = "refused"
    CHANGED = "changed"
    GONE = "gone"


ActionReport: TypeAlias = tuple[ActionResult, str]
"""What happened, and why."""


def act_on_listed(record: Record, act: Flow[None] | None) -> Flow[ActionReport]:
    """Act on this key if it is as it was listed.

    ``act``: the request, for the fence of the record and ``unless_running``; None: its key is forgotten. An
    outage is raised.
    """
    if record.key is None or act is None:
        return ActionResult.REFUSED, "it is forgotten: nothing is left to change"
    if is_own(record.scope):
        return (
            ActionResult.REFUSED,
            "twicesafe keeps it for itself: to change it, name this key alone",
        )
    asked = record.key.id
    found = _difference(record, (yield Read(asked)))
    if found is not None:
        return found
    try:
        yield from act
    except StoreUnavailableError:
        raise
    except TwicesafeError as error:
        changed = _difference(record, (yield Read(asked)))
        if changed is None and record.state is State.IN_PROGRESS:
            return ActionResult.REFUSED, "a worker is running it: wait, or name this key alone"
        return changed or (ActionResult.REFUSED, error.message)
    return ActionResult.DONE, ""


def _difference(record: Record, row: Row | None) -> ActionReport | None:
    """What happened since it was listed; None: nothing."""
    if row is None:
        return ActionResult.GONE, "its record is no longer there"
    if (row.state, row.fence) != (record.state, record.fence):
        return ActionResult.CHANGED, f"it is {row.state.value} now: it changed since it was listed"
    return None
