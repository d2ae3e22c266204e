"""Mutants of the claim: who wins it, when, and with which fence, attempt and cause."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from twicesafe._core import lifecycle
from twicesafe._core.protocol import Claimed, ClaimRequest, Verdict
from twicesafe._values.records import Cause, Row, State

from ..simulation.leases.network import Network
from .registry import Patch, mutant

_claim = lifecycle.claim
_fail = lifecycle.fail
_look = lifecycle.look


@mutant("a claim is decided on a row read a moment before it is written")
def check_then_set(patch: Patch) -> None:
    reach = Network._reach

    def look_first(self: Any, process: Any, who: str, asks: Any, *rest: Any) -> None:
        world = self._world
        if not isinstance(asks[0], ClaimRequest):
            reach(self, process, who, asks, *rest)
            return
        seen = {ask.id: world.store._rows.get(ask.id) for ask in asks}
        world.after(0.004, None, decide, self, process, who, asks, seen, rest)

    def decide(self: Any, process: Any, who: str, asks: Any, seen: Any, rest: Any) -> None:
        def claim(row: Row | None, ask: ClaimRequest, now: int, floor: int = 0) -> Any:
            return _claim(seen[ask.id], ask, now, floor)

        lifecycle.claim = claim
        try:
            reach(self, process, who, asks, *rest)
        finally:
            lifecycle.claim = _claim

    patch(Network, "_reach", look_first)


@mutant("leases are judged by the workers' clocks, which differ by 0.9 s")
def worker_clock(patch: Patch) -> None:
    def claim(row: Row | None, ask: ClaimRequest, now: int, floor: int = 0) -> Any:
        return _claim(row, ask, now + (900 if ask.owner[-1] % 2 else 0), floor)

    patch(lifecycle, "claim", claim)


@mutant("a claim repeated by its owner is treated as another owner's")
def claim_not_idempotent(patch: Patch) -> None:
    def look(row: Row, ask: ClaimRequest, now: int) -> Any:
        stranger = replace(ask, owner=b"\0" * 16)
        return _look(row, stranger, now)

    patch(lifecycle, "look", look)


@mutant("a live claim is taken over 0.2 s before its lease ends")
def early_takeover(patch: Patch) -> None:
    def look(row: Row, ask: ClaimRequest, now: int) -> Any:
        working = row.state is State.IN_PROGRESS and row.owner != ask.owner
        return _look(row, ask, now + 200 if working else now)

    patch(lifecycle, "look", look)


@mutant("leases never end: after a crash the key is busy for ever")
def lease_never_ends(patch: Patch) -> None:
    def look(row: Row, ask: ClaimRequest, now: int) -> Any:
        if row.state is State.IN_PROGRESS and row.owner != ask.owner:
            return Claimed(Verdict.BUSY, wait=1000)
        return _look(row, ask, now)

    patch(lifecycle, "look", look)


@mutant("the lease is the row's time to live: when it ends, the row is gone")
def lease_as_ttl(patch: Patch) -> None:
    def claim(row: Row | None, ask: ClaimRequest, now: int, floor: int = 0) -> Any:
        if row is not None and row.state is State.IN_PROGRESS and row.lease_until <= now:
            return _claim(None, ask, now, max(floor, row.fence))
        return _claim(row, ask, now, floor)

    patch(lifecycle, "claim", claim)


@mutant("the rest after a failure is ignored")
def no_rest(patch: Patch) -> None:
    def look(row: Row, ask: ClaimRequest, now: int) -> Any:
        if row.state is State.RELEASED and row.lease_until > now:
            row = replace(row, lease_until=now)
        return _look(row, ask, now)

    patch(lifecycle, "look", look)


@mutant("a takeover keeps the fence of the claim that it replaces")
def takeover_keeps_fence(patch: Patch) -> None:
    def claim(row: Row | None, ask: ClaimRequest, now: int, floor: int = 0) -> Any:
        answer, new = _claim(row, ask, now, floor)
        if answer.cause is Cause.LEASE_EXPIRED and row is not None and new is not None:
            answer, new = replace(answer, fence=row.fence), replace(new, fence=row.fence)
        return answer, new

    patch(lifecycle, "claim", claim)


@mutant("attempts are counted when they end, so a handler that kills its process is never counted")
def attempts_counted_at_the_end(patch: Patch) -> None:
    def claim(row: Row | None, ask: ClaimRequest, now: int, floor: int = 0) -> Any:
        answer, new = _claim(row, ask, now, floor)
        if answer.cause is Cause.LEASE_EXPIRED and row is not None and new is not None:
            answer = replace(answer, attempt=row.attempt)
            new = replace(new, attempt=row.attempt)
        return answer, new

    patch(lifecycle, "claim", claim)


@mutant("max_attempts is ignored")
def never_parked(patch: Patch) -> None:
    def claim(row: Row | None, ask: ClaimRequest, now: int, floor: int = 0) -> Any:
        return _claim(row, replace(ask, max_attempts=1000), now, floor)

    patch(lifecycle, "claim", claim)


@mutant("the cause of a takeover is not recorded")
def takeover_without_cause(patch: Patch) -> None:
    def claim(row: Row | None, ask: ClaimRequest, now: int, floor: int = 0) -> Any:
        answer, new = _claim(row, ask, now, floor)
        if answer.cause is Cause.LEASE_EXPIRED and new is not None:
            answer, new = replace(answer, cause=None), replace(new, cause=None)
        return answer, new

    patch(lifecycle, "claim", claim)


@mutant("a crash under takeover='hold' lets the key start again")
def hold_ignored(patch: Patch) -> None:
    def claim(row: Row | None, ask: ClaimRequest, now: int, floor: int = 0) -> Any:
        return _claim(None if row is None else replace(row, hold=False), ask, now, floor)

    patch(lifecycle, "claim", claim)


@mutant("an attempt abandoned under hold releases the key")
def hold_released(patch: Patch) -> None:
    def fail(row: Row | None, ask: Any, now: int) -> Any:
        return _fail(row, replace(ask, hold=False), now)

    patch(lifecycle, "fail", fail)
