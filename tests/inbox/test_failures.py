"""Failures: rolled back with everything, counted and remembered outside, parked in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.inbox.conftest import Shop
from twicesafe import (
    NotStorableError,
    ParkedError,
    Policy,
    Receiver,
    RememberedFailureError,
    ResultUnavailableError,
    State,
    StillInProgressError,
    TooLargeError,
    current_claim,
    events,
)


def fail(*_: Any) -> None:
    raise ValueError("no such account")


def test_attempts_are_counted_outside_and_the_poison_is_parked(lean_shop: Shop):
    shop = lean_shop
    inbox = shop.make(policy=Policy(max_attempts=3))
    for _ in range(3):
        with pytest.raises(ValueError, match="no such"), shop.door.transaction():
            shop.process("m-1", fail, inbox=inbox)
    with pytest.raises(ParkedError, match="max_attempts=3"), shop.door.transaction():
        shop.process("m-1", shop.credit(), inbox=inbox)
    record = shop.noted("m-1", inbox)
    assert (record.state, record.attempt, record.error) == (State.PARKED, 3, "ValueError")
    shop.receiver.release("m-1", by="ann", why="fixed")
    with shop.door.transaction():
        assert shop.process("m-1", shop.credit(5), inbox=inbox).attempt == 1
    assert shop.credits == [5]


def test_a_failure_that_is_the_answer_is_kept_in_a_transaction_of_its_own(lean_shop: Shop):
    shop = lean_shop
    inbox = shop.make(policy=Policy(remember=(ValueError,)))

    def credit_and_fail(*_: Any) -> Any:
        if not shop.door.is_async:
            shop.door.sql("INSERT INTO credits VALUES (1, 1)")
            return fail()

        async def work() -> None:
            await shop.door.asql("INSERT INTO credits VALUES (1, 1)")
            fail()

        return work()

    with pytest.raises(ValueError, match="no such"), shop.door.transaction():
        shop.process("m-1", credit_and_fail, inbox=inbox)
    with (
        pytest.raises(RememberedFailureError, match="no such account"),
        shop.door.transaction(),
    ):
        shop.process("m-1", shop.credit(), inbox=inbox)
    assert shop.credits == []
    assert shop.noted("m-1", inbox).state is State.FAILED


@pytest.mark.parametrize(
    "value, error", [(object(), NotStorableError), ("x" * 3000, TooLargeError)]
)
def test_a_result_that_cannot_be_stored_is_refused_before_the_commit(
    lean_shop: Shop, value: object, error: type[Exception]
):
    shop = lean_shop
    inbox = shop.make(policy=Policy(max_result_bytes=2000))
    with pytest.raises(error, match="nothing was recorded"), shop.door.transaction():
        shop.process("m-1", lambda: value, inbox=inbox)
    optional = shop.make(policy=Policy(max_result_bytes=2000), results="optional")
    with shop.door.transaction():
        assert shop.process("m-1", lambda: value, inbox=optional).value is value
    with pytest.raises(ResultUnavailableError), shop.door.transaction():
        shop.process("m-1", shop.credit(), inbox=optional)


QUOTAS = {
    "sqlite": "CREATE TRIGGER quota BEFORE INSERT ON twicesafe_results WHEN length(NEW.body) > 100000"
    " BEGIN SELECT RAISE(ABORT, 'over the quota'); END",
    "postgresql": "ALTER TABLE twicesafe_keys ADD CHECK (octet_length(result) < 100000)",
    "mysql": "ALTER TABLE twicesafe_keys ADD CONSTRAINT quota CHECK (OCTET_LENGTH(result) < 100000)",
}
"""How a database says no to a large result, and to nothing else."""


@pytest.mark.parametrize("results", ["required", "optional"])
def test_a_result_that_the_database_refuses_is_an_error_and_no_effect(
    lean_shop: Shop, results: str
):
    shop = lean_shop
    inbox = shop.make(policy=Policy(max_attempts=2, max_result_bytes=10**6), results=results)
    with shop.door.transaction():
        shop.process("m-0", shop.credit(5), inbox=inbox)  # the tables are there now
    with shop.door.transaction():
        shop.door.sql(QUOTAS[shop.url.partition(":")[0].partition("+")[0]])
    credit = shop.credit(1)

    def heavy(*_: Any) -> Any:
        done = credit()
        if not shop.door.is_async:
            return "x" * 200_000

        async def work() -> str:
            await done
            return "x" * 200_000

        return work()

    for _ in range(2):
        with pytest.raises(NotStorableError, match="refused"), shop.door.transaction():
            shop.process("m-1", heavy, inbox=inbox)
    with pytest.raises(ParkedError), shop.door.transaction():
        shop.process("m-1", heavy, inbox=inbox)
    assert shop.credits == [5]
    assert shop.noted("m-1", inbox).state is State.PARKED


@pytest.mark.parametrize("kind", ["pymysql", "asyncmy"])
def test_a_result_that_is_more_than_a_packet_is_no_outage(
    shop_of: Callable[[str], Shop], kind: str
):
    """The server would hang up in the middle of it, which looks like a server that went away."""
    shop = shop_of(kind)
    policy = Policy(max_attempts=2, max_result_bytes=10**9)
    (most,) = shop.another("pymysql").sql("SELECT @@max_allowed_packet")[0]
    required, optional = shop.make(policy=policy), shop.make(policy=policy, results="optional")

    def returning(value: str) -> Callable[..., Any]:
        credit = shop.credit(1)

        def work(*_: Any) -> str:
            credit()
            return value

        async def awaited(*_: Any) -> str:
            await credit()
            return value

        return awaited if shop.door.is_async else work

    heavy = returning("x" * (most + 1))
    for _ in range(2):
        with pytest.raises(TooLargeError, match="nothing was recorded"), shop.door.transaction():
            shop.process("m-1", heavy, inbox=required)
    with pytest.raises(ParkedError), shop.door.transaction():
        shop.process("m-1", heavy, inbox=required)
    assert shop.credits == []
    with shop.door.transaction():
        assert len(shop.process("m-2", heavy, inbox=optional).value) == most + 1
    with pytest.raises(ResultUnavailableError), shop.door.transaction():
        shop.process("m-2", heavy, inbox=optional)
    with shop.door.transaction():
        shop.process("m-3", returning("x" * 100_000), inbox=required)
    assert shop.credits == [1, 1]


def test_work_that_a_failed_attempt_left_running_has_lost_its_claim(lean_shop: Shop):
    shop = lean_shop
    claims: list[Any] = []

    def leave_work(*_: Any) -> None:
        claims.append(current_claim())
        fail()

    with pytest.raises(ValueError, match="no such"), shop.door.transaction():
        shop.process("m-1", leave_work)
    with pytest.raises(NotStorableError), shop.door.transaction():
        shop.process("m-1", lambda: claims.append(current_claim()) or object())
    with shop.door.transaction():
        shop.process("m-1", lambda: claims.append(current_claim()))
    assert [claim.lost for claim in claims] == [True, True, False]


def test_work_that_an_interrupted_attempt_left_running_has_lost_its_claim(lean_shop: Shop):
    """It is no failure: it is not counted, so the key is not parked, and no event says so."""
    shop = lean_shop
    stop = asyncio.CancelledError if shop.door.is_async else KeyboardInterrupt
    claims: list[Any] = []
    told: list[Any] = []
    inbox = shop.make(policy=Policy(max_attempts=1), observers=[told.append])

    def leave_work(*_: Any) -> Any:
        claims.append(current_claim())
        if not shop.door.is_async:
            raise stop

        async def work() -> None:
            raise stop

        return work()

    with pytest.raises(stop), shop.door.transaction():
        shop.process("m-1", leave_work, inbox=inbox)
    assert claims[0].lost
    assert [type(event) for event in told] == [events.Started, events.Failed]
    with shop.door.transaction():
        assert shop.process("m-1", shop.credit(2), inbox=inbox).attempt == 1


def test_a_success_between_failures_is_not_overwritten(lean_shop: Shop):
    shop = lean_shop
    one, two = shop.door, shop.another()
    one.begin()
    with pytest.raises(ValueError, match="no such"):
        shop.process("m-1", fail)
    one.rollback()
    with two.transaction():
        shop.process("m-1", shop.credit(2, two), door=two)
    assert shop.noted("m-1").state is State.COMPLETED


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg-async", "asyncmy", "aiosqlite"])
def test_cancelled_in_the_handler_nothing_is_left(shop_of: Callable[[str], Shop], kind: str):
    shop = shop_of(kind)

    async def main() -> None:
        started = asyncio.Event()

        async def hang() -> None:
            await shop.door.asql("INSERT INTO credits VALUES (1, 1)")
            started.set()
            await asyncio.Event().wait()

        await shop.door.abegin()  # type: ignore[attr-defined]
        task = asyncio.ensure_future(shop.inbox.process(shop.door.connection, "m-1", hang))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await shop.door.arollback()  # type: ignore[attr-defined]

    shop.door.end(main())
    assert shop.credits == []
    assert shop.receiver.record("m-1") is None  # no attempt failed: nothing is counted
    with shop.door.transaction():
        assert shop.process("m-1", shop.credit(2)).attempt == 1


def test_a_handler_that_accepts_its_own_key_gets_an_error(lean_shop: Shop):
    """Its record is not done yet, which would look like the work of a stopped worker."""
    shop = lean_shop

    def twice(many: bool) -> Callable[..., Any]:
        inbox, connection = shop.inbox, shop.door.connection
        return lambda *_: (
            inbox.accept_many(connection, ["m-0", "m-1"])
            if many
            else inbox.accept(connection, "m-1")
        )

    for many in (False, True):
        with (
            pytest.raises(StillInProgressError, match="already runs under"),
            shop.door.transaction(),
        ):
            shop.process("m-1", twice(many))
    with shop.door.transaction():
        assert shop.accept_many(["m-0", "m-2"]) == [True, True]


@pytest.mark.parametrize("how", ["accept", "accept_many", "process"])
def test_a_receivers_handler_may_use_its_key_in_an_inbox(lean_shop: Shop, how: str):
    """Their stores differ. Every delivery was refused, until the message was parked."""
    shop = lean_shop

    def handle() -> Any:
        with shop.door.transaction():
            match how:
                case "accept":
                    return shop.accept("m-1")
                case "accept_many":
                    return shop.accept_many(["m-1"])[0]
                case _:
                    return not shop.process("m-1", lambda *_: None).replayed

    with Receiver.open("memory://") as receiver:
        assert receiver.process(shop.inbox.key("m-1"), handle).value is True
    assert handle() is False


@pytest.mark.parametrize("how", ["accept", "accept_many", "process"])
def test_a_receivers_handler_that_uses_its_key_in_an_inbox_of_its_store_learns_why(
    lean_shop: Shop, how: str
):
    """The error named another delivery and said: retry later. There is none."""
    shop = lean_shop

    def handle() -> Any:
        with shop.door.transaction():
            match how:
                case "accept":
                    return shop.accept("m-1")
                case "accept_many":
                    return shop.accept_many(["m-1"])
                case _:
                    return shop.process("m-1", lambda *_: None)

    with pytest.raises(StillInProgressError, match=r"already runs under .*derive"):
        shop.receiver.process(shop.inbox.key("m-1"), handle)
