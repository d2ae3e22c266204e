"""Actions of operators: what each is called, whom it is for, and what really happened to one key.

An action on one key is about the run that the page showed. If another one has started since, or was
decided on, nothing is changed. It reads the record before and after, and reports both. The store
writes who and why in the same transaction as the change. `_bulk_actions` acts on everything that a
filter matches.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from .._core.commands import Flow
from .._core.transitions import TRANSITIONS, RecordEvent
from .._edges.readable import state_words, visible
from .._values.records import Record, State
from ..errors import StoreUnavailableError, TwicesafeError
from ._backend import Backend
from ._forms import BadFormError, ResolvedAnswer, Signed, answer, number

__all__ = ["KEY_ACTIONS", "LOOK", "UNKNOWN", "AppliedAction", "KeyAction", "on_one", "request_of"]


_log = logging.getLogger("twicesafe.dashboard")


UNKNOWN: Final = "It is not known whether anything was changed"
LOOK: Final = "Look at the key again once the store answers."


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAction:
    name: str
    title: str
    done: str
    """What was done, after the number of keys."""
    meaning: str
    event: RecordEvent
    states: tuple[State, ...]
    """Those for which it is offered on everything that a filter matches; none: it is for one key only."""
    of_step: bool = False
    """It is about one step of a durable run, and offered beside it."""

    def is_possible(self, state: State) -> bool:
        """Whether the store would do it to one key, perhaps with ``force``."""
        return (state, self.event) in TRANSITIONS


KEY_ACTIONS: Final = {
    action.name: action
    for action in (
        KeyAction(
            name="release",
            title="Release",
            done="released: the next delivery runs the handler",
            meaning="The next delivery runs the handler. For work that did not happen.",
            event=RecordEvent.RELEASE,
            states=(State.HELD, State.PARKED, State.FAILED),
        ),
        KeyAction(
            name="resolve",
            title="Resolve",
            done="resolved: repeats get this answer",
            meaning="Record the answer by hand; repeats get it. For work that did happen.",
            event=RecordEvent.RESOLVE,
            states=(State.HELD, State.PARKED, State.FAILED),
        ),
        KeyAction(
            name="forget",
            title="Forget",
            done="forgotten: key and result are erased, a late repeat does not run",
            meaning="Erase the key's text and its result. A late repeat still does not run.",
            event=RecordEvent.FORGET,
            states=(State.COMPLETED, State.FAILED, State.HELD, State.PARKED, State.RELEASED),
        ),
        KeyAction(
            name="restart",
            title="Restart",
            done="restarted: the run starts from the beginning",
            meaning="Drop the recorded steps and start from the beginning. Effects happen again.",
            event=RecordEvent.RELEASE,
            states=(),
        ),
        KeyAction(
            name="signal",
            title="Signal",
            done="got the signal: the run continues",
            meaning="Send the value that the step waits for. It cannot be changed later.",
            event=RecordEvent.RELEASE,
            states=(),
            of_step=True,
        ),
        KeyAction(
            name="skip",
            title="Skip",
            done="changed: the run continues without the step",
            meaning="Record this step, or its undo, as done by hand. Nothing runs for it.",
            event=RecordEvent.RELEASE,
            states=(),
            of_step=True,
        ),
    )
}
"""`restart`, and the actions of steps, are for durable runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedAction:
    """What really happened."""

    changed: bool
    title: str
    details: tuple[str, ...] = ()
    record: Record | None = None
    """Afterwards, if it was about one key."""


# --- one key ---------------------------------------------------------------------------------


async def on_one(
    backend: Backend, action: KeyAction, record: Record, who: Signed, form: Mapping[str, str]
) -> AppliedAction:
    given = _given(action, form)
    if record.key is None:
        forgotten = "This key is forgotten: nothing is left to change."
        return AppliedAction(
            changed=False, title="Nothing was changed", details=(forgotten,), record=record
        )
    # Our form has the fence that its page showed; a page may stay open for hours.
    seen = number(form["fence"]) if "fence" in form else record.fence
    if (
        action.name == "forget" and seen != record.fence
    ):  # a store forgets without looking at fences
        moved = "Another run has started since the page was loaded: look at the key again."
        return AppliedAction(
            changed=False, title="Nothing was changed", details=(moved,), record=record
        )
    try:
        request = request_of(backend, action, replace(record, fence=seen), who, given, form)
        if await backend.act(request) is False:
            refused = "The run is over, or this step has a value, which stays."
            return AppliedAction(
                changed=False, title="Nothing was changed", details=(refused,), record=record
            )
    except StoreUnavailableError as error:
        return AppliedAction(
            changed=False, title=UNKNOWN, details=(str(error), LOOK), record=record
        )
    except TwicesafeError as error:
        return AppliedAction(
            changed=False, title="Nothing was changed", details=(str(error),), record=record
        )
    _log.info("%s %s %s: %s", visible(who.by), action.name, record.short, visible(who.why))
    after = await backend.record(record.id)
    was, now = ("gone" if one is None else state_words(one.state) for one in (record, after))
    if now == was == "suspended":
        became = "It is suspended until the completer or the next call continues it."
    else:
        became = f"It was {was}; now it is {now}."
    details = (
        became,
        f"The audit has it under the name {visible(who.by)}.",
    )
    return AppliedAction(changed=True, title=f"1 key {action.done}", details=details, record=after)


def _given(action: KeyAction, form: Mapping[str, str]) -> ResolvedAnswer | None:
    if action.of_step and not form.get("step"):
        raise BadFormError("Nothing was changed: the step is missing.")
    if action.name == "skip" and not form.get("answer", "").strip():
        return ResolvedAnswer(None, None)
    return answer(form) if action.name in ("resolve", "signal", "skip") else None


def request_of(
    backend: Backend,
    action: KeyAction,
    record: Record,
    who: Signed,
    given: ResolvedAnswer | None,
    form: Mapping[str, str],
    listed: bool = False,
) -> Flow[Any]:
    """The action on this record, for the fence that it has here. ``listed``: one of many."""
    force, step = form.get("force") == "yes", form.get("step", "")
    value = None if given is None else given.value
    match action.name:
        case "release":
            return backend.release(record, who.by, who.why, force, listed)
        case "forget":
            return backend.forget(record, who.by, who.why)
        case "restart":
            return backend.restart(record, who.by, who.why, force)
        case "signal":
            return backend.signal(record, step, value, who.by, who.why)
        case "skip":
            return backend.skip(record, step, value, who.by, who.why)
    assert given is not None
    return backend.resolve(record, value, who.by, who.why, given.codec, listed)
