"""The whole table of the lifecycle: every state × every event, allowed or refused.

The expectations come from `_core.transitions.TRANSITIONS`, so a new row there is tested on every store.
An event that is not in the table must change nothing.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from ..._core.protocol import Ack, Claimed, Read, Sweep, Verdict
from ..._core.transitions import TRANSITIONS, RecordEvent
from ..._values.records import State
from .bench import Advance, Script
from .requests import HOUR, KEY, STATES, B, Mine, claim, forget, reach, release, resolve
from .retention import expiring
from .rules import StoreRules, rule

__all__ = ["TransitionRules"]

Case = tuple[State | None, RecordEvent]

TABLE: Final[dict[str, Case]] = {
    f"{state or 'no record'}-{event}".replace(" ", "_"): (state, event)
    for state in (None, *STATES)
    for event in RecordEvent
    if event is not RecordEvent.SUSPEND  # `StepRules` has the rest
}
ALLOWED: Final = {name: case for name, case in TABLE.items() if case in TRANSITIONS}
SAME_AS_CLAIM: Final[set[Case]] = {
    (None, RecordEvent.TAKE_OVER),
    (None, RecordEvent.PARK),
    (State.RELEASED, RecordEvent.TAKE_OVER),
}
"""Here the event is a plain claim: no lease expired, and there is nothing to park."""
REFUSED: Final = {
    name: case
    for name, case in TABLE.items()
    if case not in TRANSITIONS and case not in SAME_AS_CLAIM
}

VERDICTS: Final = {
    State.IN_PROGRESS: Verdict.BUSY,
    State.COMPLETED: Verdict.REPLAY,
    State.FAILED: Verdict.REPLAY,
    State.HELD: Verdict.HELD,
    State.PARKED: Verdict.PARKED,
    State.FORGOTTEN: Verdict.FORGOTTEN,
}
REPEATS: Final[dict[RecordEvent, set[State]]] = {
    RecordEvent.COMPLETE: {State.COMPLETED, State.FAILED},
    RecordEvent.REMEMBER: {State.COMPLETED, State.FAILED},
    RecordEvent.FAIL: {State.RELEASED, State.HELD, State.PARKED},
    RecordEvent.HOLD: {State.RELEASED, State.HELD, State.PARKED},
    RecordEvent.FORGET: {State.FORGOTTEN},
}
"""States in which the event is a repeat by the same owner: it is OK, and changes nothing."""


class TransitionRules(StoreRules):
    @rule("P1", "P4", "P6", cases=ALLOWED)
    def test_every_allowed_transition(self, case: Case) -> Script[None]:
        state, event = case
        if event is RecordEvent.EXPIRE:
            assert state is not None
            yield from expiring(state, self.tick)
            yield Advance(self.tick)
            assert (yield Read(KEY.id)) is None
            return
        mine = yield from reach(state, lease=self.tick, hold=event is RecordEvent.HOLD)
        before = yield Read(mine.id)
        if event in (RecordEvent.TAKE_OVER, RecordEvent.HOLD):
            yield Advance(self.tick)
        answer = yield self._request(state, event, mine)
        assert self._accepts(event, answer), answer
        row = yield Read(mine.id)
        assert row.state is TRANSITIONS[case]
        assert before is None or row.fence >= before.fence, "a fence never goes back (P3)"

    @rule("P1", "P4", "P6", cases=REFUSED)
    def test_any_other_transition_changes_nothing(self, case: Case) -> Script[None]:
        state, event = case
        mine = yield from reach(state, lease=self.tick if event is RecordEvent.EXPIRE else HOUR)
        before = yield Read(mine.id)
        if event is RecordEvent.EXPIRE:
            yield Advance(self.tick)
            yield Sweep(100)
        else:
            answer = yield self._request(state, event, mine)
            assert answer == self._refusal(state, event, answer)
        assert (yield Read(mine.id)) == before

    def _request(self, state: State | None, event: RecordEvent, mine: Mine) -> Any:
        """The request that causes this event."""
        return {
            RecordEvent.CLAIM: claim(B),
            RecordEvent.TAKE_OVER: claim(B),
            RecordEvent.HOLD: claim(B) if state is State.IN_PROGRESS else mine.fail(hold=True),
            RecordEvent.PARK: mine.fail(max_attempts=1)
            if state is State.IN_PROGRESS
            else claim(B, max_attempts=1),
            RecordEvent.RENEW: mine.renew(),
            RecordEvent.COMPLETE: mine.complete(),
            RecordEvent.REMEMBER: mine.remember(),
            RecordEvent.FAIL: mine.fail(),
            RecordEvent.ABANDON: mine.abandon(),
            RecordEvent.RELEASE: release(force=True),
            RecordEvent.RESOLVE: resolve(),
            RecordEvent.FORGET: forget(),
        }[event]

    def _accepts(self, event: RecordEvent, answer: Ack | Claimed) -> bool:
        if isinstance(answer, Ack):
            return answer is Ack.OK
        expected = {RecordEvent.HOLD: Verdict.HELD, RecordEvent.PARK: Verdict.PARKED}
        return answer.verdict is expected.get(event, Verdict.WON)

    def _refusal(self, state: State | None, event: RecordEvent, answer: Ack | Claimed) -> Any:
        if state is None:
            return Ack.MISSING
        if state in REPEATS.get(event, ()):
            return Ack.OK
        if isinstance(answer, Claimed):
            return replace(answer, verdict=VERDICTS[state])
        operator = event in (RecordEvent.RELEASE, RecordEvent.RESOLVE, RecordEvent.FORGET)
        return Ack.REFUSED if operator else Ack.LOST
