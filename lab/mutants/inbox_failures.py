"""Mutants of deferred writes: failures that are recorded although the caller's transaction is rolled back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import iscoroutine
from typing import Any

from msgspec.structs import replace

from twicesafe._core import inbox_requests as core
from twicesafe._core import lifecycle
from twicesafe._core.protocol import ClaimRequest, Fail
from twicesafe._runtime.deferred_writes import DeferredWrites
from twicesafe._runtime.transaction import AsyncTransactionRun, TransactionRun
from twicesafe._values.records import Row, State

from .registry import Patch
from .registry import mutant as any_mutant

mutant = partial(any_mutant, study="transactions")

_claim = lifecycle.claim
_look = lifecycle.look
_note = core.apply_deferred


@mutant("a failure is recorded in the transaction that is rolled back")
def note_rolled_back(patch: Patch) -> None:
    patch(DeferredWrites, "add", lambda self, note: None)


@mutant("a process ignores a failure that it knows but has not stored yet")
def unwritten_not_heeded(patch: Patch) -> None:
    patch(DeferredWrites, "unwritten", lambda self, id_: [])


@mutant("a process uses its own list of failures before it asks the store")
def unwritten_before_the_store(patch: Patch) -> None:
    def looking(perform: Any) -> Any:
        def look_first(self: Any, command: Any) -> Any:
            if type(command) is not core.Enter:
                return perform(self, command)
            known = self._deferred.unwritten(command.id)
            answer = perform(self, command)
            return later(answer, known) if iscoroutine(answer) else told(answer, known)

        return look_first

    async def later(answer: Any, known: Any) -> Any:
        return told(await answer, known)

    def told(entered: Any, known: Any) -> Any:
        entered.unwritten = known
        return entered

    for run in (TransactionRun, AsyncTransactionRun):
        patch(run, "perform", looking(run.perform))


@mutant("a failure whose COMMIT lost its answer is counted twice")
def note_counted_again(patch: Patch) -> None:
    def note(row: Row | None, ask: Any, now: int, floor: int) -> Row | None:
        if row is not None and row.owner == ask.claim.owner:
            row = replace(row, owner=b"")
        return _note(row, ask, now, floor)

    patch(core, "apply_deferred", note)


@mutant("recording a failure overwrites any record, even a done one")
def note_overwrites(patch: Patch) -> None:
    def note(row: Row | None, ask: Any, now: int, floor: int) -> Row | None:
        return _note(None, ask, now, floor if row is None else row.fence)

    patch(core, "apply_deferred", note)


def _changing(change: Callable[[Row], Row]) -> Any:
    def note(row: Row | None, ask: Any, now: int, floor: int) -> Row | None:
        after = _note(row, ask, now, floor)
        counts = after is not None and isinstance(ask.end, Fail) and after.state is State.RELEASED
        return change(after) if counts and after is not None else after

    return note


@mutant("a failed attempt leaves a record that says done")
def note_says_done(patch: Patch) -> None:
    patch(core, "apply_deferred", _changing(lambda row: replace(row, state=State.COMPLETED)))


@mutant("a failed attempt is stored, but not counted")
def note_without_count(patch: Patch) -> None:
    patch(core, "apply_deferred", _changing(lambda row: replace(row, attempt=row.attempt - 1)))


@mutant("a failed attempt is counted, but its cause is not stored")
def note_without_cause(patch: Patch) -> None:
    patch(core, "apply_deferred", _changing(lambda row: replace(row, cause=None)))


@mutant("after the clock was set back, a failed key rests until the old time is reached")
def note_makes_it_rest(patch: Patch) -> None:
    patch(core, "apply_deferred", _changing(lambda row: replace(row, lease_until=row.changed_at)))


@mutant("a failure that is the recorded answer runs again")
def remembered_runs_again(patch: Patch) -> None:
    def look(row: Row, ask: ClaimRequest, now: int) -> Any:
        if row.state is State.FAILED:
            row = replace(row, state=State.RELEASED)
        return _look(row, ask, now)

    def claim(row: Row | None, ask: ClaimRequest, now: int, floor: int = 0) -> Any:
        if row is not None and row.state is State.FAILED:
            row = replace(row, state=State.RELEASED)
        return _claim(row, ask, now, floor)

    patch(lifecycle, "look", look)
    patch(lifecycle, "claim", claim)
