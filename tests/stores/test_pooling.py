"""The pool: bounded, patient, and no interrupt anywhere takes a place away."""

from __future__ import annotations

import itertools
import threading
from contextlib import suppress
from typing import Any

import pytest

from tests.polling import until
from tests.stores.sudden import begin, suddenly
from twicesafe._engines.sql import connection_pool as module
from twicesafe._engines.sql.connection_pool import Pool
from twicesafe.errors import StoreUnavailableError


class Connection:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def use(pool: Pool[Connection]) -> Connection:
    with pool.connection() as connection:
        assert not connection.closed
        return connection


def test_the_last_one_back_is_the_first_one_out():
    pool = Pool(Connection, 3, 1)
    with pool.connection() as first, pool.connection() as second:
        assert first is not second
    assert use(pool) is use(pool) is first


def test_a_caller_that_waits_too_long_gets_an_error():
    pool = Pool(Connection, 2, 0.1)
    with (
        pool.connection(),
        pool.connection(),
        pytest.raises(StoreUnavailableError, match=r"all 2 connections were busy for 0\.1 s"),
    ):
        use(pool)


def test_a_waiter_gets_a_returned_connection_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LOOK", 60)
    pool = Pool(Connection, 1, 60)
    with pool.connection() as only:
        waits = [begin(lambda: use(pool)) for _ in range(5)]
        until(lambda: len(pool._waiting) == 5)
    assert {wait() for wait in waits} == {only}


def test_a_connection_that_broke_is_not_used_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LOOK", 60)
    pool = Pool(Connection, 1, 60)
    with suppress(ValueError), pool.connection() as broken:
        wait = begin(lambda: use(pool))
        until(lambda: len(pool._waiting) == 1)
        raise ValueError("broken")
    assert broken.closed
    assert wait() is not broken


def test_an_outage_ends_what_is_idle_too():
    pool = Pool(Connection, 2, 1)
    with pool.connection() as idle, pool.connection():
        pass
    idle = pool._idle[0].connection
    with pytest.raises(StoreUnavailableError), pool.connection():
        raise StoreUnavailableError("gone")
    assert idle is not None
    assert idle.closed
    assert not pool._idle


def test_who_cannot_connect_leaves_the_place_to_others():
    doors: list[Any] = [ConnectionError, ConnectionError, Connection]

    def connect() -> Connection:
        found = doors.pop(0)()
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]

    pool = Pool(connect, 1, 0.1)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            use(pool)
    assert use(pool)


def test_never_more_than_its_places():
    born: list[Connection] = []

    def connect() -> Connection:
        born.append(Connection())
        return born[-1]

    pool = Pool(connect, 3, 30)
    together, most, lock = 0, 0, threading.Lock()

    def work() -> bool:
        nonlocal together, most
        for _ in range(200):
            with pool.connection():
                with lock:
                    together += 1
                    most = max(most, together)
                with lock:
                    together -= 1
        return True

    ends = [begin(work) for _ in range(12)]
    assert all(end() for end in ends)
    assert most <= 3
    assert len(born) <= 3


@pytest.mark.parametrize("state", ["new", "idle", "fails"])
def test_an_interrupt_anywhere_leaves_every_place_free(state: str):
    def work(pool: Pool[Connection]) -> None:
        with pool.connection():
            if state == "fails":
                raise StoreUnavailableError("gone")

    def attempt(pool: Pool[Connection]) -> None:
        try:
            work(pool)
        except StoreUnavailableError:
            return

    for moment in itertools.count(1):
        pool = Pool(Connection, 1, 0.2)
        if state != "new":
            use(pool)
        met = suddenly(module, moment, lambda pool=pool: attempt(pool)) is not None
        assert use(pool)
        if not met:
            break
    assert moment > 4


def test_an_interrupt_of_one_who_waits_costs_the_others_nothing_but_a_moment():
    for moment in itertools.count(1):
        pool = Pool(Connection, 1, 10)
        over = threading.Event()

        def interrupted(pool: Any = pool, moment: int = moment, over: Any = over) -> bool:
            met = suddenly(module, moment, lambda: use(pool)) is not None
            over.set()
            return met

        with pool.connection():
            met = begin(interrupted)
            until(lambda pool=pool, over=over: pool._waiting or over.is_set())
            other = begin(lambda pool=pool: use(pool))
        assert other()
        assert use(pool)
        if not met():
            break
    assert moment > 10
