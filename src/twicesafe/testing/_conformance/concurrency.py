"""Concurrency: many requests at once, in threads or tasks, on one store object or on two.

In any order, at most one claim is alive at any moment, and every "won" has its row (P1).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..._core.protocol import Ack, Claimed, ClaimRequest, Sweep, Verdict
from ..._values.keys import Key
from ..._values.records import State
from .bench import Advance, AtOnce, KeeperStores, Script
from .requests import A, B, Mine, claim, read, release, won
from .retention import expiring
from .rules import StoreRules, rule

__all__ = ["ConcurrencyRules"]

CROWD = [bytes([65 + number]) * 16 for number in range(16)]
ROUNDS = 5


def one_winner(asks: list[ClaimRequest], elsewhere: bool = False) -> Script[Mine]:
    """All of them at once: one wins, the others are busy, and the row is the winner's."""
    answers: list[Claimed] = yield AtOnce(asks, elsewhere)
    counted = Counter(answer.verdict for answer in answers)
    assert counted == {Verdict.WON: 1, Verdict.BUSY: len(asks) - 1}, counted
    ask, answer = next(
        pair for pair in zip(asks, answers, strict=True) if pair[1].verdict is Verdict.WON
    )
    row = yield read(ask.key)
    assert (row.owner, row.fence, row.attempt) == (ask.owner, answer.fence, answer.attempt)
    return Mine(ask.key.id, ask.owner, answer.fence, answer)


