"""Transaction mode: the programs for the caller's transaction (inbox). Only with ``transactions``.

Here they run in the store's own transactions (`Store.own_transaction`). They must decide as the lifecycle
table says, and tell the transaction that they entered from the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..._core.inbox_requests import Enter, Entered, Leave
from ..._core.protocol import Claimed, ClaimRequest, Complete, Fail, Read, Verdict
from ..._values.keys import Key
from ..._values.records import State
from ...errors import StoreError
from ...stores._base import Store
from .hooks import Place
from .rules import StoreRules

__all__ = ["TransactionModeRules"]

KEY = Key("joined", ("shop",))
A, B = b"a" * 16, b"b" * 16
DAY = 86_400_000


class _UndoneError(Exception):
    pass


class Joined:
    """A store, and its programs for the caller's transaction."""

    def __init__(self, store: Store, advance: Callable[[int], None]) -> None:
        self.store, self.advance = store, advance
        self._programs = store.in_transaction()

    def enter(self, owner: bytes = A, **more: Any) -> Entered:
        """Enter, in a transaction that commits."""
        entered: Entered = self.store.own_transaction(lambda: self._first(self._ask(owner, **more)))
        return entered

    def enter_several(self) -> list[Claimed]:
        """In one transaction: this key, and another one that is new."""
        asks = [self._ask(A), Enter(Key("another"), A, DAY, wait=1.0)]
        entered = self.store.own_transaction(lambda: self._programs.enter(asks, 1.0))
        return [one.answer for one in entered]

    def enter_and_leave(self, owner: bytes = A, result: bytes = b"x") -> Claimed:
        def both() -> Any:
            entered = yield from self._first(self._ask(owner))
            if entered.answer.verdict is Verdict.WON:
                assert (yield from self._programs.leave(self._end(owner, entered, result)))
            return entered.answer

        answer: Claimed = self.store.own_transaction(both)
        return answer

    def leave(self, owner: bytes, entered: Entered) -> bool:
        """Leave, in another transaction. (For an inbox, a missing mark is a False.)"""
        ask = self._end(owner, entered, b"late")
        try:
            left: bool = self.store.own_transaction(lambda: self._programs.leave(ask))
        except StoreError:
            return False
        return left

    def enter_and_roll_back(self) -> None:
        def undone() -> Any:
            yield from self._first(self._ask(A))
            raise _UndoneError

        with pytest.raises(_UndoneError):
            self.store.own_transaction(undone)

    def row(self) -> Any:
        return self.store.perform(Read(KEY.id))

    def _ask(self, owner: bytes, retention: int = DAY, **more: Any) -> Enter:
        return Enter(KEY, owner, retention, wait=1.0, **more)

    def _end(self, owner: bytes, entered: Entered, result: bytes) -> Leave:
        end = Complete(KEY.id, owner, entered.answer.fence, DAY, result)
        return Leave(end, entered.mark)

    def _first(self, ask: Enter) -> Any:
        return self._programs.enter_one(ask)


class TransactionModeRules(StoreRules):
    @pytest.fixture
    def joined(self, tmp_path: Path) -> Iterator[Joined]:
        if "blocking" not in self.modes:
            pytest.skip("tested on the blocking store: the async one has the same programs")
        place = Place(tmp_path)
        store = self.open_store(place)
        try:
            if not store.capabilities.transactions:
                pytest.skip("the store declares transactions=False")
            yield Joined(store, lambda ms: self.advance(place, ms))
        finally:
            store.close()
            self.tidy(place)

    def test_it_declares_the_sql_that_it_speaks(self, joined: Joined) -> None:
        """So that an inbox detects a connection to another engine."""
        assert joined.store.dialect in ("sqlite", "postgresql", "mysql")

    def test_what_is_accepted_is_completed_at_once(self, joined: Joined) -> None:
        assert joined.enter(done=True).answer.verdict is Verdict.WON
        assert joined.enter(B, done=True).answer.verdict is Verdict.REPLAY
        row = joined.row()
        assert (row.state, row.attempt, row.value) == (State.COMPLETED, 1, "joined")

    def test_what_is_left_is_the_answer(self, joined: Joined) -> None:
        first = joined.enter_and_leave(result=b"first")
        assert first.verdict is Verdict.WON
        again = joined.enter_and_leave(B)
        assert (again.verdict, again.result, again.fence) == (
            Verdict.REPLAY,
            b"first",
            first.fence,
        )

    def test_a_rollback_leaves_nothing(self, joined: Joined) -> None:
        joined.enter_and_roll_back()
        assert joined.row() is None
        assert joined.enter_and_leave(B).verdict is Verdict.WON

    def test_another_transaction_cannot_leave(self, joined: Joined) -> None:
        """The handler committed: the next transaction must not complete the record."""
        entered = joined.enter()
        assert not joined.leave(A, entered)
        assert joined.row().state is State.IN_PROGRESS
        assert joined.enter_and_leave(B).verdict is Verdict.HELD

    def test_a_live_claim_is_left_alone(self, joined: Joined) -> None:
        joined.store.perform(ClaimRequest(KEY, B, 60_000))
        assert joined.enter().answer.verdict is Verdict.BUSY

    def test_a_failed_attempt_is_followed_by_the_next(self, joined: Joined) -> None:
        won = joined.store.perform(ClaimRequest(KEY, B, 60_000))
        joined.store.perform(Fail(KEY.id, B, won.fence, 0, 5, DAY))
        answer = joined.enter_and_leave()
        assert (answer.verdict, answer.attempt) == (Verdict.WON, 2)
        assert answer.fence > won.fence

    def test_a_held_key_says_why(self, joined: Joined) -> None:
        won = joined.store.perform(ClaimRequest(KEY, B, 60_000))
        joined.store.perform(Fail(KEY.id, B, won.fence, 0, 5, DAY, "銀行 did not answer", True))
        held = Claimed(Verdict.HELD, reason="銀行 did not answer")
        assert joined.enter_and_leave() == held
        several = joined.enter_several()
        assert (several[0], several[1].verdict) == (held, Verdict.WON)

    def test_another_content_is_a_mismatch(self, joined: Joined) -> None:
        joined.enter(done=True, fingerprint=b"one")
        answer = joined.enter(B, done=True, fingerprint=b"two").answer
        assert answer.verdict is Verdict.MISMATCH

    def test_after_its_retention_it_runs_with_a_higher_fence(self, joined: Joined) -> None:
        first = joined.enter(done=True, retention=self.tick).answer
        joined.advance(2 * self.tick)
        second = joined.enter(B, done=True).answer
        assert second.verdict is Verdict.WON
        assert second.fence > first.fence
