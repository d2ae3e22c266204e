"""Refusals: the store refuses one payload, and nothing else.

When a store refuses a result, the handler has already run, so the core completes the key without the
result. This needs three promises of the store. A refusal is an error and changes nothing. The same
claim can then be completed without the payload. Other requests of the batch succeed, at least alone.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ..._core.protocol import Ack, Verdict
from ..._values.keys import Key
from ..._values.records import State
from ...errors import StoreError, StoreUnavailableError
from .bench import Refuse, Script
from .requests import A, B, Mine, claim, read, resolve, won
from .rules import StoreRules, rule

__all__ = ["RefusalRules"]


class RefusalRules(StoreRules):
    @rule("P4", refuses=True, cases={"completed": State.COMPLETED, "failed": State.FAILED})
    def test_a_refused_payload_changes_nothing_and_the_claim_can_complete(
        self, case: State
    ) -> Script[None]:
        mine = yield from won(A)
        payload = yield Refuse()
        yield from _refused(mine.complete(payload, state=case))
        row = yield read()
        assert (row.state, row.owner, row.fence) == (State.IN_PROGRESS, A, mine.fence)
        assert (yield claim(B)).verdict is Verdict.BUSY
        assert (yield mine.renew()) is Ack.OK
        assert (yield mine.complete(None, state=case)) is Ack.OK
        answer = yield claim(B)
        assert (answer.verdict, answer.state, answer.result) == (Verdict.REPLAY, case, None)

    @rule("P4", refuses=True)
    def test_smaller_payloads_are_still_accepted(self) -> Script[None]:
        mine = yield from won(A)
        yield Refuse()
        assert (yield mine.complete(b"small")) is Ack.OK
        assert (yield claim(B)).result == b"small"

    @rule("P4", refuses=True)
    def test_one_refused_request_does_not_fail_its_batch(self) -> Script[None]:
        keys = [Key(f"key-{number}") for number in range(5)]
        claimed = yield [claim(A, key) for key in keys]
        payload = yield Refuse()
        mine = [Mine(key.id, A, won.fence, won) for key, won in zip(keys, claimed, strict=True)]
        asks = [one.complete(b"small") for one in mine]
        asks[2] = mine[2].complete(payload)
        answers = yield asks
        assert isinstance(answers[2], Exception), answers[2]
        for ask, answer in zip(asks, answers, strict=True):
            if ask is not asks[2] and answer is not Ack.OK:  # their shared connection was closed
                assert isinstance(answer, StoreUnavailableError), answer
                assert (yield replace(ask, alone=True)) is Ack.OK
        rows = yield [read(key) for key in keys]
        done = State.COMPLETED
        assert [row.state for row in rows] == [done, done, State.IN_PROGRESS, done, done]

    @rule("P4", refuses=True)
    def test_a_refused_answer_of_an_operator_changes_nothing(self) -> Script[None]:
        mine = yield from won(A)
        payload = yield Refuse()
        assert (yield mine.fail(hold=True)) is Ack.OK
        yield from _refused(resolve(result=payload))
        assert (yield read()).state is State.HELD


def _refused(request: Any) -> Script[None]:
    try:
        answer = yield request
    except StoreError:
        return
    raise AssertionError(f"{request.op} with a payload that the store refuses: {answer}")
