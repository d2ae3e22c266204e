"""Retention: an expired record is gone for every read (P8); the sweep only frees its space.

A sweep is bounded and can be resumed. It removes only records that are expired at that moment: never
work in progress, never a key that waits for an operator (P6). Fences still increase after it (P3).
"""

from __future__ import annotations

from typing import Final

from ..._core.protocol import ALL, Ack, Browse, Claimed, Survey, Sweep, Verdict
from ..._values.keys import Key
from ..._values.records import Cause, State, SweepReport
from .bench import Advance, Corrupt, Script
from .requests import HOUR, KEY, OTHER, A, B, C, claim, forget, reach, read, unchanged, won
from .rules import StoreRules, rule

__all__ = ["RetentionRules", "expiring"]

EXPIRING: Final = {
    state.value: state for state in (State.COMPLETED, State.FAILED, State.RELEASED, State.FORGOTTEN)
}
PERMANENT: Final = {state.value: state for state in (State.IN_PROGRESS, State.HELD, State.PARKED)}


def expiring(state: State, retention: int, key: Key = KEY) -> Script[int]:
    """Make a record in this state that expires after `retention`; returns its fence."""
    mine = yield from won(A, key)
    match state:
        case State.COMPLETED:
            yield mine.complete(retention=retention)
        case State.FAILED:
            yield mine.remember(retention=retention)
        case State.RELEASED:
            yield mine.fail(retention=retention)
        case _:
            yield mine.fail(max_attempts=1)
            yield forget(key, retention=retention)
    row = yield read(key)
    if row is None:  # on a real clock it may be expired already
        return mine.fence
    assert row.state is state
    return int(row.fence)


def expiring_every_fourth(retention: int) -> Script[None]:
    """Three records that expire after `retention`, among nine in progress."""
    for number in range(12):
        key = Key(f"key-{number}")
        if number % 4 == 3:
            yield from expiring(State.COMPLETED, retention, key)
        else:
            yield from won(A, key)


def sweep_all(limit: int = 100, most: int = ALL) -> Script[list[SweepReport]]:
    """Sweep step by step, until there is no more."""
    reports, after = [], ""
    while True:
        report, after = yield Sweep(limit, after, most)
        reports.append(report)
        assert report.more == bool(after)
        if not after:
            return reports
        assert len(reports) < 100, "this sweep does not end"


