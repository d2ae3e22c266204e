"""Operators: release, resolve and forget, each with who and why in the audit trail.

An operator's action raises the fence, so a worker that still runs is fenced (P3). A forgotten key leaves a
tombstone: its data is deleted, and a late duplicate still does not run. An action that closes a key never
shortens its retention.
"""

from __future__ import annotations

from typing import Any, Final

from ..._core.protocol import Ack, Claimed, Forget, History, Release, Sweep, Verdict
from ..._values.records import Cause, State
from .bench import Advance, Script
from .requests import (
    HOUR,
    KEY,
    OTHER,
    STATES,
    A,
    B,
    C,
    claim,
    discard,
    forget,
    reach,
    read,
    release,
    resolve,
    unchanged,
    won,
)
from .rules import StoreRules, rule

__all__ = ["OperatorRules"]

ACTS: Final[dict[str, Any]] = {
    "release": release,
    "resolve": resolve,
    "forget": forget,
    "discard": discard,
}
CLOSING: Final[dict[str, tuple[State, Any]]] = {
    "forget completed": (State.COMPLETED, forget),
    "forget failed": (State.FAILED, forget),
    "forget released": (State.RELEASED, forget),
    "resolve failed": (State.FAILED, resolve),
    "resolve released": (State.RELEASED, resolve),
}


