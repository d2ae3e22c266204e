"""Rewriting: the same answer, or payload of a run, in other bytes, for a new encryption key. Nothing else may change.

It compares what it replaces: an answer that was released, forgotten or recorded again meanwhile stays.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from ..._core.durable.run_requests import LoadRun, RewriteRun, Run
from ..._core.protocol import Ack, Verdict
from ..._values.records import State
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
    forget,
    reach,
    read,
    release,
    rewrite,
    unchanged,
    won,
)
from .rules import StoreRules, rule
from .run_requests import started, step, steps_of, suspend
from .steps import NAMES

__all__ = ["RewritingRules"]

SIZES: Final = {
    "equal": (b"old", b"new"),
    "longer": (b"old", b"\xc1" * 5000),
    "shorter": (b"\xc1" * 5000, b"\0"),
}
ANSWERS: Final = {"completed": State.COMPLETED, "failed": State.FAILED}
NO_ANSWER: Final = {
    state.value: state for state in STATES if state not in (State.COMPLETED, State.FAILED)
}


class RewritingRules(StoreRules):
    @rule(cases=SIZES)
    def test_the_answer_is_replaced_and_nothing_else(
        self, case: tuple[bytes, bytes]
    ) -> Script[None]:
        before, after = case
        mine = yield from won(A, fingerprint=b"f" * 32)
        yield mine.complete(before, retention=5 * HOUR)
        row = yield read()
        yield Advance(self.tick)
        assert (yield rewrite(before, after)) is Ack.OK
        assert (yield read()) == replace(row, result=after)
        assert (yield claim(B)).result == after

    @rule(cases=ANSWERS)
    def test_a_repeat_changes_nothing(self, case: State) -> Script[None]:
        mine = yield from won(A)
        yield mine.complete(b"old", state=case)
        ask = rewrite(b"old", b"new", state=case)
        assert (yield ask) is Ack.OK
        yield from unchanged(ask, Ack.OK)

    @rule()
    def test_another_answer_stays(self) -> Script[None]:
        yield from reach(State.COMPLETED)
        yield from unchanged(rewrite(b"other", b"new"), Ack.LOST)
        yield from unchanged(rewrite(b"done", b"new", state=State.FAILED), Ack.LOST)

    @rule(cases=NO_ANSWER)
    def test_a_record_without_an_answer_stays(self, case: State) -> Script[None]:
        yield from reach(case)
        yield from unchanged(rewrite(b"done", b"new"), Ack.LOST)

    @rule()
    def test_a_missing_record_is_not_created(self) -> Script[None]:
        assert (yield rewrite(b"done", b"new")) is Ack.MISSING
        assert (yield read()) is None

    @rule("P8")
    def test_an_expired_answer_is_gone(self) -> Script[None]:
        mine = yield from won(A)
        yield mine.complete(b"old", retention=self.tick)
        yield Advance(2 * self.tick)
        assert (yield rewrite(b"old", b"new")) is Ack.MISSING

    @rule("P3")
    def test_an_answer_that_was_released_meanwhile_does_not_return(self) -> Script[None]:
        mine = yield from won(A)
        yield mine.complete(b"old")
        yield release(force=True)
        assert (yield rewrite(b"old", b"new")) is Ack.LOST
        assert (yield claim(B)).verdict is Verdict.WON

    @rule()
    def test_a_forgotten_answer_does_not_return(self) -> Script[None]:
        yield from reach(State.COMPLETED)
        yield forget()
        assert (yield rewrite(b"done", b"new")) is Ack.LOST
        assert (yield claim(C)).verdict is Verdict.FORGOTTEN

    # -- durable runs -------------------------------------------------------------------------

    @rule(needs="steps", cases=NAMES)
    def test_a_payload_of_a_run_is_rewritten_and_nothing_else(self, case: str) -> Script[None]:
        mine = yield from started(A)
        yield step(mine, case, b"old", undo=True)
        yield suspend(mine)
        row, known = (yield read()), (yield from steps_of())[case]
        assert (yield RewriteRun(KEY.id, case, b"old", b"new")) is Ack.OK
        assert (yield RewriteRun(KEY.id, case, b"old", b"new")) is Ack.OK, "a network retry"
        assert (yield RewriteRun(KEY.id, case, b"old", b"newer")) is Ack.LOST
        assert (yield RewriteRun(KEY.id, "", b"j[1]", b"j[2]")) is Ack.OK
        assert (yield RewriteRun(KEY.id, "", b"j[1]", b"j[3]")) is Ack.LOST
        assert (yield read()) == row
        run: Run = yield LoadRun(KEY.id)
        assert (run.function, run.arguments) == ("shop.checkout", b"j[2]")
        assert run.steps == [replace(known, result=b"new")]

    @rule(needs="steps")
    def test_a_run_in_progress_is_not_rewritten(self) -> Script[None]:
        """Its worker may repeat a step whose answer was lost, and must find the bytes that it sent."""
        mine = yield from started(A)
        yield step(mine, "charge", b"old")
        assert (yield RewriteRun(KEY.id, "charge", b"old", b"new")) is Ack.REFUSED
        assert (yield RewriteRun(KEY.id, "", b"j[1]", b"new")) is Ack.REFUSED
        assert (yield step(mine, "charge", b"old")) is Ack.OK
        assert (yield mine.complete(b"x")) is Ack.OK
        assert (yield RewriteRun(KEY.id, "charge", b"old", b"new")) is Ack.OK

    @rule(needs="steps")
    def test_what_is_not_there_is_not_rewritten(self) -> Script[None]:
        assert (yield RewriteRun(KEY.id, "charge", b"old", b"new")) is Ack.MISSING
        mine = yield from started(A)
        yield step(mine, "empty", None)
        yield suspend(mine)
        for name in ("charge", "empty"):
            assert (yield RewriteRun(KEY.id, name, b"old", b"new")) is Ack.MISSING
        assert (yield RewriteRun(OTHER.id, "", b"j[1]", b"new")) is Ack.MISSING
