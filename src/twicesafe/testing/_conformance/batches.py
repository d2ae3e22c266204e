"""Batches: many requests in one round trip, each with its own verdict.

The requests of a batch are as concurrent as those of different workers: each is atomic, and the store
chooses their order. One that fails does not affect the others; its error is in its place.
"""

from __future__ import annotations

from typing import Any

from ..._core.protocol import Ack, Browse, Claimed, History, Survey, Sweep, Verdict
from ..._values.keys import Key
from ..._values.records import State
from ...errors import StoreError
from .bench import Advance, Corrupt, Script
from .requests import (
    HOUR,
    KEY,
    OTHER,
    STATES,
    A,
    B,
    C,
    Mine,
    claim,
    forget,
    reach,
    read,
    release,
    resolve,
    won,
)
from .rules import StoreRules, rule

__all__ = ["BatchRules"]

INVALID: Any = "an hour"


class BatchRules(StoreRules):
    @rule()
    def test_an_empty_batch(self) -> Script[None]:
        assert (yield []) == []

    @rule("P1")
    def test_every_new_key_is_won_and_has_its_row(self) -> Script[None]:
        keys = [Key(f"key-{number}") for number in range(300)]
        answers = yield [claim(A, key) for key in keys]
        assert [answer.verdict for answer in answers] == [Verdict.WON] * 300
        rows = yield [read(key) for key in keys]
        assert [row.value for row in rows] == [key.value for key in keys]
        assert [row.fence for row in rows] == [answer.fence for answer in answers]
        done = yield [
            Mine(key.id, A, answer.fence, answer).complete(key.value.encode())
            for key, answer in zip(keys, answers, strict=True)
        ]
        assert done == [Ack.OK] * 300
        replays = yield [claim(B, key) for key in keys]
        assert [answer.result for answer in replays] == [key.value.encode() for key in keys]

    @rule("P1", "P11")
    def test_every_claim_has_its_own_verdict(self) -> Script[None]:
        """It is the verdict that the claim would get alone."""
        expected = {}
        for state in (None, *STATES):
            key = Key(f"in {state}")
            yield from reach(state, key, fingerprint=b"f" * 32)
            expected[key] = state
        mismatch = Key("mismatch")
        yield from won(A, mismatch, fingerprint=b"g" * 32)
        resting = Key("resting")
        failed = yield from won(A, resting)
        yield failed.fail(delay=HOUR)
        lapsed = Key("lapsed")
        yield from won(A, lapsed, lease=self.tick)
        yield Advance(self.tick)
        keys = [*expected, mismatch, resting, lapsed]
        answers = yield [claim(B, key, fingerprint=b"f" * 32) for key in keys]
        assert [answer.verdict.name for answer in answers] == [
            "WON",
            "BUSY",
            "REPLAY",
            "REPLAY",
            "WON",
            "HELD",
            "PARKED",
            "FORGOTTEN",
            "MISMATCH",
            "RESTING",
            "WON",
        ]
        for key, answer in zip(keys, answers, strict=True):
            if answer.verdict is Verdict.WON:
                assert (yield claim(B, key)) == answer
            elif not answer.wait:
                again = yield claim(B, key, fingerprint=b"f" * 32)
                assert self.near(again.age, answer.age)
                answer.age, answer.expires_in = again.age, again.expires_in
                assert again == answer

    @rule("P4")
    def test_every_completion_has_its_own_verdict(self) -> Script[None]:
        good = yield from won(A, Key("good"))
        again = yield from won(A, Key("again"))
        yield again.complete(b"first")
        stolen = yield from won(A, Key("stolen"))
        missing = Mine(Key("missing").id, A, 1, Claimed(Verdict.WON))
        big = yield from won(A, Key("big"))
        answers = yield [
            good.complete(b"good"),
            stolen.replace(owner=B).complete(b"no"),
            missing.complete(b"no"),
            again.complete(b"second"),
            big.complete(b"B" * 5000),
        ]
        assert answers == [Ack.OK, Ack.LOST, Ack.MISSING, Ack.OK, Ack.OK]
        assert (yield read(Key("good"))).result == b"good"
        assert (yield read(Key("stolen"))).state is State.IN_PROGRESS
        assert (yield read(Key("missing"))) is None
        assert (yield read(Key("again"))).result == b"first"
        assert (yield read(Key("big"))).result == b"B" * 5000

    @rule("P1", "P4", "P11")
    def test_every_request_keeps_its_own_values(self) -> Script[None]:
        """Also if most of the batch, or its first and its last, have the same value or none."""
        keys = [Key(f"key-{number}") for number in range(4)]
        prints = (b"f" * 32, None, b"g" * 32, b"f" * 32)
        holds = (False, True, False, False)
        results = (None, b"", b"one", None)
        answers = yield [
            claim(A, key, fingerprint=fingerprint, hold=hold)
            for key, fingerprint, hold in zip(keys, prints, holds, strict=True)
        ]
        rows = yield [read(key) for key in keys]
        assert [(row.fingerprint, row.hold) for row in rows] == list(
            zip(prints, holds, strict=True)
        )
        done = yield [
            Mine(key.id, A, answer.fence, answer).complete(result)
            for key, answer, result in zip(keys, answers, results, strict=True)
        ]
        assert done == [Ack.OK] * 4
        rows = yield [read(key) for key in keys]
        assert [row.result for row in rows] == list(results)

    @rule("P1", "P2")
    def test_equal_keys_have_one_winner(self) -> Script[None]:
        owners = [bytes([number]) * 16 for number in range(8)]
        answers = yield [claim(owner) for owner in owners]
        winners = [
            (owner, answer)
            for owner, answer in zip(owners, answers, strict=True)
            if answer.verdict is Verdict.WON
        ]
        assert len(winners) == 1
        assert {a.verdict for a in answers} == {Verdict.WON, Verdict.BUSY}
        row = yield read()
        assert (row.owner, row.fence) == (winners[0][0], winners[0][1].fence)

    @rule("P2")
    def test_equal_claims_get_equal_answers(self) -> Script[None]:
        first, *rest = yield [claim(A), claim(A), claim(A)]
        assert first.verdict is Verdict.WON
        assert rest == [first, first]
        assert (yield read()).attempt == 1

    @rule("P2", "P3")
    def test_equal_keys_take_over_once(self) -> Script[None]:
        mine = yield from won(A, lease=self.tick)
        yield Advance(self.tick)
        answers = yield [claim(B), claim(C)]
        assert sorted(answer.verdict.name for answer in answers) == ["BUSY", "WON"]
        row = yield read()
        assert (row.attempt, row.fence > mine.fence) == (2, True)

    @rule()
    def test_a_batch_may_mix_all_kinds_of_requests(self) -> Script[None]:
        mine = {}
        for name in ("renew", "complete", "fail", "abandon", "release", "resolve"):
            mine[name] = yield from won(A, Key(name))
        yield from reach(State.COMPLETED, Key("forget"))
        yield from reach(State.HELD, KEY)
        yield release(KEY)
        answers = yield [
            claim(A, Key("claim")),
            mine["renew"].renew(2 * HOUR),
            mine["complete"].complete(b"x"),
            mine["fail"].fail(),
            mine["abandon"].abandon(),
            read(KEY),
            release(Key("release")),
            resolve(Key("resolve")),
            forget(Key("forget")),
            History(KEY.id),
            Sweep(100),
            Survey(),
            Browse(100),
        ]
        assert answers[0].verdict is Verdict.WON
        assert answers[1:5] == [Ack.OK] * 4
        assert answers[5].state is State.RELEASED
        assert answers[6:9] == [Ack.OK] * 3
        assert [entry.action for entry in answers[9]] == ["release"]
        report, after = answers[10]
        assert (report.removed, after) == (0, "")
        assert 8 <= answers[11].total <= 9
        assert 8 <= len(answers[12].rows) <= 9
        expected = {
            "claim": State.IN_PROGRESS,
            "renew": State.IN_PROGRESS,
            "complete": State.COMPLETED,
            "fail": State.RELEASED,
            "abandon": State.RELEASED,
            "release": State.RELEASED,
            "resolve": State.COMPLETED,
            "forget": State.FORGOTTEN,
        }
        rows = yield [read(Key(name)) for name in expected]
        assert [row.state for row in rows] == list(expected.values())

    # -- one bad item -------------------------------------------------------------------------

    @rule(cases={"first": 0, "middle": 1, "last": 2})
    def test_an_invalid_request_does_not_fail_the_others(self, case: int) -> Script[None]:
        keys = [Key("x"), Key("y"), Key("z")]
        answers = yield [
            claim(A, key, lease=INVALID if number == case else HOUR)
            for number, key in enumerate(keys)
        ]
        for number, (key, answer) in enumerate(zip(keys, answers, strict=True)):
            row = yield read(key)
            if number == case:
                assert isinstance(answer, Exception)
                assert row is None, "an error means that nothing was written"
            else:
                assert answer.verdict is Verdict.WON
                assert row.fence == answer.fence

    @rule()
    def test_an_invalid_completion_does_not_fail_the_others(self) -> Script[None]:
        bad = yield from won(A)
        good = yield from won(A, OTHER)
        answers = yield [bad.complete(b"x", retention=INVALID), good.complete(b"y")]
        assert isinstance(answers[0], Exception)
        assert answers[1] is Ack.OK
        assert (yield read()).state is State.IN_PROGRESS
        assert (yield bad.complete(b"x")) is Ack.OK

    @rule("P9", damages=True)
    def test_a_damaged_record_is_an_error_and_never_a_new_start(self) -> Script[None]:
        mine = yield from reach(State.COMPLETED)
        other = yield from won(A, OTHER)
        yield Corrupt(KEY.id)
        for ask in (claim(B), read(), release(force=True), forget(), mine.fail()):
            try:
                answer = yield ask
            except StoreError:
                continue
            raise AssertionError(f"{ask} on a damaged record was answered {answer}")
        answers = yield [claim(B), other.complete(b"y"), claim(B, Key("new"))]
        assert isinstance(answers[0], StoreError)
        assert answers[1] is Ack.OK
        assert answers[2].verdict is Verdict.WON
