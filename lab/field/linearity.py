"""Is a recorded history one that a single, atomic store could have given? (Wing & Gong, with memo.)

A history is who asked what when, and what came back. It is *linearisable* if every operation can be
given one moment between its call and its return so that `_core.lifecycle`, asked at these moments,
gives these answers. An operation whose answer never came stays open: it may have happened at any time
after its call, or never. Keys do not know each other, so each key's history is searched by itself.

Fences need not be the model's numbers, only in their order: each state of the search carries which
fence of the store is which of the model's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import astuple, replace

from twicesafe._core import lifecycle
from twicesafe._core.protocol import Ack, Claimed, Complete, Fail, Read, Renew, Verdict
from twicesafe._values.records import Row, State

__all__ = ["UNDECIDED", "UNKNOWN", "Call", "check", "partition"]

NOW: Final = 1_000_000
"""Time stands still in the model: a lease of 0 is over at once, one of an hour is not over here."""

MOMENT: Final = 5_000
"""Milliseconds; those of an hour are not meant."""

UNKNOWN: Final = "unknown"
"""The answer of an operation whose end was never seen."""

UNDECIDED: Final = "not decided: too many orders are possible"


class Call(msgspec.Struct):
    client: int
    request: Any
    called: float
    returned: float = math.inf
    answer: Any = UNKNOWN

    def __str__(self) -> str:
        return f"client {self.client}: {told(self.request)} → {told(self.answer)}"


class _State(msgspec.Struct, frozen=True):
    row: Row | None
    fences: tuple[tuple[int, int], ...] = ()
    """(the model's, the store's), in order."""

    def key(self) -> Any:
        return (None if self.row is None else astuple(self.row), self.fences)


def partition(history: Sequence[Call]) -> dict[bytes, list[Call]]:
    parts: dict[bytes, list[Call]] = {}
    for call in history:
        parts.setdefault(call.request.id, []).append(call)
    return parts


def check(history: Sequence[Call], most_states: int = 30_000) -> str:
    """Why this history of one key is not linearisable; empty: it is."""
    calls = sorted(history, key=lambda call: call.called)
    must = sum(1 << index for index, call in enumerate(calls) if call.answer is not UNKNOWN)
    seen: set[Any] = set()
    best, stuck = 0, calls[0] if calls else None
    stack: list[tuple[int, _State]] = [(0, _State(None))]
    while stack:
        done, state = stack.pop()
        if done & must == must:
            return ""
        mark = (done, state.key())
        if mark in seen:
            continue
        seen.add(mark)
        if len(seen) > most_states:
            return UNDECIDED
        first_return = math.inf
        candidates = []
        for index, call in enumerate(calls):
            if call.called > first_return:
                break
            if done >> index & 1:
                continue
            candidates.append(index)
            first_return = min(first_return, call.returned)
        # Open operations last: mostly they are not needed.
        candidates.sort(key=lambda index: calls[index].returned, reverse=True)
        reached = (done & must).bit_count()
        if reached >= best and candidates:
            best, stuck = reached, calls[candidates[-1]]
        branches = []
        for index in candidates:
            call = calls[index]
            if call.called > first_return:
                continue
            after = step(state, call.request, call.answer)
            if after is None:
                continue
            if after != state:
                branches.append((done | 1 << index, after))
            elif call.answer is not UNKNOWN:
                # It fits and changes nothing: no other order needs it later, for there it changes
                # nothing either. A fence never comes back, and `closes` says which claim closed the
                # key: without it, one that held the key again is taken for one that found it held.
                branches = [(done | 1 << index, after)]
                break
        stack += branches
    return f"{best} of {must.bit_count()} answers can be explained, then not: {stuck}"


# --- one step of the model -------------------------------------------------------------------


def step(state: _State, request: Any, answer: Any) -> _State | None:
    """The state after this request had this answer; None: it cannot have had it."""
    row = state.row
    if answer is Ack.LOCKED or (isinstance(answer, Claimed) and answer.locked):
        return state  # another transaction held the row for too long: nothing was read or written
    if isinstance(request, Read):
        return state if answer is UNKNOWN or _same_row(state, row, answer) else None
    ask = request
    if isinstance(ask, (Renew, Complete, Fail)):
        ask = replace(ask, fence=_models(state, ask.fence))
    expected, after = getattr(lifecycle, ask.op)(row, ask, NOW)
    following = state if after is None else replace(state, row=after)
    if answer is UNKNOWN:
        return following
    if isinstance(expected, Claimed):
        return _same_claimed(state, following, expected, answer)
    return following if answer is expected else None


def _same_claimed(before: _State, state: _State, expected: Claimed, answer: Any) -> _State | None:
    if not isinstance(answer, Claimed):
        return None
    if _a_moment_ago(before.row, answer):
        return before
    if answer.verdict is not expected.verdict or answer.closes is not expected.closes:
        return None
    if expected.verdict is Verdict.WON:
        same = answer.attempt == expected.attempt and answer.cause == expected.cause
        return _bound(state, expected.fence, answer.fence) if same else None
    if expected.verdict is Verdict.REPLAY:
        same = answer.result == expected.result and answer.state is expected.state
        return _bound(state, expected.fence, answer.fence) if same else None
    return state


def _a_moment_ago(row: Row | None, answer: Claimed) -> bool:
    """A statement that waited for a lock judges by the time at which it began: it may find that a
    lease or a rest of no length has still some milliseconds to go. That errs on the safe side."""
    if row is None or answer.wait > MOMENT:
        return False
    states = {Verdict.BUSY: State.IN_PROGRESS, Verdict.RESTING: State.RELEASED}
    return states.get(answer.verdict) is row.state


def _same_row(state: _State, row: Row | None, answer: Any) -> bool:
    if row is None or answer is None:
        return row is answer
    return (
        (row.state, row.attempt, row.owner, row.result)
        == (answer.state, answer.attempt, answer.owner, answer.result)
    ) and _bound(state, row.fence, answer.fence) is not None


def _models(state: _State, fence: int) -> int:
    """The model's number for a fence of the store; one that was given to no worker fits nothing."""
    return next((ours for ours, theirs in state.fences if theirs == fence), -1)


def _bound(state: _State, ours: int, theirs: int) -> _State | None:
    """Fences keep their order, and one is never two."""
    for known, found in state.fences:
        if (known < ours) != (found < theirs) or (known == ours) != (found == theirs):
            return None
        if known == ours:
            return state
    return replace(state, fences=tuple(sorted((*state.fences, (ours, theirs)))))


def told(thing: Any) -> str:
    """A request or an answer for a reader: what it is, and the fields that decide."""
    if isinstance(thing, Claimed):
        more = " closes" * thing.closes + " locked" * thing.locked
        return f"{thing.verdict.name}{more} fence={thing.fence} attempt={thing.attempt}"
    if isinstance(thing, Row):
        return f"{thing.state} fence={thing.fence} attempt={thing.attempt}"
    if not hasattr(thing, "op"):
        return str(getattr(thing, "name", thing))
    owner = getattr(thing, "owner", b"").hex()[-6:]
    fence = getattr(thing, "fence", "")
    return f"{thing.op} by …{owner} {fence}".rstrip()
