"""Copying: the record of another store is put here as it is, and never in place of a newer one.

Copies arrive late, twice and out of order, and beside claims of the same key.
"""

from __future__ import annotations

import itertools
from typing import Final

from msgspec.structs import replace

from ..._core.lifecycle import ORDER
from ..._core.protocol import Ack, Adopt, Browse, RaiseFences, Sweep, Verdict
from ..._values.keys import Key
from ..._values.records import Cause, Row, State
from .bench import Advance, AtOnce, Elsewhere, Script
from .requests import HOUR, KEY, OTHER, STATES, A, B, C, claim, reach, read, won
from .rules import StoreRules, rule

__all__ = ["CopyingRules"]

KEPT: Final = tuple(state for state in STATES if state is not State.FORGOTTEN)
UNANSWERED: Final = tuple(state for state in KEPT if state not in (State.COMPLETED, State.FAILED))
LARGE: Final = b"\xc1\0" * 5000


def copy_of(row: Row, state: State, **changes: object) -> Row:
    """The same record in another state, with the fields that this state has."""
    fields = {"lease_until": 0, "expires_at": 0, "result": None, "error": "", **changes}
    if state in (State.IN_PROGRESS, State.RELEASED):
        fields["lease_until"] = row.changed_at + 2 * HOUR
    if state in (State.COMPLETED, State.FAILED, State.RELEASED):
        fields["expires_at"] = row.changed_at + HOUR
    if state in (State.COMPLETED, State.FAILED):
        fields["result"] = b"theirs"
    if state is not State.COMPLETED and state is not State.IN_PROGRESS:
        fields["error"] = "Refused"
    return replace(row, state=state, **fields)


