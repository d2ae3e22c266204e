"""What the pages of keys show, from what was asked of the store and what the visitor may see. Pure.

Without `Access.show_keys` a key is the first 8 digits of its id, as in logs and errors, and a scope is the
number of its parts. Both come from senders and may name people.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from .._core.durable.run_state import FAILURE, INNER, UNDO
from .._edges.readable import (
    BETWEEN,
    MEANINGS,
    ago,
    shortened,
    state_words,
    step_words,
    unreadable_words,
    visible,
)
from .._values.quantities import counted, duration_text
from .._values.records import AuditEntry, Cause, Record, State, Stats
from .._values.steps import StepRecord, StepState
from ..observers._activity import Trouble
from ._access import Access
from ._actions import KEY_ACTIONS, KeyAction
from ._filters import AGES, RERUNS, Filters
from ._timeline import CAUSES, TimelineEntry, timeline

__all__ = ["KeyPage", "KeyRow", "KeysPage", "When", "key_page", "key_row", "keys_page"]


@dataclass(frozen=True, slots=True)
class When:
    """A time, for people and exactly."""

    ago: str
    exact: str
    machine: str

    @classmethod
    def of(cls, moment: datetime, now: datetime) -> When:
        exact = f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        return cls(ago(moment, now), exact, moment.isoformat(timespec="milliseconds"))


def scope_text(scope: Sequence[str], access: Access) -> str:
    if not scope:
        return ""
    if access.show_keys:
        return shortened(BETWEEN.join(scope), 60)
    return counted(len(scope), "part")


# --- keys ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    path: str
    short: str
    key: str
    """Empty: it is not shown, or erased."""
    scope: str
    state: State
    state_words: str
    attempt: int
    trouble: str
    """The last failure, or why it ran again."""
    changed: When


def key_row(record: Record, access: Access, now: datetime) -> KeyRow:
    return KeyRow(
        path=f"keys/{record.id.hex()}",
        short=record.short,
        key=shortened(record.value, 48) if access.show_keys else "",
        scope=scope_text(record.scope, access),
        state=record.state,
        state_words=state_words(record.state),
        attempt=record.attempt,
        trouble=visible(record.error)
        or ("" if record.cause is None else _CAUSE_WORDS[record.cause]),
        changed=When.of(record.changed_at, now),
    )


_CAUSE_WORDS: Final = {
    Cause.FAILED: "re-run after a failure",
    Cause.LEASE_EXPIRED: "taken over",
    Cause.RETENTION_EXPIRED: "late duplicate ran again",
    Cause.OPERATOR: "released by an operator",
    Cause.RECORD_LOST: "record lost",
    Cause.RESUMED: "resumed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    words: str
    path: str
    is_on: bool
    count: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysPage:
    filters: Filters
    rows: tuple[KeyRow, ...]
    states: tuple[Facet, ...]
    ages: tuple[Facet, ...]
    reruns: tuple[Facet, ...]
    matched: str
    """How many match, in words; empty: not counted."""
    next_path: str
    is_first: bool
    first_path: str
    actions: tuple[tuple[KeyAction, str], ...]
    """Actions on everything that matches, and their paths."""
    unreadable: str
    """Which records could not be read, in words; empty: none."""
    empty: str


def keys_page(
    filters: Filters,
    records: Sequence[Record],
    after: str,
    access: Access,
    now: datetime,
    *,
    unreadable: Collection[str] = (),
    stats: Stats | None = None,
    matched: int | None = None,
    matched_up_to: int = 0,
    is_first: bool = True,
) -> KeysPage:
    return KeysPage(
        filters=filters,
        rows=tuple(key_row(record, access, now) for record in records),
        states=tuple(_state_facets(filters, stats)),
        ages=tuple(
            Facet(
                words=words,
                path=f"keys{filters.url(since=since, older_than=older)}",
                is_on=(filters.since, filters.older_than) == (since, older),
            )
            for words, since, older in AGES
        ),
        reruns=tuple(
            Facet(words=words, path=f"keys{filters.url(cause=cause)}", is_on=filters.cause is cause)
            for words, cause in RERUNS
        ),
        matched=_matched(matched, matched_up_to),
        next_path=f"keys{_with(filters, after)}" if after else "",
        is_first=is_first,
        first_path=f"keys{filters.url()}",
        actions=tuple(
            (action, f"actions/{action.name}{filters.url()}")
            for action in KEY_ACTIONS.values()
            if access.may_act and action.states
        ),
        unreadable=unreadable_words(unreadable),
        empty="" if records or unreadable else _nothing(filters, stats),
    )


def _state_facets(filters: Filters, stats: Stats | None) -> Iterable[Facet]:
    for state in State:
        count = None if stats is None else stats.by_state.get(state, 0)
        yield Facet(
            words=state_words(state),
            path=f"keys{filters.toggled(state)}",
            is_on=state in filters.states,
            count="" if count is None else f"{count:,}",
            kind=state.value,
        )
    yield Facet(
        words="stuck",
        path=f"keys{filters.url(stuck=not filters.stuck)}",
        is_on=filters.stuck,
        count="" if stats is None else f"{stats.stuck:,}",
        kind="stuck",
    )


def _with(filters: Filters, after: str) -> str:
    query = filters.url()
    return f"{query}{'&' if query else '?'}after={quote(after, safe='')}"


def _matched(count: int | None, up_to: int) -> str:
    if count is None:
        return ""
    if up_to and count >= up_to:
        return f"{up_to:,} or more keys match"
    return f"{count:,} key matches" if count == 1 else f"{count:,} keys match"


def _nothing(filters: Filters, stats: Stats | None) -> str:
    if filters.problem:
        return f"Nothing is shown: {filters.problem}."
    if filters.is_empty:
        return "There are no keys yet. The first delivery makes the first record."
    if filters.states == (State.HELD,):
        return "No key is held. Nothing waits for a decision."
    if filters.states == (State.PARKED,):
        return "No key is parked. No work has used up its attempts."
    if filters.stuck:
        return "No key is stuck. All work in progress has a live lease."
    return (
        "No key matches. Take a filter away, or check the value: it must be exactly as it was sent."
    )


# --- one key ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    when: When | None
    kind: str
    title: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    name: str
    shown: str
    """The name, for people."""
    kind: str
    state: StepState
    attempt: int
    changed: When
    ends: When | None
    action: KeyAction | None
    """What an operator may do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPage:
    row: KeyRow
    fence: int
    """An action is about this one."""
    meaning: str
    facts: tuple[tuple[str, str], ...]
    moments: tuple[Moment, ...]
    steps: tuple[StepRow, ...]
    """Of a durable run."""
    actions: tuple[KeyAction, ...]
    needs_force: bool
    """A completed key: a release needs a tick more."""
    warning: str
    """What a release does to work that is running."""
    same_scope: str
    """The path of all keys in this scope; empty: it has none, or may not be shown."""


