"""Mutants of what is kept: fingerprints, retention, sweeps, and an operator's word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from twicesafe._core import lifecycle
from twicesafe._core.protocol import ClaimRequest, Complete, Verdict
from twicesafe._values.records import Row, State, SweepReport
from twicesafe.stores.memory import MemoryStore

from .registry import Patch, mutant

_claim = lifecycle.claim
_complete = lifecycle.complete
_look = lifecycle.look


@mutant("the fingerprint is compared after the busy check")
def mismatch_after_busy(patch: Patch) -> None:
    def look(row: Row, ask: ClaimRequest, now: int) -> Any:
        answer = _look(row, replace(ask, fingerprint=None), now)
        if answer is not None and answer.verdict is Verdict.BUSY:
            return answer
        return _look(row, ask, now)

    patch(lifecycle, "look", look)


@mutant("fingerprints are not compared")
def mismatch_ignored(patch: Patch) -> None:
    def look(row: Row, ask: ClaimRequest, now: int) -> Any:
        return _look(row, replace(ask, fingerprint=None), now)

    patch(lifecycle, "look", look)


@mutant("expiry is left to the sweep: reads do not compare it")
def no_expiry_on_read(patch: Patch) -> None:
    expired = lifecycle.is_expired
    sweep = MemoryStore.sweep

    def sweep_only(self: Any, ask: Any) -> Any:
        lifecycle.is_expired = expired
        try:
            return sweep(self, ask)
        finally:
            lifecycle.is_expired = never

    def never(row: Row, now: int) -> bool:
        return False

    patch(lifecycle, "is_expired", never)
    patch(MemoryStore, "sweep", sweep_only)


def _sweep_also(extra: Callable[[Row, int], bool]) -> Any:
    sweep = MemoryStore.sweep

    def swept(self: Any, ask: Any) -> tuple[SweepReport, str]:
        now = self._now()
        for row in [row for row in self._rows.values() if extra(row, now)]:
            self._floor = max(self._floor, row.fence)
            del self._rows[row.id]
        return sweep(self, ask)

    return swept


@mutant("the sweep removes work in progress whose lease is over")
def sweep_of_work_in_progress(patch: Patch) -> None:
    def over(row: Row, now: int) -> bool:
        return row.state is State.IN_PROGRESS and row.lease_until <= now

    patch(MemoryStore, "sweep", _sweep_also(over))


@mutant("the sweep removes held and parked records after a while")
def sweep_of_held_work(patch: Patch) -> None:
    def over(row: Row, now: int) -> bool:
        return row.state in (State.HELD, State.PARKED) and row.changed_at + 200 <= now

    patch(MemoryStore, "sweep", _sweep_also(over))


@mutant("retention is counted from the first claim, not from completion")
def retention_from_the_claim(patch: Patch) -> None:
    def complete(row: Row | None, ask: Complete, now: int) -> Any:
        ack, new = _complete(row, ask, now)
        return ack, new and replace(new, expires_at=new.created_at + ask.retention)

    patch(lifecycle, "complete", complete)


def _keeps_owner(decision: Any) -> Any:
    def operate(row: Row | None, ask: Any, now: int) -> Any:
        ack, new = decision(row, ask, now)
        if row is not None and new is not None:
            new = replace(new, owner=row.owner, fence=row.fence)
        return ack, new

    return operate


@mutant("an operator's release keeps the owner's fence")
def release_without_fence(patch: Patch) -> None:
    patch(lifecycle, "release", _keeps_owner(lifecycle.release))


@mutant(
    "an operator's answer keeps the owner's fence: the late owner gets OK",
    aside=("fences grow",),
)
def resolve_without_fence(patch: Patch) -> None:
    patch(lifecycle, "resolve", _keeps_owner(lifecycle.resolve))


@mutant("a forgotten key runs again")
def forgotten_runs_again(patch: Patch) -> None:
    def claim(row: Row | None, ask: ClaimRequest, now: int, floor: int = 0) -> Any:
        if row is not None and row.state is State.FORGOTTEN:
            return _claim(None, ask, now, row.fence)
        return _claim(row, ask, now, floor)

    patch(lifecycle, "claim", claim)