class ConcurrencyRules(StoreRules):
    @rule("P1")
    def test_a_storm_of_claims_has_one_winner(self) -> Script[None]:
        for number in range(ROUNDS):
            key = Key(f"storm-{number}")
            yield from one_winner([claim(owner, key) for owner in CROWD])

    @rule("P1", needs="shared")
    def test_a_storm_through_two_store_objects_has_one_winner(self) -> Script[None]:
        for number in range(ROUNDS):
            key = Key(f"storm-{number}")
            yield from one_winner([claim(owner, key) for owner in CROWD], elsewhere=True)

    @rule("P2")
    def test_a_storm_of_retries_is_one_claim(self) -> Script[None]:
        for number in range(ROUNDS):
            key = Key(f"retry-{number}")
            answers = yield AtOnce([claim(A, key)] * 16)
            for place in range(16):
                while answers[
                    place
                ].locked:  # it waited for the write of another one and decided nothing
                    answers[place] = yield claim(A, key)
            first = answers[0]
            assert first.verdict is Verdict.WON
            assert answers == [first] * 16
            assert (yield read(key)).attempt == 1

    @rule("P1", "P3")
    def test_a_storm_of_takeovers_has_one_winner(self) -> Script[None]:
        for number in range(ROUNDS):
            key = Key(f"lapsed-{number}")
            mine = yield from won(b"gone", key, lease=self.tick)
            yield Advance(self.tick)
            new = yield from one_winner([claim(owner, key) for owner in CROWD])
            assert (new.fence > mine.fence, new.answer.attempt) == (True, 2)

    @rule("P1", "P3", "P8")
    def test_a_storm_on_an_expired_record_has_one_winner(self) -> Script[None]:
        for number in range(ROUNDS):
            key = Key(f"expired-{number}")
            fence = yield from expiring(State.COMPLETED, self.tick, key)
            yield Advance(self.tick)
            new = yield from one_winner([claim(owner, key) for owner in CROWD])
            assert (new.fence > fence, new.answer.attempt) == (True, 1)

    @rule("P1", "P6")
    def test_a_sweep_never_takes_the_row_from_under_a_claim(self) -> Script[None]:
        """A race with a purge once produced claims without a row, in production."""
        for number in range(4 * ROUNDS):
            key = Key(f"purge-{number}")
            fence = yield from expiring(State.COMPLETED, self.tick, key)
            yield Advance(self.tick)
            asks: list[Any] = [claim(A, key), Sweep(1000), claim(B, key), Sweep(1000)]
            answers = yield AtOnce(asks, elsewhere=self.capabilities.shared)
            row = yield read(key)
            winner = next(a for a in (answers[0], answers[2]) if a.verdict is Verdict.WON)
            assert row is not None, "a claim was won and has no row"
            assert row.fence == winner.fence > fence

    @rule("P4")
    def test_a_late_owner_and_a_takeover_do_not_both_succeed(self) -> Script[None]:
        for number in range(2 * ROUNDS):
            key = Key(f"late-{number}")
            mine = yield from won(A, key, lease=self.tick)
            yield Advance(self.tick)
            asks: list[Any] = [claim(B, key), mine.complete(b"late")]
            taken, ack = yield AtOnce(asks if number % 2 else asks[::-1])
            if not number % 2:
                taken, ack = ack, taken
            row = yield read(key)
            if ack is Ack.OK:
                assert (taken.verdict, taken.result) == (Verdict.REPLAY, b"late")
                assert (row.state, row.owner) == (State.COMPLETED, A)
            else:
                assert (ack, taken.verdict) == (Ack.LOST, Verdict.WON)
                assert (row.state, row.owner) == (State.IN_PROGRESS, B)

    @rule("P3", "P4")
    def test_a_late_renewal_and_a_takeover_do_not_both_succeed(self) -> Script[None]:
        """A renewal that reads first and writes later would write the old owner over the new one."""
        for number in range(2 * ROUNDS):
            key = Key(f"renewed-{number}")
            mine = yield from won(A, key, lease=self.tick)
            yield Advance(self.tick)
            asks: list[Any] = [claim(B, key), mine.renew()]
            taken, ack = yield AtOnce(asks if number % 2 else asks[::-1])
            if not number % 2:
                taken, ack = ack, taken
            row = yield read(key)
            if ack is Ack.OK:
                assert taken.verdict is Verdict.BUSY
                assert (row.owner, row.fence) == (A, mine.fence)
            else:
                assert (ack, taken.verdict) == (Ack.LOST, Verdict.WON)
                assert (row.owner, row.fence) == (B, taken.fence)

    @rule("P3", "P4")
    def test_an_operator_and_the_owner_do_not_both_succeed(self) -> Script[None]:
        for number in range(2 * ROUNDS):
            key = Key(f"released-{number}")
            mine = yield from won(A, key)
            done, released = yield AtOnce([mine.complete(b"x"), release(key)])
            row = yield read(key)
            if done is Ack.OK:
                assert (released, row.state) == (Ack.REFUSED, State.COMPLETED)
            else:
                assert (done, released, row.state) == (Ack.LOST, Ack.OK, State.RELEASED)

    @rule("P1")
    def test_different_keys_do_not_disturb_each_other(self) -> Script[None]:
        keys = [Key(f"key-{number}") for number in range(32)]
        answers = yield AtOnce([claim(A, key) for key in keys])
        acks = yield AtOnce(
            [
                Mine(key.id, A, answer.fence, answer).complete(key.value.encode())
                for key, answer in zip(keys, answers, strict=True)
            ]
        )
        assert acks == [Ack.OK] * 32
        replays = yield AtOnce([claim(B, key) for key in keys])
        assert [answer.result for answer in replays] == [key.value.encode() for key in keys]

    @rule("P4")
    def test_a_storm_of_completions_records_one_result(self) -> Script[None]:
        for number in range(ROUNDS):
            key = Key(f"complete-{number}")
            mine = yield from won(A, key)
            results = [bytes([number]) for number in range(16)]
            acks = yield AtOnce([mine.complete(result) for result in results])
            assert acks == [Ack.OK] * 16
            replays = yield AtOnce([claim(B, key)] * 16)
            assert len({answer.result for answer in replays}) == 1
            assert (yield read(key)).result in results

    @rule()
    def test_all_threads_get_the_same_blocking_store(self) -> Script[None]:
        """Each further one would keep its connections and threads: only one is closed with the async store."""
        assert (yield KeeperStores(16)) == 1