class RetentionRules(StoreRules):
    @rule("P3", "P8", "P12", cases=EXPIRING)
    def test_expired_records_are_gone_before_any_sweep(self, case: State) -> Script[None]:
        fence = yield from expiring(case, self.tick)
        yield Advance(self.tick)
        assert (yield read()) is None
        assert (yield Browse(10)).rows == []
        answer = yield claim(B)
        cause = Cause.FAILED if case is State.RELEASED else Cause.RETENTION_EXPIRED
        assert answer == Claimed(Verdict.WON, answer.fence, 1, answer.cause)
        assert answer.cause in self.after_expiry(cause)
        assert answer.fence > fence
        row = yield read()
        assert (row.state, row.owner, row.result, row.error) == (State.IN_PROGRESS, B, None, "")
        assert row.created_at == row.changed_at, "a new life"
        assert row.expires_at == 0

    @rule("P5", "P8", exact_time=True)
    def test_retention_ends_to_the_millisecond(self) -> Script[None]:
        yield from expiring(State.COMPLETED, 1000)
        yield Advance(999)
        answer = yield claim(B)
        assert (answer.verdict, answer.expires_in) == (Verdict.REPLAY, 1)
        yield Sweep(10)
        assert (yield read()) is not None
        yield Advance(1)
        assert (yield read()) is None

    @rule("P6", cases=PERMANENT)
    def test_unfinished_work_never_expires(self, case: State) -> Script[None]:
        yield from reach(case, lease=self.tick)
        before = yield read()
        yield Advance(2 * self.tick)
        if not self.real_clock:
            yield Advance(10 * 365 * 24 * HOUR)
        yield from sweep_all()
        assert (yield read()) == before

    @rule(cases=EXPIRING)
    def test_a_sweep_removes_expired_records(self, case: State) -> Script[None]:
        yield from expiring(case, self.tick)
        yield Advance(self.tick)
        [report] = yield from sweep_all()
        if not self.capabilities.native_expiry:
            assert (report.removed, report.examined) == (1, 1)
        assert (yield Survey()).total == 0

    @rule(cases=EXPIRING)
    def test_a_sweep_keeps_records_within_their_retention(self, case: State) -> Script[None]:
        yield from expiring(case, HOUR)
        yield from unchanged(Sweep(100), (SweepReport(removed=0, examined=1, more=False), ""))

    @rule("P9", damages=True)
    def test_a_sweep_does_not_stop_at_a_damaged_record(self) -> Script[None]:
        for key in (KEY, OTHER, Key("last")):
            mine = yield from won(A, key)
            yield mine.complete(retention=self.tick)
        yield Corrupt(OTHER.id)
        yield Advance(self.tick)
        yield from sweep_all()
        assert (yield Survey()).by_state == {}
        assert (yield Browse(9)).rows == []

    @rule("P3", cases=EXPIRING)
    def test_fences_keep_increasing_after_a_sweep(self, case: State) -> Script[None]:
        fence = 0
        for _ in range(3):
            last = yield from expiring(case, self.tick)
            assert last > fence
            fence = last
            yield Advance(self.tick)
            yield from sweep_all()

    @rule("P3")
    def test_fences_keep_increasing_after_a_sweep_that_removed_others_too(self) -> Script[None]:
        """The key with the highest fence may be swept before the one under test."""
        other = Key("busy")
        for _ in range(3):
            mine = yield from won(A, other)
            yield mine.fail(max_attempts=99)
        yield from expiring(State.COMPLETED, self.tick)
        mine = yield from won(B, other)
        yield mine.complete(retention=self.tick)
        yield Advance(self.tick)
        yield from sweep_all(1)
        again = yield from won(C, other)
        assert again.fence > mine.fence

    @rule("P4")
    def test_a_swept_record_is_missing_for_its_owner(self) -> Script[None]:
        mine = yield from won(A)
        yield mine.complete(retention=self.tick)
        yield Advance(self.tick)
        yield from sweep_all()
        yield from unchanged(mine.complete(b"again"), Ack.MISSING)
        assert (yield claim(B)).verdict is Verdict.WON

    # -- bounded, resumable, conditional ------------------------------------------------------

    @rule()
    def test_a_sweep_works_in_steps_and_resumes(self) -> Script[None]:
        for number in range(7):
            yield from expiring(State.COMPLETED, self.tick, Key(f"old-{number}"))
        yield Advance(self.tick)
        reports = yield from sweep_all(limit=3)
        assert all(report.removed <= 3 and report.examined <= 3 for report in reports)
        if not self.capabilities.native_expiry:
            assert sum(report.removed for report in reports) == 7
            assert len(reports) >= 3
        assert (yield Survey()).total == 0

    @rule()
    def test_a_sweep_gets_past_records_that_stay(self) -> Script[None]:
        """Live records before the expired ones must not stop it."""
        yield from expiring_every_fourth(self.tick)
        yield Advance(self.tick)
        reports = yield from sweep_all(limit=2)
        if not self.capabilities.native_expiry:
            assert sum(report.removed for report in reports) == 3
        assert (yield Survey()).by_state == {State.IN_PROGRESS: 9}

    @rule()
    def test_a_sweep_that_may_remove_few_still_looks_at_many(self) -> Script[None]:
        """The limit is on removed records, not on examined ones: live records are not examined one by one."""
        yield from expiring_every_fourth(self.tick)
        yield Advance(self.tick)
        reports = yield from sweep_all(most=2)
        assert all(report.removed <= 2 for report in reports)
        if not self.capabilities.native_expiry:
            assert sum(report.removed for report in reports) == 3
            assert len(reports) <= 3
        assert (yield Survey()).by_state == {State.IN_PROGRESS: 9}

    @rule()
    def test_a_sweep_of_nothing(self) -> Script[None]:
        yield from unchanged(Sweep(10), (SweepReport(removed=0, examined=0, more=False), ""))

    @rule("P6")
    def test_a_reclaimed_record_is_not_swept(self) -> Script[None]:
        yield from expiring(State.COMPLETED, self.tick)
        yield Advance(self.tick)
        mine = yield from won(B)
        yield from unchanged(Sweep(10), (SweepReport(removed=0, examined=1, more=False), ""))
        assert (yield mine.complete(b"x")) is Ack.OK