class CopyingRules(StoreRules):
    """Only with the capability ``copies``."""

    def _template(self) -> Script[Row]:
        """A record of another key, as this store writes it: its times are those of the store."""
        yield from won(A, OTHER, fingerprint=b"f" * 32, hold=True)
        row: Row = yield read(OTHER)
        return replace(
            row, id=KEY.id, scope=KEY.scope, value=KEY.value, attempt=3, cause=Cause.FAILED
        )

    @rule(needs="copies")
    def test_a_copy_is_the_record_as_it_was(self) -> Script[None]:
        row = yield from self._template()
        for fence, state in enumerate(KEPT, 70):
            copy = copy_of(row, state, fence=fence, cause=Cause.OPERATOR)
            assert (yield Adopt(copy)) is Ack.OK
            assert (yield read()) == copy

    @rule(needs="copies")
    def test_a_tombstone_is_copied_where_its_key_was_never_known(self) -> Script[None]:
        """A late duplicate of a forgotten key does not run here either."""
        row = yield from self._template()
        erased = {"scope": (), "value": "", "owner": b"", "hold": False, "cause": None}
        copy = copy_of(row, State.FORGOTTEN, fence=70, fingerprint=None, **erased)
        copy = replace(copy, error="", expires_at=row.changed_at + HOUR)
        assert (yield Adopt(copy)) is Ack.OK
        assert (yield read()) == copy
        assert (yield claim(B)).verdict is Verdict.FORGOTTEN
        [shown] = (yield Browse(10, states=(State.FORGOTTEN,))).rows
        assert shown == copy

    @rule(needs="copies")
    def test_a_copy_is_answered_and_continued_like_a_record_of_this_store(self) -> Script[None]:
        copy = copy_of((yield from self._template()), State.COMPLETED, fence=70)
        yield Adopt(replace(copy, result=LARGE))
        answer = yield claim(B, fingerprint=b"f" * 32)
        assert (answer.verdict, answer.result, answer.fence) == (Verdict.REPLAY, LARGE, 70)
        assert (yield claim(B, fingerprint=b"g" * 32)).verdict is Verdict.MISMATCH
        released = copy_of(copy, State.RELEASED, fence=71, cause=Cause.OPERATOR)
        assert (yield Adopt(replace(released, lease_until=1))) is Ack.OK
        mine = yield from won(B)
        assert mine.fence > 71
        assert mine.answer.attempt == 4
        assert (yield mine.complete()) is Ack.OK

    @rule("P3", needs="copies")
    def test_the_higher_fence_wins(self) -> Script[None]:
        """Whatever the states are."""
        for state in KEPT:
            key = Key(state.value)
            mine = yield from reach(state, key)
            row = yield read(key)
            for other in KEPT:
                older = copy_of(row, other, fence=mine.fence - 1, owner=B)
                assert (yield Adopt(older)) is Ack.LOST
                assert (yield read(key)) == row
            newer = copy_of(row, state, fence=mine.fence + 1, owner=B, cause=Cause.LEASE_EXPIRED)
            assert (yield Adopt(newer)) is Ack.OK
            assert (yield read(key)) == newer

    @rule("P4", needs="copies")
    def test_at_the_same_fence_the_later_state_wins(self) -> Script[None]:
        copy = yield from self._template()
        for state, other in itertools.product(KEPT, KEPT):
            copy = replace(copy, fence=copy.fence + 1)
            first, second = (copy_of(copy, each, cause=Cause.OPERATOR) for each in (state, other))
            yield Adopt(first)
            late = ORDER[other] < ORDER[state]
            assert (yield Adopt(second)) is (Ack.LOST if late else Ack.OK)
            assert (yield read()) == (second if ORDER[other] > ORDER[state] else first)

    @rule(needs="copies")
    def test_an_answer_stays_unless_an_operator_released_it(self) -> Script[None]:
        """The other store does not know the answer, and has begun or held the same work."""
        copy = yield from self._template()
        for answer in (State.COMPLETED, State.FAILED):
            copy = replace(copy, fence=copy.fence + 10)
            kept = copy_of(copy, answer)
            yield Adopt(kept)
            for fence, state in enumerate(UNANSWERED, copy.fence + 1):
                assert (yield Adopt(copy_of(copy, state, fence=fence))) is Ack.LOST
                assert (yield read()) == kept
        other = copy_of(copy, State.COMPLETED, fence=copy.fence + 5)
        assert (yield Adopt(other)) is Ack.OK
        released = copy_of(copy, State.RELEASED, fence=copy.fence + 6, cause=Cause.OPERATOR)
        assert (yield Adopt(released)) is Ack.OK
        assert (yield read()) == released

    @rule("P8", needs="copies")
    def test_an_answer_that_has_expired_is_replaced(self) -> Script[None]:
        copy = yield from self._template()
        ended = copy_of(copy, State.COMPLETED)
        yield Adopt(replace(ended, expires_at=copy.changed_at + self.tick))
        yield Advance(2 * self.tick)
        again = copy_of(copy, State.IN_PROGRESS, fence=copy.fence + 1)
        assert (yield Adopt(again)) is Ack.OK
        assert (yield read()) == again

    @rule(needs="copies")
    def test_a_repeat_changes_nothing_and_a_renewal_is_copied(self) -> Script[None]:
        copy = copy_of((yield from self._template()), State.IN_PROGRESS, fence=70)
        renewed = replace(copy, lease_until=copy.lease_until + HOUR)
        for each, kept in ((copy, copy), (renewed, renewed), (copy, renewed)):
            assert (yield Adopt(each)) is Ack.OK
            assert (yield read()) == kept

    @rule("P8", needs="copies")
    def test_an_expired_copy_is_not_put_where_there_is_none(self) -> Script[None]:
        copy = copy_of((yield from self._template()), State.COMPLETED)
        assert (yield Adopt(replace(copy, expires_at=1))) is Ack.OK
        assert (yield read()) is None

    @rule("P3", "P8", needs="copies")
    def test_an_expired_copy_ends_an_older_record(self) -> Script[None]:
        yield from won(A)
        row = yield read()
        ended = copy_of(row, State.COMPLETED, fence=row.fence + 5)
        assert (yield Adopt(replace(ended, expires_at=1))) is Ack.OK
        assert (yield read()) is None
        assert (yield from won(B)).fence > row.fence + 5

    @rule("P3", needs="copies")
    def test_a_conditional_copy_replaces_only_the_record_that_was_read(self) -> Script[None]:
        mine = yield from won(A)
        row = yield read()
        yield Advance(self.tick)
        higher = replace(row, fence=mine.fence + 100)
        assert (yield Adopt(higher, over=mine.fence + 1)) is Ack.LOST
        assert (yield read()) == row
        assert (yield Adopt(replace(row, id=C.ljust(32)), over=1)) is Ack.LOST
        assert (yield Adopt(higher, over=mine.fence)) is Ack.OK
        lifted = yield read()
        assert lifted == replace(higher, changed_at=lifted.changed_at)
        assert lifted.changed_at > row.changed_at
        assert (yield mine.complete()) is Ack.LOST
        assert (yield mine.replace(fence=mine.fence + 100).complete()) is Ack.OK

    @rule("P3", needs="copies")
    def test_copies_beside_claims_leave_the_newest(self) -> Script[None]:
        base = copy_of((yield from self._template()), State.COMPLETED)
        high = base.fence + 10**6
        copies = [Adopt(replace(base, fence=high + n, result=b"%d" % n)) for n in range(6)]
        yield AtOnce([*copies, claim(B), claim(C)], elsewhere=self.capabilities.shared)
        row = yield read()
        assert (row.fence, row.result) == (high + 5, b"5")

    @rule(needs="copies")
    def test_a_batch_of_copies_is_answered_one_by_one(self) -> Script[None]:
        base = copy_of((yield from self._template()), State.COMPLETED)
        ids = [bytes([n]) * 32 for n in range(20)]
        made = [replace(base, id=each, scope=(), value=each.hex(), fence=9) for each in ids]
        yield Adopt(replace(made[3], fence=10))
        answers = yield [Adopt(row) for row in made]
        assert answers == [Ack.LOST if n == 3 else Ack.OK for n in range(20)]

    @rule("P3", needs="copies")
    def test_raised_fences_are_below_those_of_new_keys(self) -> Script[None]:
        mine = yield from won(A)
        above = mine.fence + 10
        yield Advance(self.tick)
        assert (yield RaiseFences(above)) is Ack.OK
        assert (yield RaiseFences(mine.fence)) is Ack.OK
        assert (yield from won(A, OTHER)).fence > above
        if self.capabilities.shared:
            answer = yield Elsewhere(claim(B, Key("order-79")))
            assert answer.fence > above

    @rule("P3", needs="copies")
    def test_the_fence_of_a_swept_copy_is_not_used_again(self) -> Script[None]:
        copy = copy_of((yield from self._template()), State.COMPLETED, fence=70)
        yield Adopt(replace(copy, expires_at=copy.changed_at + self.tick))
        yield Advance(3 * self.tick)
        yield Sweep(100)
        assert (yield from won(B)).fence > 70