def key_page(
    record: Record,
    audit: Sequence[AuditEntry],
    seen: Iterable[Trouble],
    access: Access,
    now: datetime,
) -> KeyPage:
    is_late = record.lease_until is not None and record.lease_until < now
    meaning = (
        "its lease has ended: the next delivery takes over" if is_late else MEANINGS[record.state]
    )
    running = record.state is State.IN_PROGRESS
    return KeyPage(
        row=key_row(record, access, now),
        fence=record.fence,
        meaning=meaning,
        facts=tuple(_facts(record, access)),
        moments=tuple(_moment(entry, now) for entry in timeline(record, audit, seen, now)),
        steps=tuple(_step(step, record, access, now) for step in record.steps),
        actions=tuple(
            _RESUME if record.steps and action.name == "release" else action
            for action in KEY_ACTIONS.values()
            if _is_offered(action, record, access)
        ),
        needs_force=record.state is State.COMPLETED,
        warning="Its worker loses the claim, and the work may be done twice." if running else "",
        same_scope=f"keys{Filters(scope=record.scope).url()}"
        if record.scope and access.show_keys
        else "",
    )


_RESUME: Final = replace(
    KEY_ACTIONS["release"],
    meaning="The run continues where it stopped: its recorded steps are kept, also while it is being undone.",
)


def _is_offered(action: KeyAction, record: Record, access: Access) -> bool:
    if action.of_step or (action.name == "restart" and not record.steps):
        return False
    return access.may_act and record.key is not None and action.is_possible(record.state)


def _step(step: StepRecord, record: Record, access: Access, now: datetime) -> StepRow:
    return StepRow(
        name=step.name,
        shown=step_words(step.name),
        kind=step.kind,
        state=step.state,
        attempt=step.attempt,
        changed=When.of(step.changed_at, now),
        ends=None if step.due_at is None else When.of(step.due_at, now),
        action=_action_of_step(step, record) if access.may_act else None,
    )


def _action_of_step(step: StepRecord, record: Record) -> KeyAction | None:
    if record.state in (State.COMPLETED, State.FAILED, State.FORGOTTEN):
        return None
    waits = step.kind == "wait" and step.state is StepState.WAITING
    if waits and not step.name.startswith(INNER):
        return KEY_ACTIONS["signal"]
    if record.state not in (State.HELD, State.PARKED):
        return None
    names = {each.name for each in record.steps}
    to_undo = step.undo and FAILURE in names and UNDO + step.name not in names
    return KEY_ACTIONS["skip"] if to_undo or step.state is StepState.STARTED else None


def _facts(record: Record, access: Access) -> Iterable[tuple[str, str]]:
    if access.show_keys:
        yield "Key", visible(record.value) or "erased"
        if record.scope:
            yield "Scope", BETWEEN.join(map(visible, record.scope))
    elif record.scope:
        yield "Scope", f"{counted(len(record.scope), 'part')}, hidden"
    yield "Id", record.id.hex()
    yield "Attempts", str(record.attempt)
    yield "Fence", str(record.fence)
    if record.cause is not None:
        yield "Last re-run because", CAUSES[record.cause]
    if record.error:
        yield "Last failure", visible(record.error)
    if record.result_bytes is not None:
        yield "Result", f"{record.result_bytes:,} bytes, never shown"
    took = (record.changed_at - record.created_at).total_seconds()
    if record.state is State.COMPLETED and record.attempt == 1:
        yield "Claim to answer", duration_text(took)


def _moment(entry: TimelineEntry, now: datetime) -> Moment:
    when = None if entry.at is None else When.of(entry.at, now)
    return Moment(when=when, kind=entry.kind, title=entry.title, detail=entry.detail)
