"""Clocks that are set, sweeps, crowds and interrupts around an inbox: one effect, and its record."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.inbox.conftest import Shop
from tests.polling import until
from tests.transactions.kinds import Door
from twicesafe import FingerprintMismatchError, Outcome, Policy, StillInProgressError

CROWD = int(os.environ.get("TWICESAFE_CROWD", "20"))
HOUR = 3_600_000

SQLITE = pytest.param("sqlite3", id="sqlite")
SERVERS = [
    pytest.param("psycopg", id="postgresql"),
    pytest.param("pymysql", id="mariadb"),
]
ShopOf = Callable[[str], Shop]


# --- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize("kind", [SQLITE, *SERVERS])
def test_a_store_clock_that_is_set_in_mid_work_changes_nothing(
    shop_of: ShopOf, kind: str, hours: int
):
    """Its record is then an hour old, or of the next hour; retention is less than that."""
    shop = shop_of(kind)
    brief = shop.make(policy=Policy(retention=600))
    times = ("lease_until", "created_at", "changed_at", "expires_at")

    def work() -> str:
        moved = ", ".join(f"{name} = {name} + {hours * HOUR}" for name in times)
        shop.door.sql(f"UPDATE twicesafe_keys SET {moved}")
        shop.door.sql("INSERT INTO credits VALUES (1, 7)")
        return "done"

    with shop.door.transaction():
        assert shop.process("m-1", work, inbox=brief).value == "done"
    shop.receiver.sweep()
    with shop.door.transaction():
        again = shop.process("m-1", shop.credit(8), inbox=brief)
    assert (again.value, again.replayed) == ("done", True)
    assert shop.credits == [7]


@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize("kind", SERVERS)
def test_a_workers_clock_is_not_asked(
    shop_of: ShopOf, kind: str, hours: int, monkeypatch: pytest.MonkeyPatch
):
    shop = shop_of(kind)
    brief = shop.make(policy=Policy(retention=600))
    with shop.door.transaction():
        first = shop.process("m-1", shop.credit(1), inbox=brief)
    clock, nanoseconds = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: clock() + hours * 3600)
    monkeypatch.setattr(time, "time_ns", lambda: nanoseconds() + hours * HOUR * 1_000_000)
    with shop.door.transaction():
        assert shop.process("m-1", shop.credit(2), inbox=brief).replayed
        assert shop.process("m-2", shop.credit(3), inbox=brief).fence > 0
    shop.receiver.sweep()
    monkeypatch.undo()
    with shop.door.transaction():
        assert shop.process("m-1", shop.credit(4), inbox=brief).fence == first.fence
        assert shop.process("m-2", shop.credit(5), inbox=brief).replayed
    assert shop.credits == [1, 3]


@pytest.mark.parametrize("kind", [SQLITE, *SERVERS])
def test_a_sweep_beside_deliveries_leaves_no_bare_win(shop_of: ShopOf, kind: str):
    """Records of a millisecond, swept all the time: each run has an effect, and a higher fence.

    Deliveries pause until a sweep has removed a record: a sweep skips the row that a delivery locks.
    """
    shop = shop_of(kind)
    brief = shop.make(policy=Policy(retention=0.001))
    done = threading.Event()
    swept = 0

    def sweep() -> None:
        nonlocal swept
        while not done.is_set():
            swept += shop.receiver.sweep().removed

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    fences: list[int] = []
    try:
        for least in (1, 2, 3):
            for _ in range(10):
                outcome = patiently(shop, lambda: shop.process("m-1", shop.credit(), inbox=brief))
                if not outcome.replayed:
                    fences.append(outcome.fence)
            until(lambda least=least: swept >= least, 60)
    finally:
        done.set()
        sweeper.join(60)
    assert fences == sorted(set(fences))
    assert shop.credits == [1] * len(fences)


def patiently(shop: Shop, act: Callable[[], Outcome[Any]], door: Door | None = None) -> Any:
    """Again, while another caller has the key; on SQLite, while another connection writes."""
    door = door or shop.door
    until = time.monotonic() + 60
    while True:
        try:
            with door.transaction():
                return act()
        except Exception as error:
            busy = isinstance(error, StillInProgressError) or "locked" in str(error)
            if not busy or time.monotonic() > until:
                raise


# --- load ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SQLITE, *SERVERS])
def test_a_crowd_on_one_key_has_one_effect_and_one_answer(shop_of: ShopOf, kind: str):
    shop = shop_of(kind)
    together = threading.Barrier(CROWD)

    def one(number: int) -> Outcome[Any]:
        door = shop.another() if kind != "sqlite3" else shared_file(shop)
        together.wait(60)
        return patiently(
            shop, lambda: shop.process("m-1", shop.credit(number, door), door=door), door
        )

    with ThreadPoolExecutor(CROWD) as pool:
        outcomes = list(pool.map(one, range(CROWD)))
    (winner,) = [outcome for outcome in outcomes if not outcome.replayed]
    assert {outcome.value for outcome in outcomes} == {winner.value}
    assert [f"credited {amount}" for amount in shop.credits] == [winner.value]


def shared_file(shop: Shop) -> Door:
    """A connection of this thread's, which the test closes in its own."""
    import sqlite3

    door = shop.another()
    path = shop.url.removeprefix("sqlite:///")
    door.connection.close()
    door.connection = sqlite3.connect(
        path, isolation_level=None, timeout=120, check_same_thread=False
    )
    return door


