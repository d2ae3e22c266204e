"""The timeline of one key: what is known of its past and its future, in order. Pure.

A record keeps the first claim and the last change; operators' actions are in the audit. What happened in
between is known only to the processes that saw it. A dashboard that runs in one of them adds it. The timeline
says what is not known; it does not leave it out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Literal

from .. import events as ev
from .._edges.readable import state_words, visible
from .._values.keys import Key
from .._values.quantities import counted
from .._values.records import AuditEntry, Cause, Record, State, moment
from ..observers._activity import Trouble

__all__ = ["CAUSES", "Kind", "TimelineEntry", "key_of", "timeline", "trouble_entry"]

Kind = Literal["start", "done", "trouble", "operator", "unknown", "future"]

CAUSES: Final = {
    Cause.FAILED: "the attempt before it failed",
    Cause.LEASE_EXPIRED: "takeover: the lease of the worker before it ran out",
    Cause.RETENTION_EXPIRED: "a duplicate came after the recorded answer's retention had ended",
    Cause.OPERATOR: "an operator released the key",
    Cause.RECORD_LOST: "its record was lost",
    Cause.RESUMED: "a durable function continued after its sleep or its wait",
}
_DONE: Final = {
    "release": "released",
    "resolve": "resolved",
    "forget": "forgot",
    "restart": "restarted",
    "signal": "signalled",
}
_AT_ONCE: Final = timedelta(milliseconds=5)


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One line of the timeline."""

    at: datetime | None
    """None: the time is not known."""
    kind: Kind
    title: str
    detail: str = ""


def timeline(
    record: Record, audit: Iterable[AuditEntry], seen: Iterable[Trouble], now: datetime
) -> list[TimelineEntry]:
    """What is known of this key, the oldest first. ``seen``: what this process saw, of any key."""
    actions = [_action(entry) for entry in audit]
    past = [_first(record), *actions]
    past += [
        entry for one in seen if (entry := _seen(one, record)) is not None and entry not in past
    ]
    changed = _last_change(record)
    if changed is not None and not any(
        _same_time(action.at, record.changed_at) for action in actions
    ):
        past.append(changed)
    past.sort(key=lambda entry: entry.at or record.created_at)
    if record.attempt > 1:
        past.insert(1, _between(record))
    return [*past, *_future(record, now)]


def _first(record: Record) -> TimelineEntry:
    if record.cause is Cause.RETENTION_EXPIRED and record.attempt <= 1:
        return TimelineEntry(
            record.created_at, "trouble", "A late duplicate ran again", CAUSES[record.cause]
        )
    return TimelineEntry(record.created_at, "start", "First delivery claimed the key")


def _between(record: Record) -> TimelineEntry:
    title = counted(record.attempt - 1, "further start") + " of the handler"
    why = "" if record.cause is None else f"the last one: {CAUSES[record.cause]}; "
    return TimelineEntry(None, "unknown", title, f"{why}the record keeps no times in between")


def _action(entry: AuditEntry) -> TimelineEntry:
    done = _DONE.get(entry.action, entry.action)
    title = f"{visible(entry.by)} {done} the key"
    was = f"it was {state_words(entry.state_before)}"
    return TimelineEntry(
        entry.at, "operator", title, f"{visible(entry.why)} ({was})" if entry.why else was
    )


def _last_change(record: Record) -> TimelineEntry | None:
    run = f"attempt {record.attempt}, fence {record.fence}"
    error = visible(record.error)
    match record.state:
        case State.IN_PROGRESS:
            if record.attempt <= 1 and record.cause is None:
                return None  # the first claim says it
            why = "" if record.cause is None else CAUSES[record.cause]
            return TimelineEntry(
                record.changed_at, "start", f"Attempt {record.attempt} started", f"{why}; {run}"
            )
        case State.COMPLETED:
            size = "no result" if record.result_bytes is None else f"{record.result_bytes:,} bytes"
            return TimelineEntry(record.changed_at, "done", "Answer recorded", f"{run}, {size}")
        case State.FAILED:
            return TimelineEntry(record.changed_at, "trouble", f"Failed permanently: {error}", run)
        case State.RELEASED:
            title = f"Attempt {record.attempt} failed: {error}" if error else "Released"
            return TimelineEntry(record.changed_at, "trouble" if error else "start", title, run)
        case State.HELD:
            return TimelineEntry(record.changed_at, "trouble", "Held: the outcome is unknown", run)
        case State.PARKED:
            why = f"the last failure: {error}; " if error else ""
            return TimelineEntry(
                record.changed_at, "trouble", "Parked: too many attempts", why + run
            )
        case State.SUSPENDED:
            title = "Suspended: it sleeps, or waits for a signal"
            return TimelineEntry(record.changed_at, "start", title, run)
        case State.FORGOTTEN:
            return TimelineEntry(
                record.changed_at, "done", "Forgotten: the key and its result are erased"
            )


def _future(record: Record, now: datetime) -> list[TimelineEntry]:
    found = []
    if record.lease_until is not None:
        late = record.lease_until < now
        title = (
            "Lease ended: the next delivery takes over" if late else "Lease ends, unless renewed"
        )
        found.append(TimelineEntry(record.lease_until, "trouble" if late else "future", title))
    if record.not_before is not None:
        title = (
            "Its sleep or its wait ends: it continues"
            if record.state is State.SUSPENDED
            else "Back-off ends: the next delivery may run"
        )
        found.append(TimelineEntry(record.not_before, "future", title))
    if record.expires_at is not None:
        over = record.expires_at < now
        title = "Retention ended" if over else "Kept until then"
        detail = (
            "a duplicate that comes later runs again" if record.state is not State.RELEASED else ""
        )
        found.append(TimelineEntry(record.expires_at, "future", title, detail))
    elif record.state in (State.HELD, State.PARKED):
        found.append(
            TimelineEntry(None, "future", "Waits for an operator", "it is kept until one acts")
        )
    return found


def _seen(one: Trouble, record: Record) -> TimelineEntry | None:
    key = key_of(one)
    found = None if key is None or key.id != record.id else trouble_entry(one)
    if found is None:
        return None
    detail = f"{found.detail}; seen by this process" if found.detail else "seen by this process"
    return replace(found, detail=detail)


def key_of(one: Trouble) -> Key | None:
    return getattr(one.event, "key", None)


def trouble_entry(one: Trouble) -> TimelineEntry | None:
    """What a process saw, in words; None: another entry says it."""
    match one.event:
        case ev.TakenOver(attempt=attempt):
            words = (f"Attempt {attempt} took over", "another worker's lease ran out")
        case ev.LeaseLost():
            words = (
                "A late answer was refused",
                "its fence was too old: another worker had taken over",
            )
        case ev.RenewalRefused():
            words = ("A lease renewal was refused", "another worker has the key")
        case ev.Failed(attempt=attempt, error=error):
            words = (f"Attempt {attempt} failed: {visible(error)}", "")
        case ev.ResultNotKept(reason=reason):
            words = ("The result was not kept", visible(reason))
        case ev.Unprotected():
            words = ("The handler ran without a claim", "the store was down")
        case _:
            return None
    return TimelineEntry(moment(one.at), "trouble", *words)


def _same_time(one: datetime | None, other: datetime) -> bool:
    return one is not None and abs(one - other) <= _AT_ONCE
