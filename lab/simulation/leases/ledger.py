"""The ledger: handler starts, effects and answers, as the outside world sees them.

Effects are only ever added. A *fenced resource* remembers the largest fence per key and refuses
smaller ones: it must never refuse the claim that is live, and no two starts may share a fence.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from twicesafe._core.call import Call
from twicesafe._core.commands import Raised
from twicesafe._core.protocol import Complete
from twicesafe._core.resolved_policy import ResolvedPolicy
from twicesafe._values.context import ActiveClaim
from twicesafe._values.outcomes import Outcome
from twicesafe._values.records import State

from .invariants import broken
from .monitor import Monitor
from .plan import Behaviour, Plan
from .policies import MAX_LEASE

if TYPE_CHECKING:
    from .process import Process

__all__ = ["Ledger"]


def _renewals_get_through(plan: Plan) -> bool:
    """At most one of them fails, no process stands still and the clock is not set."""
    faults = [fault.kind for fault in plan.renewals]
    return (
        len(faults) <= 1
        and set(faults) <= {"request lost", "refused", "reply lost"}
        and not any(incident.kind in ("pause", "jump", "outage") for incident in plan.incidents)
    )


_TIMELY: Final = 0.5
"""Seconds of a handler that leave enough of `max_lease` for all tries to record."""

_UNKEPT: Final = ("unstorable", "large", "refused", "stuck", "remember refused", "remember stuck")
"""Ends of handlers whose results cannot be kept, for a reason."""


def _is_calm(plan: Plan) -> bool:
    """Nothing goes wrong but what handlers do."""
    return not (
        plan.renewals
        or plan.incidents
        or any(one.faults or one.cancelled for one in plan.deliveries)
    )


class Ledger:
    def __init__(self, monitor: Monitor, seen: Counter[Any]) -> None:
        self._monitor = monitor
        self._seen = seen
        self.started: dict[tuple[bytes, int], bytes] = {}
        self.effects: list[tuple[bytes, int, int]] = []
        """(key, fence, attempt), in the order in which they happened."""
        self.spans: list[tuple[bytes, float, float]] = []
        """(key, from, to) of every handler that ended or was planned to."""
        self.running: dict[tuple[bytes, int], tuple[Process, ActiveClaim]] = {}
        """(key, fence) → where and under which claim its handler runs."""
        self._fences: dict[bytes, int] = {}
        self._late: set[tuple[bytes, int]] = set()
        """(key, fence) of handlers that started when a renewal was due already."""
        self._ends: dict[tuple[bytes, int], tuple[Process, Behaviour]] = {}
        """(key, fence) → where and how its handler ended."""

    def start(self, claim: ActiveClaim, policy: ResolvedPolicy, worker_now: float) -> None:
        past = self._monitor.past(claim.key.id)
        if past.granted.get(claim.fence) != claim.owner:
            broken("only winners start", f"fence {claim.fence} was never granted to this owner")
        if (claim.key.id, claim.fence) in self.started:
            broken("only winners start", f"two starts under fence {claim.fence}")
        if claim.owner in past.abandoned:
            broken(
                "only unstarted claims are abandoned", "started under a claim that was given back"
            )
        if worker_now - claim.renewed >= policy.lease:
            broken("late answers start nothing", f"{worker_now - claim.renewed:.2f} s after asking")
        self.started[claim.key.id, claim.fence] = claim.owner
        if worker_now - claim.renewed >= policy.lease / 3:
            self._late.add((claim.key.id, claim.fence))
        self._seen["handler", "started"] += 1
        if past.fence == claim.fence and past.hold:
            past.starts += 1
            if past.starts > 1:
                broken("hold means once", f"{past.starts} starts and no operator's word")

    def start_unprotected(self, policy: ResolvedPolicy) -> None:
        if not policy.outage_runs:
            broken("fail closed", "a handler started without a claim")
        self._seen["handler", "unprotected"] += 1

    def ended(self, process: Process, claim: ActiveClaim, how: Behaviour) -> None:
        self._ends[claim.key.id, claim.fence] = process, how

    def recorded(self, ask: Complete) -> None:
        """An end is in the store. Without its result, there must be a reason."""
        _, how = self._ends.get((ask.id, ask.fence), (None, None))
        if ask.result is not None or how is None:
            return
        self._seen["result", f"not kept: {how.end}"] += 1
        if how.end not in _UNKEPT:
            broken("results are kept", f"a handler's {how.end} was recorded without it")

    def taken_over(self, id: bytes, fence: int, plan: Plan) -> None:  # noqa: A002
        """A lease ran out. In a calm plan the only excuse is that no process was there to renew it."""
        where, how = self._ends.get((id, fence), (None, Behaviour()))
        unkept = where is not None and where.alive and how.end in _UNKEPT
        if unkept and how.seconds < _TIMELY and _is_calm(plan):
            broken("refused is done", f"its {how.end} was not recorded, and it runs again")
        process, claim = self.running.get((id, fence), (None, None))
        if process is None or claim is None or not process.alive:
            return
        held = process.clock() - claim.started
        if (id, fence) in self._late and plan.renewals:
            return  # the answer to its claim took what one failed renewal costs
        if held < MAX_LEASE - 0.1 and _renewals_get_through(plan):
            broken("leases are kept", f"taken over {held:.2f} s after its claim, in mid-work")

    def abandon(self, id: bytes, owner: bytes) -> None:  # noqa: A002
        """This owner was given back (and the store agreed): nothing may have started under it."""
        past = self._monitor.past(id)
        fences = [fence for fence, whose in past.granted.items() if whose == owner]
        if any((id, fence) in self.started for fence in fences):
            broken("only unstarted claims are abandoned", "its handler had started")

    def effect(self, claim: ActiveClaim, store_now: int) -> None:
        key = claim.key.id
        past = self._monitor.past(key)
        if claim.fence >= self._fences.get(key, 0):
            self._fences[key] = claim.fence
            self._seen["effect", "applied"] += 1
        else:
            self._seen["effect", "refused by its fence"] += 1
            live = past.state is State.IN_PROGRESS and past.lease > store_now
            if live and past.fence == claim.fence:
                broken("fenced effects", f"the live claim's fence {claim.fence} was refused")
        if any(one[0] == key and one[1] != claim.fence for one in self.effects):
            self._seen["effect", "repeated, with its cause"] += 1
            if claim.cause is None and past.life == 1 and self._earlier_effect(claim):
                broken("every start has a cause", "an effect was repeated without one")
        self.effects.append((key, claim.fence, claim.attempt))

    def _earlier_effect(self, claim: ActiveClaim) -> bool:
        return any(key == claim.key.id and fence < claim.fence for key, fence, _ in self.effects)

    def answered(self, call: Call, answer: Any) -> None:
        """A caller has its answer: was it recorded, and is it its own?"""
        if isinstance(answer, Raised):
            self._seen["answer", type(answer.error).__name__] += 1
            return
        assert isinstance(answer, Outcome)
        if answer.attempt == 0:
            self._seen["answer", "unprotected"] += 1
            return
        self._seen["answer", "replayed" if answer.replayed else "ran"] += 1
        past = self._monitor.past(call.key.id)
        recorded = past.recorded
        payload = call.policy.codec.encode(answer.value, None)
        if payload not in recorded:
            broken("answers are recorded", f"{answer.value!r} never was")
        if not answer.replayed and recorded[payload] != answer.fence:
            broken("answers are recorded", f"{answer.value!r} was, by another fence")
        prints = {past.prints.get(answer.fence), call.fingerprint} - {None}
        if len(prints) > 1:
            broken("mismatch first", f"{answer.value!r} is the answer to another request")
