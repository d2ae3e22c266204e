"""Mutants of regions: who starts what, what is in doubt, what is copied, how epochs change."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from msgspec.structs import replace

from twicesafe._core import lifecycle
from twicesafe._core.protocol import Ack, Adopt, RaiseFences
from twicesafe._core.regions import claiming, epochs, failover, following, pausing, settling
from twicesafe._core.regions.epochs import Epoch
from twicesafe._core.regions.following import Copied
from twicesafe._values.records import State

from .registry import Patch, mutant

STUDY = "regions"


# --- copies --------------------------------------------------------------------------------------


@mutant("a copy replaces whatever is there", STUDY)
def copies_overwrite(patch: Patch) -> None:
    patch(lifecycle, "adopt", lambda row, ask, now: (Ack.OK, ask.row))


@mutant("a copy of a lower fence replaces a record", STUDY)
def copies_compare_states_only(patch: Patch) -> None:
    adopt = lifecycle.adopt

    def by_state(row: Any, ask: Any, now: int) -> Any:
        level = row if row is None else replace(row, fence=ask.row.fence)
        return adopt(level, ask, now) if ask.over is None else adopt(row, ask, now)

    patch(lifecycle, "adopt", by_state)


@mutant("a record without an answer is copied over an answer", STUDY)
def doubts_are_copied_over_answers(patch: Patch) -> None:
    adopt = lifecycle.adopt

    def anyhow(row: Any, ask: Any, now: int) -> Any:
        weaker = row is not None and row.state in (State.COMPLETED, State.FAILED)
        return adopt(replace(row, state=State.PARKED) if weaker else row, ask, now)

    patch(lifecycle, "adopt", anyhow)


@mutant("a region in doubt is copied", STUDY)
def doubt_does_not_pause_followers(patch: Patch) -> None:
    patch(following, "in_doubt", lambda known: ())


# --- who may start -------------------------------------------------------------------------------


@mutant("a region asks the register once, and never again", STUDY)
def the_register_is_asked_once(patch: Patch) -> None:
    patch(
        claiming.Region,
        "learn",
        lambda self, home, epoch, sent: self._known.update({home: (epoch, 1e9)}),
    )


@mutant("what the register said is counted from its answer, not from the question", STUDY)
def the_lease_starts_at_the_answer(patch: Patch) -> None:
    learn = claiming.Region.learn
    patch(
        claiming.Region,
        "learn",
        lambda self, home, epoch, sent: learn(self, home, epoch, self.clock() + self.lease),
    )


@mutant("a claim that is won is not compared with the register again", STUDY)
def no_second_look(patch: Patch) -> None:
    claim, confirmed = claiming.claim, claiming._confirmed

    def once(region: Any, ask: Any) -> Any:
        seen: list[Epoch] = []

        def first(region: Any, key: Any) -> Any:
            if not seen:
                seen.append((yield from confirmed(region, key)))
            return seen[0]

        blind = FunctionType(claim.__code__, {**vars(claiming), "_confirmed": first})
        return (yield from blind(region, ask))

    patch(claiming, "claim", once)


@mutant("a closed epoch is taken for an open one", STUDY)
def closed_epochs_are_open(patch: Patch) -> None:
    look = epochs.look

    def as_open(key: Any) -> Any:
        found = yield from look(key)
        return found and (replace(found[0], closed=False), found[1])

    patch(claiming, "look", as_open)


# --- what is in doubt ----------------------------------------------------------------------------


@mutant("an unknown key is new", STUDY)
def unknown_keys_are_new(patch: Patch) -> None:
    in_doubt = claiming._in_doubt
    patch(
        claiming,
        "_in_doubt",
        lambda epoch, key, row: row is not None and in_doubt(epoch, key, row),
    )


@mutant("a copied record in progress is taken over as usual", STUDY)
def unfinished_copies_are_taken_over(patch: Patch) -> None:
    in_doubt = claiming._in_doubt

    def trusting(epoch: Epoch, key: Any, row: Any) -> bool:
        return in_doubt(epoch, key, row) and not (
            row is not None and row.state is State.IN_PROGRESS
        )

    patch(claiming, "_in_doubt", trusting)


@mutant("a claim without a decision is taken for decided", STUDY, first=2_000)
def undecided_claims_are_decided(patch: Patch) -> None:
    in_doubt = claiming._in_doubt

    def trusting(epoch: Epoch, key: Any, row: Any) -> bool:
        return in_doubt(epoch, key, row) and not (row is not None and row.fence > epoch.base)

    patch(claiming, "_in_doubt", trusting)


@mutant("a claim that took over is given back as if no work had begun", STUDY)
def takeovers_are_given_back(patch: Patch) -> None:
    patch(claiming, "_took_over", lambda answer: False)


@mutant("a key that ran in doubt in an older epoch is not counted when it runs again", STUDY)
def older_doubts_are_forgotten(patch: Patch) -> None:
    in_doubt = claiming._in_doubt
    asked: list[Epoch] = []

    def noted(epoch: Epoch, key: Any, row: Any) -> bool:
        asked[:] = [epoch]
        return in_doubt(epoch, key, row)

    patch(claiming, "_in_doubt", noted)
    patch(claiming, "_was_in_doubt", lambda row: claiming.is_decided(asked[0], row))


@mutant("a key whose record could not be read is new", STUDY)
def unreadable_records_are_forgotten(patch: Patch) -> None:
    patch(failover, "_uncopied", lambda epoch, found: ())


@mutant("the cut is when the epoch was closed, without the lease of the old region", STUDY)
def the_cut_is_too_early(patch: Patch) -> None:
    fail_over = failover.fail_over
    patch(
        failover, "fail_over", lambda move, lag: fail_over(move._replace(lease=-300, skew=0), lag)
    )


@mutant("work that runs in doubt is not marked", STUDY)
def doubts_are_not_marked(patch: Patch) -> None:
    patch(claiming, "finishing", lambda region, ask: ask)


# --- failover ------------------------------------------------------------------------------------


@mutant("a switch copies from the region that served when it was asked for", STUDY)
def a_switch_copies_from_the_wrong_region(patch: Patch) -> None:
    patch(failover, "_refuse_moved", lambda move, source: None)


@mutant("a switch does not wait until the old region has stopped", STUDY)
def a_switch_does_not_wait(patch: Patch) -> None:
    def at_once(move: Any, cut: int) -> Any:
        yield from ()

    patch(failover, "_until", at_once)


@mutant("a follower copies late claims over what the new region has begun", STUDY)
def late_claims_are_copied(patch: Patch) -> None:
    patch(following, "late_bounds", lambda source, target: [])


@mutant("a follower copies late claims that were given back", STUDY, first=6_000)
def late_claims_that_were_given_back_are_copied(patch: Patch) -> None:
    patch(pausing, "CLOSED", (*pausing.CLOSED, State.RELEASED))


@mutant("a store does not say that a home is being moved to it", STUDY)
def moves_are_not_announced(patch: Patch) -> None:
    def silent(*_: Any) -> Any:
        yield from ()

    patch(failover, "announce", silent)


@mutant("a store says that the base of its epoch is above all fences", STUDY)
def the_base_is_too_high(patch: Patch) -> None:
    serve = pausing.serve
    patch(
        failover,
        "serve",
        lambda place, home, epoch, now: serve(place, home, replace(epoch, base=1 << 60), now),
    )


@mutant("an epoch is opened without raising the fences of its store", STUDY)
def fences_are_not_raised(patch: Patch) -> None:
    opened = failover._opened

    def forgetful(*args: Any, **more: Any) -> Any:
        flow, reply = opened(*args, **more), None
        while True:
            try:
                command = flow.send(reply)
            except StopIteration as end:
                return end.value
            reply = (
                Ack.OK
                if type(getattr(command, "request", None)) is RaiseFences
                else (yield command)
            )

    patch(failover, "_opened", forgetful)


@mutant("a switch does not copy the rest", STUDY)
def a_switch_leaves_the_rest(patch: Patch) -> None:
    def nothing(move: Any, source: str, *settling: Any) -> Any:
        yield from ()
        return Copied()

    patch(failover, "_copied", nothing)


@mutant("settling ends the doubt without copying", STUDY)
def settling_copies_nothing(patch: Patch) -> None:
    settle = failover.settle
    patch(failover, "settle", lambda move, lost: settle(move, True))


@mutant("settling goes on where the follower is, and asks for no answers to keys in doubt", STUDY)
def settling_begins_too_late(patch: Patch) -> None:
    """Each of the two finds what the other would miss, but for a worker that dies in between; tests hold them apart."""
    follow = following.follow

    def late(source: str, *args: Any, settling: Any = None, **more: Any) -> Any:
        later = settling and settling._replace(high=None)
        return (yield from follow(source, *args, settling=later, **more))

    def nothing(*_: Any) -> Any:
        yield from ()

    patch(failover, "follow", late)
    patch(following, "learn", nothing)


@mutant("settling finds no answer that is older than the last pass", STUDY)
def old_answers_are_not_learned(patch: Patch) -> None:
    def nothing(*_: Any) -> Any:
        yield from ()

    patch(following, "learn", nothing)


@mutant("a switch does not settle what is in doubt", STUDY)
def a_switch_settles_nothing(patch: Patch) -> None:
    copied = failover._copied

    def unsettled(move: Any, source: str, settling: Any = None, older: Any = None) -> Any:
        switching = settling is not None and settling.high is None
        return (yield from copied(move, source, None if switching else settling, older))

    patch(failover, "_copied", unsettled)


@mutant("settling leaves a claim without a decision as it is", STUDY, first=6_000)
def settling_trusts_undecided_claims(patch: Patch) -> None:
    def silent(*_: Any) -> Any:
        yield from ()

    patch(settling, "_doubt_row", silent)


@mutant("only the report of settling says that both regions worked", STUDY)
def repeats_are_only_reported(patch: Patch) -> None:
    learn_row = settling._learn_row

    def unmarked(seen: Any, row: Any, here: Any, epoch: Epoch) -> Any:
        flow, reply = learn_row(seen, row, here, epoch), None
        while True:
            try:
                command = flow.send(reply)
            except StopIteration as end:
                return end.value
            if type(command.request) is Adopt:
                plain = replace(command.request.row, error=row.error)
                command = command._replace(request=replace(command.request, row=plain))
            reply = yield command

    patch(settling, "_learn_row", unmarked)


@mutant("an answer of the old region is dropped where the key is held or at work", STUDY)
def settling_names_nothing(patch: Patch) -> None:
    def silent(seen: Any, row: Any, epoch: Any) -> Any:
        yield from ()

    patch(settling, "settle_row", silent)
    patch(following, "settle_row", silent)


@mutant("an epoch is replaced without a look at which one it is", STUDY)
def epochs_are_overwritten(patch: Patch) -> None:
    def anyhow(row: Any, ask: Any, now: int) -> Any:
        return Ack.OK, replace(row, result=ask.after)

    patch(lifecycle, "rewrite", anyhow)
