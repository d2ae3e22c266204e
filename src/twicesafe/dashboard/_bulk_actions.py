"""An action on everything that a filter matches.

A dry run shows how many keys that is. The action is refused if there are more by the time it is confirmed.
What happens to each key is decided by `act_on_listed`, as on the command line.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .._core.bulk_actions import ActionResult
from .._edges.readable import visible
from .._values.quantities import counted
from .._values.records import Record, State
from ..errors import StoreUnavailableError
from ._actions import LOOK, UNKNOWN, AppliedAction, KeyAction, request_of
from ._backend import Backend
from ._filters import Filters
from ._forms import Signed, answer, number

__all__ = ["AT_ONCE", "DryRun", "dry_run", "on_all"]

_log = logging.getLogger("twicesafe.dashboard")

AT_ONCE: Final = 1000
"""Keys that one action on a filter changes, at most."""
SHOWN: Final = 5
"""Keys that a dry run lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """How many keys an action would change, before it does."""

    action: KeyAction
    filters: Filters
    would: dict[State, int]
    """Keys that it would change, by state."""
    left: int
    """Keys that match but stay as they are."""
    newest: list[Record]
    """A few of those that it would change."""

    @property
    def count(self) -> int:
        return sum(self.would.values())

    @property
    def now(self) -> int:
        """How many of them this action changes at once."""
        return min(self.count, AT_ONCE)

    @property
    def targets(self) -> Filters:
        """The filters, narrowed to what is changed."""
        return _narrowed(self.filters, tuple(self.would))


async def dry_run(backend: Backend, action: KeyAction, filters: Filters) -> DryRun:
    states = _eligible(action, filters)
    narrowed = (_narrowed(filters, (state,)) for state in states)
    (total, *many), newest = await backend.counts(
        [filters, *narrowed], _narrowed(filters, states), SHOWN
    )
    would = {state: number for state, number in zip(states, many, strict=True) if number}
    left = max(0, total - sum(would.values()))
    return DryRun(
        action=action, filters=filters, would=would, left=left, newest=newest if would else []
    )


def _eligible(action: KeyAction, filters: Filters) -> tuple[State, ...]:
    """Work in progress loses its claim by an action, so it is offered only if its lease is over."""
    offered = action.states
    if filters.stuck:
        offered = (State.IN_PROGRESS,) if action.is_possible(State.IN_PROGRESS) else ()
    return tuple(state for state in offered if not filters.states or state in filters.states)


def _narrowed(filters: Filters, states: tuple[State, ...]) -> Filters:
    return Filters.read(
        [("state", state.value) for state in states]
        + [(name, text) for name, text in filters.fields() if name != "state"]
    )


async def on_all(
    backend: Backend, action: KeyAction, filters: Filters, who: Signed, form: Mapping[str, str]
) -> AppliedAction:
    """Act on everything that matches, the newest first, at most `AT_ONCE`."""
    given = answer(form) if action.name == "resolve" else None
    plan = await dry_run(backend, action, filters)
    expected = form.get("count", "")
    if plan.count > number(expected):
        return AppliedAction(
            changed=False,
            title="Nothing was changed",
            details=(
                f"{counted(plan.count, 'key')} match now, and you confirmed {visible(expected) or 'no number'}.",
                "Look at the new count, then confirm again.",
            ),
        )
    done, refused, moved, cut = 0, [], 0, ""
    for record in await _collected(backend, plan):
        try:
            request = None
            if record.key is not None:
                request = request_of(backend, action, record, who, given, {}, listed=True)
            fate, why = await backend.act_on_listed(record, request)
        except StoreUnavailableError as error:
            cut = f"{error}. It is not known whether the last key was changed. {LOOK}"
            break
        if fate is ActionResult.DONE:
            done += 1
        elif fate is ActionResult.REFUSED:
            refused.append(f"key {record.short}: {why}")
        else:
            moved += 1  # a worker or another operator has it
    _log.info(
        "%s %s on %s: %d changed, %d refused, %d changed meanwhile: %s",
        *(visible(who.by), action.name, visible(filters.words()), done, len(refused), moved),
        visible(who.why),
    )
    details = [f"{counted(done, 'key')} {action.done}."] if done else []
    if not plan.count:
        details.append(f"No key that matches is in a state that {action.name} changes.")
    if cut:
        details.append(f"The store stopped answering: {cut}")
    if refused:
        details.append(f"{counted(len(refused), 'key')} refused. The first: {refused[0]}")
    if moved:
        details.append(f"{counted(moved, 'key')} changed meanwhile and were left alone.")
    if (left := plan.count - done - len(refused) - moved) > 0 and not cut:
        details.append(
            f"{counted(left, 'key')} still match: an action changes {AT_ONCE:,} at most."
        )
    nothing = UNKNOWN if cut else "Nothing was changed"
    title = f"{counted(done, 'key')} changed" if done else nothing
    return AppliedAction(changed=bool(done), title=title, details=tuple(details))


async def _collected(backend: Backend, plan: DryRun) -> list[Record]:
    """All records first: an action changes what matches, and so what the next page would be."""
    found: list[Record] = []
    after = ""
    while plan.would and len(found) < AT_ONCE:
        page, after = await backend.page(plan.targets, min(200, AT_ONCE - len(found)), after)
        found += page
        if not after:
            break
    return found