@pytest.mark.parametrize("kind", SERVERS)
def test_other_content_that_comes_at_once_is_refused(shop_of: ShopOf, kind: str):
    """It waits for the first, and is then told; it never runs."""
    shop = shop_of(kind)
    one, two = shop.another(), shop.another()
    one.begin()
    assert shop.accept("m-1", one, fingerprint={"amount": 5})
    met: list[Exception] = []

    def second() -> None:
        two.begin()
        try:
            shop.accept("m-1", two, fingerprint={"amount": 6})
        except Exception as error:
            met.append(error)
        two.rollback()

    thread = threading.Thread(target=second)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    one.commit()
    thread.join(60)
    assert [type(error) for error in met] == [FingerprintMismatchError]


@pytest.mark.parametrize("kind", SERVERS)
def test_the_wait_for_a_key_is_bounded(shop_of: ShopOf, kind: str):
    shop, runs = shop_of(kind), []
    limited = shop.make(policy=Policy(wait=1))
    one, two = shop.another(), shop.another()
    one.begin()
    assert shop.accept("m-1", one)
    began = time.monotonic()
    with pytest.raises(StillInProgressError) as told, two.transaction():
        shop.process("m-1", lambda: runs.append(1), door=two, inbox=limited)
    assert told.value.retryable
    waited = time.monotonic() - began
    assert 0.9 < waited < 29  # not the half minute that is the default
    assert runs == []
    one.rollback()


# --- interrupts and loops ----------------------------------------------------------------------------


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("kind", [SQLITE, *SERVERS])
def test_an_interrupt_in_the_handler_leaves_nothing(
    shop_of: ShopOf, kind: str, interrupt: type[BaseException]
):
    shop = shop_of(kind)

    def work() -> None:
        shop.door.sql("INSERT INTO credits VALUES (1, 1)")
        raise interrupt

    with pytest.raises(interrupt), shop.door.transaction():
        shop.process("m-1", work)
    assert shop.credits == []
    assert shop.noted("m-1") is None  # no attempt failed: nothing is counted
    with shop.door.transaction():
        assert shop.process("m-1", shop.credit(2)).attempt == 1


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("aiosqlite", id="sqlite"),
        "asyncpg",
        "psycopg-async",
        "asyncmy",
    ],
)
def test_one_inbox_on_one_loop_after_another(shop_of: ShopOf, kind: str):
    """Each door has its own event loop; the first one's is closed."""
    shop = shop_of(kind)
    first, second = shop.another(), shop.another()
    with first.transaction():
        shop.process("m-1", shop.credit(1, first), door=first)
    with pytest.raises(ZeroDivisionError), first.transaction():
        shop.process("m-2", lambda: 1 // 0, door=first)
    first.close()
    shop._opened.remove(first.close)
    with second.transaction():
        assert shop.process("m-1", shop.credit(2, second), door=second).replayed
        assert shop.process("m-2", shop.credit(3, second), door=second).attempt == 2
    assert shop.credits == [1, 3]
