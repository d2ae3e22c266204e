"""Acts of operators: what each is called, whom it is for, what a form must say, and what really happened.

An act on one key is about the run that the page showed: if another one has started since, or was decided on,
nothing is changed. It reads the record before and after, and reports both. An act on everything that a filter
matches first shows how many keys that is (the dry run), and is refused if there are more by the time it is
confirmed; what happens to each is decided by `act_on_listed`, as on the command line. The store writes who
and why in the same transaction as the change.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from .._core.acting import Fate
from .._core.commands import Flow
from .._core.http.message import StoredResponse
from .._core.http.stored import RESPONSE_CODEC
from .._core.lifecycle import TRANSITIONS, RecordEvent
from .._edges.readable import counted, state_words, visible
from .._values.records import Record, State
from ..errors import NotStorableError, StoreUnavailableError, TwicesafeError
from ._asking import Asking
from ._filters import Filters

__all__ = [
    "ACTS",
    "AT_ONCE",
    "Act",
    "BadFormError",
    "DryRun",
    "Result",
    "Signed",
    "dry_run",
    "number_of",
    "on_all",
    "on_one",
    "signed",
]

AT_ONCE: Final = 1000
"""Keys that one act on a filter changes, at most."""
LONGEST: Final = 255
"""Characters of a name or a reason."""
LARGEST: Final = 65536
"""Characters of an answer that is typed in."""

_log = logging.getLogger("twicesafe.dashboard")


_UNKNOWN: Final = "It is not known whether anything was changed"
_LOOK: Final = "Look at the key again once the store answers."


class BadFormError(Exception):
    """The form cannot be used; its text says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
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


ACTS: Final = {
    act.name: act
    for act in (
        Act(
            name="release",
            title="Release",
            done="released: the next delivery of each runs the handler",
            meaning="The next delivery runs the handler. For work that did not happen.",
            event=RecordEvent.RELEASE,
            states=(State.HELD, State.PARKED, State.FAILED),
        ),
        Act(
            name="resolve",
            title="Resolve",
            done="resolved: repeats get this answer",
            meaning="Record the answer by hand; repeats get it. For work that did happen.",
            event=RecordEvent.RESOLVE,
            states=(State.HELD, State.PARKED, State.FAILED),
        ),
        Act(
            name="forget",
            title="Forget",
            done="forgotten: key and result are erased, a late repeat does not run",
            meaning="Erase the key's text and its result. A late repeat still does not run.",
            event=RecordEvent.FORGET,
            states=(State.COMPLETED, State.FAILED, State.HELD, State.PARKED, State.RELEASED),
        ),
        Act(
            name="restart",
            title="Restart",
            done="restarted: the run starts from the beginning",
            meaning="Drop the recorded steps and start from the beginning. Effects happen again.",
            event=RecordEvent.RELEASE,
            states=(),
        ),
        Act(
            name="signal",
            title="Signal",
            done="got the signal: the run goes on",
            meaning="Send the value that the step waits for. It cannot be changed later.",
            event=RecordEvent.RELEASE,
            states=(),
            of_step=True,
        ),
        Act(
            name="skip",
            title="Skip",
            done="changed: the run goes on without the step",
            meaning="Record this step, or its undo, as done by hand. Nothing runs for it.",
            event=RecordEvent.RELEASE,
            states=(),
            of_step=True,
        ),
    )
}
"""`restart`, and the acts of steps, are for durable runs."""


@dataclass(frozen=True, slots=True)
class Signed:
    by: str
    why: str


def signed(form: Mapping[str, str], user: str) -> Signed:
    """Who and why. A visitor whose name is known acts under that name only."""
    by = user or form.get("by", "").strip()
    why = form.get("why", "").strip()
    for text, what in ((by, "your name"), (why, "the reason")):
        if not text:
            raise BadFormError(f"Nothing was changed: {what} is missing. The audit needs both.")
        if len(text) > LONGEST:
            raise BadFormError(f"Nothing was changed: {what} has more than {LONGEST} characters.")
    return Signed(by, why)