class OperatorRules(StoreRules):
    @rule("P3", "P12", cases={s.value: s for s in STATES if s is not State.FORGOTTEN})
    def test_a_released_key_runs_again_as_if_new(self, case: State) -> Script[None]:
        mine = yield from reach(case)
        assert (yield release(force=True, retention=2 * HOUR)) is Ack.OK
        row = yield read()
        assert (row.state, row.cause, row.attempt) == (State.RELEASED, Cause.OPERATOR, 0)
        assert (row.owner, row.result) == (b"", None)
        assert row.fence > mine.fence
        assert row.expires_at == row.changed_at + 2 * HOUR
        again = yield claim(B)
        assert again == Claimed(Verdict.WON, again.fence, 1, Cause.OPERATOR)
        assert again.fence > row.fence

    @rule()
    def test_a_release_ends_the_back_off(self) -> Script[None]:
        mine = yield from won(A)
        yield mine.fail(delay=HOUR)
        yield release()
        assert (yield claim(B)).verdict is Verdict.WON

    @rule()
    def test_a_completed_key_is_released_only_by_force(self) -> Script[None]:
        yield from reach(State.COMPLETED)
        yield from unchanged(release(), Ack.REFUSED)
        assert (yield claim(B)).verdict is Verdict.REPLAY

    @rule("P3")
    def test_a_release_fences_off_the_owner_for_good(self) -> Script[None]:
        mine = yield from won(A)
        yield release()
        assert (yield mine.complete(b"zombie")) is Ack.LOST
        again = yield from won(B)
        assert (yield mine.complete(b"zombie")) is Ack.LOST
        assert (yield again.complete(b"new")) is Ack.OK
        assert (yield claim(C)).result == b"new"

    @rule("P3", cases={"value": b"by hand", "nothing": None})
    def test_a_resolved_key_has_its_answer(self, case: bytes | None) -> Script[None]:
        mine = yield from reach(State.HELD)
        assert (yield resolve(result=case, retention=2 * HOUR)) is Ack.OK
        row = yield read()
        assert (row.state, row.result, row.owner) == (State.COMPLETED, case, b"")
        assert row.fence > mine.fence
        assert (row.lease_until, row.expires_at) == (0, row.changed_at + 2 * HOUR)
        answer = yield claim(B)
        assert (answer.verdict, answer.state) == (Verdict.REPLAY, State.COMPLETED)
        assert answer.result == case

    @rule("P3", cases={"release": release, "resolve": resolve})
    def test_a_decision_about_an_earlier_run_changes_nothing(self, case: Any) -> Script[None]:
        """Two look at a held key. The first one's decision lets it run again; the second is late."""
        seen = (yield from reach(State.HELD)).fence
        assert (yield release(fence=seen)) is Ack.OK
        yield from unchanged(case(fence=seen), Ack.LOST)
        again = yield from won(B)
        yield from unchanged(case(fence=seen), Ack.LOST)
        assert (yield again.complete(b"new")) is Ack.OK
        yield from unchanged(case(fence=seen), Ack.LOST)
        yield from unchanged(case(fence=again.fence), Ack.REFUSED)

    @rule("P3", cases={"release": release, "resolve": resolve})
    def test_a_decision_about_the_present_run_counts(self, case: Any) -> Script[None]:
        mine = yield from reach(State.HELD)
        assert (yield case(fence=mine.fence)) is Ack.OK
        assert (yield mine.complete(b"late")) is Ack.LOST

    @rule("P5", cases={"release": release, "resolve": resolve})
    def test_a_decision_about_a_stuck_run_spares_one_that_was_renewed(
        self, case: Any
    ) -> Script[None]:
        """An operator lists a stuck key; its worker renews before the decision. No fence tells."""
        mine = yield from won(A, lease=self.tick)
        yield Advance(self.tick)
        assert (yield mine.renew(HOUR)) is Ack.OK
        yield from unchanged(case(fence=mine.fence, unless_running=True), Ack.LOST)
        assert (yield History(KEY.id)) == []
        assert (yield mine.complete(b"done")) is Ack.OK

    @rule(cases={"release": release, "resolve": resolve})
    def test_a_decision_about_a_stuck_run_counts(self, case: Any) -> Script[None]:
        mine = yield from won(A, lease=self.tick)
        yield Advance(self.tick)
        assert (yield case(fence=mine.fence, unless_running=True)) is Ack.OK
        assert (yield mine.complete(b"late")) is Ack.LOST

    @rule()
    def test_a_completed_key_cannot_be_resolved(self) -> Script[None]:
        yield from reach(State.COMPLETED)
        yield from unchanged(resolve(), Ack.REFUSED)

    # -- forget -------------------------------------------------------------------------------

    @rule(cases={"small": b"secret", "big": b"secret" * 1000})
    def test_forgetting_erases_the_data_and_keeps_the_tombstone(self, case: bytes) -> Script[None]:
        mine = yield from won(A, fingerprint=b"f" * 32)
        yield mine.complete(case, error="Secret")
        assert (yield forget(retention=2 * HOUR)) is Ack.OK
        row = yield read()
        assert row.id == KEY.id
        assert row.state is State.FORGOTTEN
        assert (row.scope, row.value, row.owner) == ((), "", b"")
        assert (row.result, row.fingerprint, row.error) == (None, None, "")
        assert row.fence > mine.fence
        assert row.expires_at == row.changed_at + 2 * HOUR

    @rule("P11")
    def test_a_late_duplicate_of_a_forgotten_key_does_not_run(self) -> Script[None]:
        yield from reach(State.FORGOTTEN, fingerprint=b"f" * 32)
        for fingerprint in (None, b"f" * 32, b"g" * 32):
            yield from unchanged(claim(B, fingerprint=fingerprint), Claimed(Verdict.FORGOTTEN))

    @rule()
    def test_forgetting_again_is_ok_and_changes_nothing(self) -> Script[None]:
        yield from reach(State.FORGOTTEN)
        yield from unchanged(forget(retention=9 * HOUR), Ack.OK)
        assert len((yield History(KEY.id))) == 1, (
            "an action that changed nothing must not be in the audit trail"
        )

    @rule("P3")
    def test_only_the_answer_that_was_seen_is_forgotten(self) -> Script[None]:
        """An archive copies an answer, then forgets it: not one that was recorded meanwhile."""
        seen = (yield from reach(State.COMPLETED)).fence
        assert (yield release(force=True)) is Ack.OK
        yield from unchanged(forget(fence=seen), Ack.LOST)
        again = yield from won(B)
        yield from unchanged(forget(fence=seen), Ack.LOST)
        assert (yield again.complete(b"new")) is Ack.OK
        yield from unchanged(forget(fence=seen), Ack.LOST)
        assert (yield forget(fence=again.fence)) is Ack.OK
        yield from unchanged(forget(fence=again.fence), Ack.OK)

    @rule("P6")
    def test_work_in_progress_cannot_be_forgotten(self) -> Script[None]:
        mine = yield from won(A)
        yield from unchanged(forget(), Ack.REFUSED)
        assert (yield mine.complete(b"x")) is Ack.OK

    @rule("P3", "P8", "P12")
    def test_a_tombstone_has_its_own_retention(self) -> Script[None]:
        mine = yield from reach(State.PARKED)
        yield forget(retention=self.tick)
        yield Advance(self.tick)
        assert (yield read()) is None
        again = yield from won(B)
        assert again.answer.cause in self.after_expiry(Cause.RETENTION_EXPIRED)
        assert again.fence > mine.fence + 1
        assert ((yield read()).scope, (yield read()).value) == (KEY.scope, KEY.value)

    @rule("P8", cases=CLOSING)
    def test_an_action_that_closes_a_key_never_shortens_its_retention(
        self, case: tuple[State, Any]
    ) -> Script[None]:
        """An operator may have other settings than the worker: a late repeat must find the key closed."""
        state, act = case
        yield from reach(state)
        before = yield read()
        assert (yield act(retention=self.tick)) is Ack.OK
        row = yield read()
        assert row.state is not state
        assert row.expires_at == before.expires_at > row.changed_at
        yield Advance(self.tick)
        assert (yield claim(B)).verdict in (Verdict.REPLAY, Verdict.FORGOTTEN)

    # -- discard ------------------------------------------------------------------------------

    @rule(cases={s.value: s for s in STATES})
    def test_a_discarded_dead_letter_is_only_in_the_audit_trail(self, case: State) -> Script[None]:
        mine = yield from reach(case)
        acts = len((yield History(KEY.id)))
        yield from unchanged(discard(), Ack.OK)
        *_, entry = trail = yield History(KEY.id)
        assert len(trail) == acts + 1
        assert (entry.action, entry.by, entry.why) == ("discard", "dan", "a test message")
        assert (entry.state_before, entry.id) == (case, KEY.id)
        if case is State.IN_PROGRESS:
            assert (yield mine.complete(b"x")) is Ack.OK

    # -- what is not there --------------------------------------------------------------------

    @rule("P4", cases=ACTS)
    def test_nothing_is_done_to_a_key_without_a_record(self, case: Any) -> Script[None]:
        yield from unchanged(case(), Ack.MISSING)
        assert (yield History(KEY.id)) == []

    @rule("P8", cases=ACTS)
    def test_nothing_is_done_to_a_key_whose_record_expired(self, case: Any) -> Script[None]:
        mine = yield from won(A)
        yield mine.remember(b"x", retention=self.tick)
        yield Advance(self.tick)
        yield from unchanged(case(), Ack.MISSING)
        assert (yield History(KEY.id)) == []

    # -- the audit trail ----------------------------------------------------------------------

    @rule()
    def test_every_action_is_kept_with_who_why_and_when(self) -> Script[None]:
        yield from reach(State.PARKED)
        yield release()
        at = [(yield read()).changed_at]
        yield resolve()
        at.append((yield read()).changed_at)
        yield forget()
        at.append((yield read()).changed_at)
        trail = yield History(KEY.id)
        assert [(e.action, e.by, e.why, e.state_before) for e in trail] == [
            ("release", "ann", "ticket 7", State.PARKED),
            ("resolve", "ben", "asked the bank", State.RELEASED),
            ("forget", "cat", "erasure request", State.COMPLETED),
        ]
        assert [round(entry.at.timestamp() * 1000) for entry in trail] == at
        assert {entry.id for entry in trail} == {KEY.id}

    @rule()
    def test_a_refused_action_is_not_in_the_audit_trail(self) -> Script[None]:
        yield from reach(State.COMPLETED)
        yield release()
        yield resolve()
        assert (yield History(KEY.id)) == []

    @rule()
    def test_each_key_has_its_own_audit_trail(self) -> Script[None]:
        yield from reach(State.HELD)
        yield from reach(State.HELD, OTHER)
        yield release(OTHER)
        assert (yield History(KEY.id)) == []
        assert len((yield History(OTHER.id))) == 1

    @rule()
    def test_names_and_reasons_are_stored_exactly(self) -> Script[None]:
        by, why = 'O\'Brien; "x" -- ж🙂', "line\nbreak\t%s {} \\"
        yield from reach(State.HELD)
        yield Release(KEY.id, by, why, HOUR)
        yield Forget(KEY.id, why, by, HOUR)
        trail = yield History(KEY.id)
        assert [(entry.by, entry.why) for entry in trail] == [(by, why), (why, by)]

    @rule()
    def test_a_reclaimed_key_keeps_its_audit_trail_until_a_sweep(self) -> Script[None]:
        yield from reach(State.HELD)
        yield release()
        mine = yield from won(B)
        yield mine.complete(retention=self.tick)
        assert len((yield History(KEY.id))) == 1
        yield Advance(self.tick)
        yield Sweep(100)
        assert (yield History(KEY.id)) == [], "an audit trail without its record is never deleted"
