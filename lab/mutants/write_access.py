"""Mutants of who may write: owners and fences compared too little, or too much."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from twicesafe._core import lifecycle
from twicesafe._core.protocol import Ack, ClaimRequest, Complete, Renew
from twicesafe._values.records import Row, State

from .registry import Patch, mutant

_complete = lifecycle.complete
_fail = lifecycle.fail
_renew = lifecycle.renew
_abandon = lifecycle.abandon


def _believed(decision: Any, *, owner: bool = False, fence: bool = False) -> Any:
    """A decision that takes the row's own owner, or fence, for that of the request."""

    def decide(row: Row | None, ask: Any, now: int) -> Any:
        if row is not None:
            changes: dict[str, Any] = {}
            if owner:
                changes["owner"] = row.owner
            if fence:
                changes["fence"] = row.fence
            ask = replace(ask, **changes)
        return decision(row, ask, now)

    return decide


@mutant("complete compares neither owner nor fence")
def complete_unchecked(patch: Patch) -> None:
    patch(lifecycle, "complete", _believed(_complete, owner=True, fence=True))


@mutant("renew compares neither owner nor fence")
def renew_unchecked(patch: Patch) -> None:
    patch(lifecycle, "renew", _believed(_renew, owner=True, fence=True))


@mutant("fail compares neither owner nor fence: a late owner releases the winner's claim")
def fail_unchecked(patch: Patch) -> None:
    patch(lifecycle, "fail", _believed(_fail, owner=True, fence=True))


@mutant("abandon does not compare the owner")
def abandon_unchecked(patch: Patch) -> None:
    patch(lifecycle, "abandon", _believed(_abandon, owner=True))


@mutant("complete, renew and fail compare the owner alone")
def owner_only(patch: Patch) -> None:
    for name, decision in (("complete", _complete), ("renew", _renew), ("fail", _fail)):
        patch(lifecycle, name, _believed(decision, fence=True))


@mutant(
    "complete, renew and fail compare the fence alone, and fences restart after retention",
    aside=(
        "fences grow",
        "only winners start",
        "fenced effects",
        "only unstarted claims are abandoned",
    ),
)
def fence_only(patch: Patch) -> None:
    for name, decision in (("complete", _complete), ("renew", _renew), ("fail", _fail)):
        patch(lifecycle, name, _believed(decision, owner=True))
    fence_restarts_after_sweep(patch)
    fence_restarts_after_expiry(patch)


@mutant("renew is granted to an owner whose claim has ended")
def renew_revives(patch: Patch) -> None:
    def renew(row: Row | None, ask: Renew, now: int) -> Any:
        if row is not None and row.owner == ask.owner and row.fence == ask.fence:
            return Ack.OK, replace(row, state=State.IN_PROGRESS, lease_until=now + ask.lease)
        return _renew(row, ask, now)

    patch(lifecycle, "renew", renew)


@mutant("complete is refused once the lease is over, although no other worker took over")
def late_complete_refused(patch: Patch) -> None:
    def complete(row: Row | None, ask: Complete, now: int) -> Any:
        if row is not None and row.state is State.IN_PROGRESS and row.lease_until <= now:
            return Ack.LOST, None
        return _complete(row, ask, now)

    patch(lifecycle, "complete", complete)


@mutant("complete creates a missing row")
def complete_creates(patch: Patch) -> None:
    def complete(row: Row | None, ask: Complete, now: int) -> Any:
        if row is not None:
            return _complete(row, ask, now)
        ends = now + ask.retention
        made = Row(ask.id, (), "", ask.state, ask.fence, 1, ask.owner, 0, now, now, ends)
        return Ack.OK, replace(made, result=ask.result)

    patch(lifecycle, "complete", complete)


@mutant("a second complete replaces the recorded result")
def result_replaced(patch: Patch) -> None:
    def complete(row: Row | None, ask: Complete, now: int) -> Any:
        if row is not None and row.state in (State.COMPLETED, State.FAILED):
            return Ack.OK, replace(row, result=ask.result, owner=ask.owner, fence=ask.fence)
        return _complete(row, ask, now)

    patch(lifecycle, "complete", complete)


@mutant("a swept key restarts at fence 1")
def fence_restarts_after_sweep(patch: Patch) -> None:
    claim = lifecycle.claim

    def restart(row: Row | None, ask: ClaimRequest, now: int, floor: int = 0) -> Any:
        return claim(row, ask, now, 0)

    patch(lifecycle, "claim", restart)


@mutant("a key past its retention restarts at fence 1")
def fence_restarts_after_expiry(patch: Patch) -> None:
    claim = lifecycle.claim

    def restart(row: Row | None, ask: ClaimRequest, now: int, floor: int = 0) -> Any:
        answer, new = claim(row, ask, now, floor)
        if row is not None and new is not None and lifecycle.is_expired(row, now):
            answer, new = replace(answer, fence=1), replace(new, fence=1)
        return answer, new

    patch(lifecycle, "claim", restart)