@dataclass(frozen=True, slots=True)
class Answer:
    """What `resolve` records."""

    value: Any
    codec: Any
    """None: the receiver's own."""


def answer(form: Mapping[str, str]) -> Answer:
    text = form.get("answer", "")  # not "value": that is a filter, on the same form
    if len(text) > LARGEST:
        raise BadFormError(f"Nothing was changed: the answer has more than {LARGEST:,} characters.")
    if form.get("kind") == "response":
        return Answer(_response(form.get("status", ""), form.get("type", ""), text), RESPONSE_CODEC)
    try:
        return Answer(msgspec.json.decode(text.encode()), None)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise BadFormError(
            f'Nothing was changed: the answer is not JSON ({error}). Text needs quotes: "paid".'
        ) from error


def _response(status: str, kind: str, text: str) -> StoredResponse:
    if not 200 <= number_of(status) <= 599:
        raise BadFormError("Nothing was changed: the status is a number from 200 to 599.")
    lines = ((b"content-type", kind.encode("latin-1", "replace")),) if kind else ()
    made = StoredResponse(int(status), lines, text.encode("utf-8", "replace"))
    try:
        RESPONSE_CODEC.encode(made)
    except NotStorableError as error:
        raise BadFormError(f"Nothing was changed: {error}") from error
    return made


def number_of(text: str) -> int:
    """A number of a form; -1: it is none, or far too large."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What really happened."""

    changed: bool
    title: str
    details: tuple[str, ...] = ()
    record: Record | None = None
    """Afterwards, if it was about one key."""


# --- one key ---------------------------------------------------------------------------------


async def on_one(
    asking: Asking, act: Act, record: Record, who: Signed, form: Mapping[str, str]
) -> Result:
    given = _given(act, form)
    if record.key is None:
        forgotten = "This key is forgotten: nothing is left to change."
        return Result(
            changed=False, title="Nothing was changed", details=(forgotten,), record=record
        )
    # A form of ours has the fence that its page showed; a page may stay open for hours.
    seen = number_of(form["fence"]) if "fence" in form else record.fence
    try:
        request = _request(asking, act, replace(record, fence=seen), who, given, form)
        if await asking.act(request) is False:
            refused = "The run is over, or this step has a value, which stays."
            return Result(
                changed=False, title="Nothing was changed", details=(refused,), record=record
            )
    except StoreUnavailableError as error:
        return Result(changed=False, title=_UNKNOWN, details=(str(error), _LOOK), record=record)
    except TwicesafeError as error:
        return Result(
            changed=False, title="Nothing was changed", details=(str(error),), record=record
        )
    _log.info("%s %s %s: %s", visible(who.by), act.name, record.short, visible(who.why))
    after = await asking.record(record.id)
    now = "gone" if after is None else state_words(after.state)
    details = (
        f"It was {state_words(record.state)}; now it is {now}.",
        f"The audit has it under the name {visible(who.by)}.",
    )
    return Result(changed=True, title=f"1 key {act.done}", details=details, record=after)


def _given(act: Act, form: Mapping[str, str]) -> Answer | None:
    if act.of_step and not form.get("step"):
        raise BadFormError("Nothing was changed: which step is not said.")
    if act.name == "skip" and not form.get("answer", "").strip():
        return Answer(None, None)
    return answer(form) if act.name in ("resolve", "signal", "skip") else None


def _request(
    asking: Asking,
    act: Act,
    record: Record,
    who: Signed,
    given: Answer | None,
    form: Mapping[str, str],
    listed: bool = False,
) -> Flow[Any]:
    """The act on this record, for the fence that it has here. ``listed``: one of many."""
    force, step = form.get("force") == "yes", form.get("step", "")
    value = None if given is None else given.value
    match act.name:
        case "release":
            return asking.release(record, who.by, who.why, force, listed)
        case "forget":
            return asking.forget(record, who.by, who.why)
        case "restart":
            return asking.restart(record, who.by, who.why, force)
        case "signal":
            return asking.signal(record, step, value, who.by, who.why)
        case "skip":
            return asking.skip(record, step, value, who.by, who.why)
    assert given is not None
    return asking.resolve(record, value, who.by, who.why, given.codec, listed)


