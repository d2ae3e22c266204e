"""Two deliveries of one key at once, and the two modes on one key: each honours the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.inbox.conftest import Shop
from twicesafe import (
    HeldError,
    Key,
    ParkedError,
    Policy,
    State,
    StillInProgressError,
)

BLOCKING = [
    "psycopg",
    "pymysql",
]
"""On SQLite a writer is alone from its BEGIN IMMEDIATE on."""


@pytest.mark.parametrize("kind", BLOCKING)
def test_a_duplicate_waits_for_the_first_and_replays(shop_of: Callable[[str], Shop], kind: str):
    shop = shop_of(kind)
    outcomes: list[Any] = []
    entered, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        entered.set()
        assert go_on.wait(60)
        return "first"

    def first() -> None:
        door = shop.another()
        with door.transaction():
            outcomes.append(shop.process("m-1", slow, door=door))

    def second() -> None:
        door = shop.another()
        with door.transaction():
            outcomes.append(shop.process("m-1", lambda: "second", door=door))

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert entered.wait(60)
    threads[1].start()
    threads[1].join(0.2)
    assert threads[1].is_alive()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert sorted((o.value, o.replayed) for o in outcomes) == [("first", False), ("first", True)]


@pytest.mark.parametrize("kind", BLOCKING)
def test_a_duplicate_takes_over_when_the_first_rolls_back(
    shop_of: Callable[[str], Shop], kind: str
):
    shop = shop_of(kind)
    one, two = shop.another(), shop.another()
    one.begin()
    assert shop.accept("m-1", one)
    verdicts: list[bool] = []

    def second() -> None:
        with two.transaction():
            verdicts.append(shop.accept("m-1", two))

    thread = threading.Thread(target=second)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    one.rollback()
    thread.join(60)
    assert verdicts == [True]


def test_a_duplicate_that_may_not_wait_is_refused(lean_shop: Shop):
    shop = lean_shop
    hasty = shop.make(policy=Policy(in_flight="reject"))
    one, two = shop.another(), shop.another()
    one.begin()
    assert shop.accept("m-1", one)
    if shop.url.startswith("sqlite"):  # it waits at its BEGIN IMMEDIATE already
        with pytest.raises(Exception, match="locked"):
            two.begin()
    else:
        two.begin()
        with pytest.raises(StillInProgressError, match="another transaction") as caught:
            shop.accept("m-1", two, hasty)
        assert caught.value.retryable
        assert "in time" not in str(caught.value)  # nothing waited
        two.rollback()
    one.commit()
    with two.transaction():
        assert not shop.accept("m-1", two, hasty)


def test_the_callers_lock_timeout_is_as_it_was(shop_of: Callable[[str], Shop]):
    shop = shop_of("psycopg")
    with shop.door.transaction():
        shop.door.sql("SET LOCAL lock_timeout = '1234ms'")
        shop.process("m-1", shop.credit())
        shop.accept_many(["a", "b", "c"])
        assert shop.door.sql("SHOW lock_timeout") == [("1234ms",)]
    assert shop.door.sql("SHOW lock_timeout") == [("0",)]
    shop.door.rollback()


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_isolation_of_the_callers_choice(shop_of: Callable[[str], Shop], level: str):
    shop = shop_of("psycopg")
    one, two = shop.another(), shop.another()
    one.sql(f"SET TRANSACTION ISOLATION LEVEL {level}")
    one.sql("SELECT count(*) FROM credits")  # its snapshot is taken
    with two.transaction():
        shop.process("m-1", shop.credit(1, two), door=two)
    with pytest.raises(StillInProgressError):
        shop.process("m-1", shop.credit(2, one), door=one)
    one.rollback()
    one.sql(f"SET TRANSACTION ISOLATION LEVEL {level}")
    assert shop.process("m-1", shop.credit(3, one), door=one).replayed
    one.commit()
    assert shop.credits == [1]


# --- both modes on one key ---------------------------------------------------------------------


def test_what_a_receiver_completed_is_replayed(lean_shop: Shop):
    shop = lean_shop
    shop.receiver.process("m-1", lambda: "by lease")
    with shop.door.transaction():
        assert shop.process("m-1", shop.credit()).value == "by lease"
        assert not shop.accept("m-1")
    assert shop.credits == []


def test_what_a_receiver_is_working_on_is_left_to_it(lean_shop: Shop):
    shop = lean_shop
    with shop.receiver.claim("m-1") as claim:
        with pytest.raises(StillInProgressError) as told, shop.door.transaction():
            shop.process("m-1", shop.credit())
        assert "wait=" not in str(told.value)  # an inbox waits for transactions, not for leases
        claim.complete("by lease")
    with shop.door.transaction():
        assert shop.process("m-1", shop.credit()).value == "by lease"


def test_what_a_receiver_failed_at_is_run_with_the_next_fence(lean_shop: Shop):
    shop = lean_shop

    def fail() -> None:
        raise ValueError

    from twicesafe import Backoff

    quick = shop.receiver.options(policy=Policy(backoff=Backoff(first=0)))
    with pytest.raises(ValueError):  # noqa: PT011
        quick.process("m-1", fail)
    before = shop.receiver.record("m-1")
    assert before is not None
    with shop.door.transaction():
        outcome = shop.process("m-1", shop.credit(4))
    assert (outcome.attempt, outcome.replayed) == (2, False)
    assert outcome.fence > before.fence
    after = shop.receiver.record("m-1")
    assert after is not None
    assert (after.state, after.cause) == (State.COMPLETED, "failed")


def test_held_parked_and_forgotten_are_honoured(lean_shop: Shop):
    shop = lean_shop
    crowded = shop.receiver.options(policy=Policy(max_attempts=1))

    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        crowded.process("parked", fail)
    with pytest.raises(ParkedError), shop.door.transaction():
        shop.accept("parked")
    shop.receiver.process("forgotten", lambda: 1)
    shop.receiver.forget("forgotten")
    with shop.door.transaction():
        assert not shop.accept("forgotten")


def test_fences_never_restart_after_a_sweep(lean_shop: Shop):
    shop = lean_shop
    brief = shop.make(policy=Policy(retention=0.001))
    fences = []
    for _ in range(3):
        with shop.door.transaction():
            fences.append(shop.process("m-1", shop.credit(), inbox=brief).fence)
        while shop.receiver.record("m-1") is not None:  # its millisecond is not over
            pass
        shop.receiver.sweep()
    assert fences == sorted(set(fences))


def test_operators_see_and_release_what_an_inbox_recorded(lean_shop: Shop):
    shop = lean_shop
    billing = shop.make(consumer="billing")
    with shop.door.transaction():
        shop.process("m-1", shop.credit(1), inbox=billing)
    key = Key("m-1", ("billing",))
    assert shop.receiver.stats().by_state[State.COMPLETED] == 1
    (shown,) = shop.receiver.records(scope=("billing",))
    assert (shown.value, shown.result_bytes is None) == ("m-1", False)
    shop.receiver.release(key, by="ann", why="wrong price", force=True)
    with shop.door.transaction():
        outcome = shop.process("m-1", shop.credit(2), inbox=billing)
    assert outcome.fence > 1
    assert shop.credits == [1, 2]


def test_a_receiver_finds_an_unfinished_record_of_an_inbox_held(lean_shop: Shop):
    """Only a handler that committed by itself leaves one: half of its work is there."""
    shop = lean_shop
    with shop.door.transaction(), pytest.raises(ZeroDivisionError):  # and yet it commits
        shop.process("m-1", lambda: 1 // 0)
    with pytest.raises(HeldError):
        shop.receiver.process("m-1", lambda: 1)
