"""The whole table of the lifecycle: every state × every event, allowed or refused.

The expectations are read from `core.lifecycle.TRANSITIONS`, so a row that is added there is asked
of every store. An event that is not in the table must change nothing.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from ...core.lifecycle import TRANSITIONS, Event
from ...core.protocol import Ack, Claimed, Read, Sweep, Verdict
from ...records import State
from .asking import HOUR, KEY, B, Mine, claim, forget, reach, release, resolve
from .bench import Advance, Script
from .retention import expiring
from .rules import Rules, rule

__all__ = ["TransitionRules"]

Case = tuple[State | None, Event]

TABLE: Final[dict[str, Case]] = {
    f"{state or 'no record'}-{event}".replace(" ", "_"): (state, event)
    for state in (None, *State)
    for event in Event
}
ALLOWED: Final = {name: case for name, case in TABLE.items() if case in TRANSITIONS}
UNASKED: Final[set[Case]] = {
    (None, Event.TAKE_OVER),
    (None, Event.PARK),
    (State.RELEASED, Event.TAKE_OVER),
}
"""A claim like any other: there is no lease that ran out, and nothing to park."""
REFUSED: Final = {
    name: case for name, case in TABLE.items() if case not in TRANSITIONS and case not in UNASKED
}

VERDICTS: Final = {
    State.IN_PROGRESS: Verdict.BUSY,
    State.COMPLETED: Verdict.REPLAY,
    State.FAILED: Verdict.REPLAY,
    State.HELD: Verdict.HELD,
    State.PARKED: Verdict.PARKED,
    State.FORGOTTEN: Verdict.FORGOTTEN,
}
REPEATS: Final[dict[Event, set[State]]] = {
    Event.COMPLETE: {State.COMPLETED, State.FAILED},
    Event.REMEMBER: {State.COMPLETED, State.FAILED},
    Event.FAIL: {State.RELEASED, State.HELD, State.PARKED},
    Event.HOLD: {State.RELEASED, State.HELD, State.PARKED},
    Event.FORGET: {State.FORGOTTEN},
}
"""Said before by the same one: a repeat is OK, and changes nothing."""


class TransitionRules(Rules):
    @rule("P1", "P4", "P6", cases=ALLOWED)
    def test_what_the_table_allows(self, case: Case) -> Script[None]:
        state, event = case
        if event is Event.EXPIRE:
            assert state is not None
            yield from expiring(state, self.tick)
            yield Advance(self.tick)
            assert (yield Read(KEY.id)) is None
            return
        mine = yield from reach(state, lease=self.tick, hold=event is Event.HOLD)
        before = yield Read(mine.id)
        if event in (Event.TAKE_OVER, Event.HOLD):
            yield Advance(self.tick)
        answer = yield self._request(state, event, mine)
        assert self._accepts(event, answer), answer
        row = yield Read(mine.id)
        assert row.state is TRANSITIONS[case]
        assert before is None or row.fence >= before.fence, "a fence never goes back (P3)"

    @rule("P1", "P4", "P6", cases=REFUSED)
    def test_what_the_table_does_not_know(self, case: Case) -> Script[None]:
        state, event = case
        mine = yield from reach(state, lease=self.tick if event is Event.EXPIRE else HOUR)
        before = yield Read(mine.id)
        if event is Event.EXPIRE:
            yield Advance(self.tick)
            yield Sweep(100)
        else:
            answer = yield self._request(state, event, mine)
            assert answer == self._refusal(state, event, answer)
        assert (yield Read(mine.id)) == before

    def _request(self, state: State | None, event: Event, mine: Mine) -> Any:
        """How this event comes about."""
        return {
            Event.CLAIM: claim(B),
            Event.TAKE_OVER: claim(B),
            Event.HOLD: claim(B) if state is State.IN_PROGRESS else mine.fail(hold=True),
            Event.PARK: mine.fail(max_attempts=1)
            if state is State.IN_PROGRESS
            else claim(B, max_attempts=1),
            Event.RENEW: mine.renew(),
            Event.COMPLETE: mine.complete(),
            Event.REMEMBER: mine.remember(),
            Event.FAIL: mine.fail(),
            Event.ABANDON: mine.abandon(),
            Event.RELEASE: release(force=True),
            Event.RESOLVE: resolve(),
            Event.FORGET: forget(),
        }[event]

    def _accepts(self, event: Event, answer: Ack | Claimed) -> bool:
        if isinstance(answer, Ack):
            return answer is Ack.OK
        expected = {Event.HOLD: Verdict.HELD, Event.PARK: Verdict.PARKED}
        return answer.verdict is expected.get(event, Verdict.WON)

    def _refusal(self, state: State | None, event: Event, answer: Ack | Claimed) -> Any:
        if state is None:
            return Ack.MISSING
        if state in REPEATS.get(event, ()):
            return Ack.OK
        if isinstance(answer, Claimed):
            return replace(answer, verdict=VERDICTS[state])
        operator = event in (Event.RELEASE, Event.RESOLVE, Event.FORGET)
        return Ack.REFUSED if operator else Ack.LOST