# --- everything that a filter matches --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """How many keys an act would change, before it does."""

    act: Act
    filters: Filters
    would: dict[State, int]
    """Keys that it would change, by state."""
    left: int
    """Keys that match but stay as they are."""

    @property
    def count(self) -> int:
        return sum(self.would.values())

    @property
    def now(self) -> int:
        """How many of them this act changes at once."""
        return min(self.count, AT_ONCE)

    @property
    def targets(self) -> Filters:
        """The filters, narrowed to what is changed."""
        return _narrowed(self.filters, tuple(self.would))


async def dry_run(asking: Asking, act: Act, filters: Filters) -> DryRun:
    total = await asking.count(filters)
    would = {}
    for state in _eligible(act, filters):
        if number := await asking.count(_narrowed(filters, (state,))):
            would[state] = number
    left = max(0, total - sum(would.values()))
    return DryRun(act=act, filters=filters, would=would, left=left)


def _eligible(act: Act, filters: Filters) -> tuple[State, ...]:
    """Work in progress loses its claim by an act, so it is offered only if its lease is over."""
    offered = act.states
    if filters.stuck:
        offered = (State.IN_PROGRESS,) if act.is_possible(State.IN_PROGRESS) else ()
    return tuple(state for state in offered if not filters.states or state in filters.states)


def _narrowed(filters: Filters, states: tuple[State, ...]) -> Filters:
    return Filters.read(
        [("state", state.value) for state in states]
        + [(name, text) for name, text in filters.fields() if name != "state"]
    )


async def on_all(
    asking: Asking, act: Act, filters: Filters, who: Signed, form: Mapping[str, str]
) -> Result:
    """Act on everything that matches, the newest first, at most `AT_ONCE`."""
    given = answer(form) if act.name == "resolve" else None
    plan = await dry_run(asking, act, filters)
    expected = form.get("count", "")
    if plan.count > number_of(expected):
        return Result(
            changed=False,
            title="Nothing was changed",
            details=(
                f"{counted(plan.count, 'key')} match now, and you confirmed {visible(expected) or 'no number'}.",
                "Look at the new count, then confirm again.",
            ),
        )
    done, refused, moved, cut = 0, [], 0, ""
    for record in await _collected(asking, plan):
        try:
            request = None
            if record.key is not None:
                request = _request(asking, act, record, who, given, {}, listed=True)
            fate, why = await asking.act_on_listed(record, request)
        except StoreUnavailableError as error:
            cut = f"{error}. It is not known whether the last key was changed. {_LOOK}"
            break
        if fate is Fate.DONE:
            done += 1
        elif fate is Fate.REFUSED:
            refused.append(f"key {record.short}: {why}")
        else:
            moved += 1  # a worker or another operator has it
    _log.info(
        "%s %s on %s: %d changed, %d refused, %d changed meanwhile: %s",
        *(visible(who.by), act.name, visible(filters.words()), done, len(refused), moved),
        visible(who.why),
    )
    details = [f"{counted(done, 'key')} {act.done}."] if done else []
    if cut:
        details.append(f"The store stopped answering: {cut}")
    if refused:
        details.append(f"{counted(len(refused), 'key')} refused. The first: {refused[0]}")
    if moved:
        details.append(f"{counted(moved, 'key')} changed meanwhile and stayed as they are.")
    if (left := plan.count - done - len(refused) - moved) > 0 and not cut:
        details.append(f"{counted(left, 'key')} still match: an act changes {AT_ONCE:,} at most.")
    nothing = _UNKNOWN if cut else "Nothing was changed"
    title = f"{counted(done, 'key')} changed" if done else nothing
    return Result(changed=bool(done), title=title, details=tuple(details))


async def _collected(asking: Asking, plan: DryRun) -> list[Record]:
    """All records first: an act changes what matches, and so what the next page would be."""
    found: list[Record] = []
    after = ""
    while plan.would and len(found) < AT_ONCE:
        page, after = await asking.page(plan.targets, min(200, AT_ONCE - len(found)), after)
        found += page
        if not after:
            break
    return found
