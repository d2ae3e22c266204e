"""A sweep passes, and another delivery comes, between any two statements of an inbox.

Deterministic: each program is run statement by statement, and the world changes in each gap once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.inbox.conftest import Shop
from twicesafe import Key, Policy, StillInProgressError
from twicesafe._core.driving import drive
from twicesafe._core.inbox_requests import DeferredWrite, Enter
from twicesafe._core.protocol import ClaimRequest, Fail, Verdict
from twicesafe._transactions import of
from twicesafe._values.keys import new_owner

KINDS = ["psycopg", "pymysql"]


class Gap:
    """Calls each of these before the statement with its number, once."""

    def __init__(self, acts: dict[int, Callable[[], None]]) -> None:
        self._acts = acts
        self._counted = itertools.count()

    def __call__(self) -> None:
        act = self._acts.pop(next(self._counted), None)
        if act is not None:
            act()

    @property
    def met(self) -> bool:
        return not self._acts


@pytest.fixture(params=KINDS)
def shop(request: pytest.FixtureRequest, shop_of: Callable[[str], Shop]) -> Shop:
    return shop_of(request.param)


def expire(shop: Shop) -> None:
    with shop.door.transaction():
        shop.door.sql("UPDATE twicesafe_keys SET expires_at = 1 WHERE expires_at > 0")


@pytest.mark.parametrize("done", [True, False], ids=["accept", "process"])
def test_the_callers_transaction_survives_a_sweep_in_every_gap(shop: Shop, done: bool):
    hasty = shop.make(policy=Policy(in_flight="reject"))
    mine, others = shop.another(), shop.another()
    gaps = 0
    pairs = [(first, then) for first in range(6) for then in range(first, 6)]
    for swept, came in pairs:
        name = f"m-{swept}-{came}"
        with others.transaction():
            assert shop.accept(name, others)
        expire(shop)
        with shop.door.transaction():  # so that a sweep need not wait until ours is over
            shop.door.sql("UPDATE twicesafe_meta SET floor = floor + 10")

        def sweep() -> None:
            shop.receiver.sweep()

        def come(name: str = name) -> None:
            # Our own transaction may hold the key by now.
            with suppress(StillInProgressError), others.transaction():
                shop.accept(name, others, hasty)

        def both(come: Callable[[], None] = come) -> None:
            sweep()
            come()

        gap = Gap({swept: both} if swept == came else {swept: sweep, came: come})
        mine.begin()
        transaction = of(mine.connection)
        inside = shop.inbox._runtime.programs_for(transaction)
        ask = Enter(shop.inbox.key(name), new_owner(), 86_400_000, 5, None, done)

        def perform(statement: Any, gap: Gap = gap, transaction: Any = transaction) -> Any:
            gap()
            return transaction.execute(statement)

        (entered,) = drive(inside.enter([ask], 0.1), perform, transaction.explained)
        assert entered.answer.verdict in (Verdict.WON, Verdict.REPLAY)
        assert mine.sql("SELECT 1") == [(1,)]  # it still takes statements
        mine.commit()
        gaps += gap.met
    assert gaps >= 1


def test_a_deferred_write_is_made_whatever_comes_in_between(shop: Shop):
    """In its own transaction: a unique violation would lose it."""
    hasty = shop.make(policy=Policy(in_flight="reject"))
    others = shop.another()
    gaps, store = 0, shop.receiver.store
    for number in itertools.count():
        key = Key(f"m-{number}")

        def meanwhile(key: Key = key) -> None:
            with suppress(StillInProgressError), others.transaction():
                shop.accept(key, others, hasty)

        gap = Gap({number: meanwhile})
        store._tap = lambda when, _, gap=gap: gap() if when == "before" else None  # type: ignore[attr-defined]
        owner = new_owner()
        note = DeferredWrite(
            ClaimRequest(key, owner, 5000, 5, False, None),
            Fail(key.id, owner, 0, 0, 5, 86_400_000, "no"),
        )
        try:
            store.own_transaction(lambda note=note: store.in_transaction("%s").write_deferred(note))
        finally:
            store._tap = None  # type: ignore[attr-defined]
        record = shop.receiver.record(key)
        assert record is not None
        if not gap.met:
            break
        gaps += 1
    assert gaps >= 3


def test_a_deferred_write_after_a_sweep_has_a_higher_fence(shop: Shop):
    """The key's record is gone, and its fence lives on in the floor alone."""
    for _ in range(3):
        with shop.door.transaction():
            fence = shop.process("m-1", lambda: 1).fence
        expire(shop)
    assert shop.receiver.sweep().removed == 1
    key, owner = shop.inbox.key("m-1"), new_owner()
    note = DeferredWrite(
        ClaimRequest(key, owner, 5000, 5, False, None),
        Fail(key.id, owner, 0, 0, 5, 86_400_000, "no"),
    )
    store = shop.receiver.store
    store.own_transaction(lambda: store.in_transaction("%s").write_deferred(note))
    record = shop.receiver.record("m-1")
    assert record is not None
    assert record.fence > fence
