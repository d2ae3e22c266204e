"""Mutants of the worker: what it does with an answer, or without one; and of its lease keeper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from twicesafe._core import outcome_recording
from twicesafe._core.commands import EndFlight, Invoke, Sleep
from twicesafe._core.delivery import deliver
from twicesafe._core.protocol import Abandon, Ack, Claimed, ClaimRequest, Complete, Fail, Verdict
from twicesafe._runtime.lease_keeper import LeaseKeeper
from twicesafe._runtime.single_flight import SingleFlight
from twicesafe._values.context import ActiveClaim
from twicesafe._values.keys import new_owner
from twicesafe.errors import StoreUnavailableError

from ..simulation.leases import process as processes
from ..simulation.leases.fast_delivery import fast_delivery
from ..simulation.leases.policies import POLICIES
from .registry import Patch, mutant, tampered


@mutant("a claim answer that is older than its lease starts the handler")
def late_answer_runs(patch: Patch) -> None:
    for policy in POLICIES:
        patch(policy, "usable", float("inf"))


def _tamper(patch: Patch, handle: Callable[[Any, Any], Any]) -> None:
    """With the flow and with the fast path."""
    for way in (deliver, fast_delivery):
        patch(processes, way.__name__, tampered(way, handle, StoreUnavailableError))


def _if_unanswered(patch: Patch, kind: type, then: Callable[[Any, Any], Any]) -> None:
    """The worker does this after a request of that kind that got no answer."""

    def handle(call: Any, command: Any) -> Any:
        try:
            return (yield command)
        except StoreUnavailableError:
            if type(command) is not kind:
                raise
        return (yield from then(call, command))

    _tamper(patch, handle)


@mutant("an unanswered claim is repeated with a new owner")
def new_owner_on_retry(patch: Patch) -> None:
    def then(call: Any, command: Any) -> Any:
        yield Sleep(0.02)
        return (yield replace(command, owner=new_owner()))

    _if_unanswered(patch, ClaimRequest, then)


@mutant("an unanswered claim counts as won")
def unanswered_is_won(patch: Patch) -> None:
    def then(call: Any, command: Any) -> Any:
        yield from ()
        return Claimed(Verdict.WON, 1, 1)

    _if_unanswered(patch, ClaimRequest, then)


@mutant("an unanswered complete runs the handler again")
def unknown_outcome_reruns(patch: Patch) -> None:
    def then(call: Any, command: Any) -> Any:
        now, policy = call.clock(), call.policy
        claim = (call.key, command.owner, command.fence, 1, None, now, policy.lease)
        again = ActiveClaim(*claim, policy.max_lease, call.clock, now, now + policy.usable)
        yield Invoke(again, call.run)
        return (yield command)

    _if_unanswered(patch, Complete, then)


@mutant("waiting callers get the handler's value before it is recorded")
def unrecorded_landing(patch: Patch) -> None:
    def handle(call: Any, command: Any) -> Any:
        if type(command) is Complete:
            answer = Claimed(Verdict.REPLAY, command.fence, 1, state=command.state)
            yield EndFlight(replace(answer, result=command.result, expires_in=command.retention))
        return (yield command)

    _tamper(patch, handle)


@mutant("a refused complete is reported as success")
def lost_is_success(patch: Patch) -> None:
    def handle(call: Any, command: Any) -> Any:
        answer = yield command
        return Ack.OK if type(command) is Complete else answer

    _tamper(patch, handle)


@mutant("an outage at the claim runs the handler unprotected by default")
def fail_open(patch: Patch) -> None:
    def handle(call: Any, command: Any) -> Any:
        try:
            return (yield command)
        except StoreUnavailableError:
            if type(command) is ClaimRequest:
                yield Invoke(None, call.run)
            raise

    _tamper(patch, handle)


@mutant("the claim of a failed handler is abandoned as if it had never started")
def abandon_after_start(patch: Patch) -> None:
    def handle(call: Any, command: Any) -> Any:
        if type(command) is Fail:
            command = Abandon(command.id, command.owner, command.retention)
        return (yield command)

    _tamper(patch, handle)


@mutant("the keeper renews past max_lease: a hung handler keeps its key")
def renews_for_ever(patch: Patch) -> None:
    renew_due = LeaseKeeper._renew_due

    def renew_all(self: Any) -> None:
        for claim in self._live:
            claim.max_lease = float("inf")
        renew_due(self)

    patch(LeaseKeeper, "_renew_due", renew_all)


@mutant(
    "a single flight without an answer stays in the table: its process never runs the key again"
)
def flight_never_lands(patch: Patch) -> None:
    land = SingleFlight.end

    def only_answers(self: Any, flight: Any, answer: Any) -> None:
        if answer is not None:
            land(self, flight, answer)

    patch(SingleFlight, "end", only_answers)


@mutant("the keeper gives up a claim after one failed renewal")
def one_failed_renewal(patch: Patch) -> None:
    postpone = LeaseKeeper._postpone

    def give_up(self: Any, claim: Any, at: float) -> None:
        if at - self._clock() < claim.lease / 5:
            claim.gone = True
            self._live.pop(claim, None)
            return
        postpone(self, claim, at)

    patch(LeaseKeeper, "_postpone", give_up)


@mutant("a refused result is sent again and again, as after a lost connection")
def refusal_is_an_outage(patch: Patch) -> None:
    def never(self: Any, *when: float) -> bool:
        return False

    def waits(self: Any, then: float) -> bool:
        return isinstance(self.reply, Exception) and then < self.claim.expires

    patch(outcome_recording.OutcomeRecording, "_should_drop_payload", never)
    patch(outcome_recording.OutcomeRecording, "_can_retry", waits)


@mutant("a refused result is an error, and its claim stays until its lease is over")
def refusal_is_left_to_the_lease(patch: Patch) -> None:
    judge = outcome_recording.OutcomeRecording._should_drop_payload

    def outages_only(self: Any, *when: float) -> bool:
        return isinstance(self.reply, StoreUnavailableError) and judge(self, *when)

    patch(outcome_recording.OutcomeRecording, "_should_drop_payload", outages_only)


@mutant("a result that never reaches the store is retried until its lease is over")
def stuck_for_ever(patch: Patch) -> None:
    judge = outcome_recording.OutcomeRecording._should_drop_payload

    def refusals_only(self: Any, *when: float) -> bool:
        return not isinstance(self.reply, StoreUnavailableError) and judge(self, *when)

    patch(outcome_recording.OutcomeRecording, "_should_drop_payload", refusals_only)


@mutant("after some tries a result is dropped, although the store is unreachable for every request")
def outage_drops_results(patch: Patch) -> None:
    def all_of_them(recordings: Any) -> Any:
        yield from ()
        return recordings

    patch(outcome_recording, "_reached", all_of_them)
    # No outage of the lab lasts that long within a lease.
    patch(outcome_recording, "RETRY_AT_LEAST", 0.0)


@mutant("the first unanswered try drops the result")
def one_cut_drops_the_result(patch: Patch) -> None:
    patch(outcome_recording, "FAILURES_ALONE", 0)
    patch(outcome_recording, "RETRY_AT_LEAST", 0.0)


@mutant("a result that fails in a batch is dropped, although another result of the batch caused it")
def company_is_to_blame(patch: Patch) -> None:
    send = outcome_recording._send

    def counted(recordings: Any) -> Any:
        yield from send(recordings)
        for one in recordings:
            one.alone += 3 * (len(recordings) > 1)

    patch(outcome_recording, "_send", counted)
    patch(outcome_recording, "RETRY_AT_LEAST", 0.0)
