"""High-water marks, on every kind of connection."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.transactions.kinds import Door
from twicesafe import UsageError
from twicesafe.strategies import AsyncHighWaterMarks, HighWaterMarks


def marks(door: Door, consumer: str = "billing") -> Any:
    return (AsyncHighWaterMarks if door.is_async else HighWaterMarks)(consumer)


@pytest.fixture
def marked(door: Door) -> Door:
    for _ in range(2):  # twice is no error
        with door.transaction() as connection:
            door.end(marks(door).create(connection))
    return door


def advance(door: Door, sequence: int, producer: str = "p", consumer: str = "billing") -> bool:
    with door.transaction() as connection:
        new: bool = door.end(marks(door, consumer).advance(connection, producer, sequence))
    return new


def test_only_what_is_higher_is_new(marked: Door):
    assert [advance(marked, n) for n in (1, 1, 2, 7, 3, 7, 8)] == [
        True, False, True, True, False, False, True,
    ]  # fmt: skip
    with marked.transaction() as connection:
        assert marked.end(marks(marked).at(connection, "p")) == 8
        assert marked.end(marks(marked).at(connection, "q")) is None


def test_each_producer_and_each_consumer_has_its_own(marked: Door):
    names = ["p", "P", "p ", "é"]
    assert all(advance(marked, 5, producer=name) for name in names)
    assert advance(marked, 5, producer="p", consumer="shipping")
    assert not any(advance(marked, 5, producer=name) for name in names)


def test_a_rollback_takes_the_mark_back(marked: Door):
    marked.begin()
    assert marked.end(marks(marked).advance(marked.connection, "p", 1))
    marked.rollback()
    assert advance(marked, 1)


@pytest.mark.parametrize("kind_", ["psycopg", "pymysql"])
@pytest.mark.parametrize("second, new", [(6, True), (5, False), (4, False)])
def test_two_first_marks_at_once(
    kind_: str, second: int, new: bool, open_kind: Callable[[str], Door]
):
    """The second waits for the first to commit, and is judged by what that wrote."""
    one, two = open_kind(kind_), open_kind(kind_)
    with one.transaction() as connection:
        HighWaterMarks().create(connection)
    one.begin()
    assert HighWaterMarks().advance(one.connection, "p", 5)
    got: list[bool] = []
    asked = threading.Event()

    def other() -> None:
        with two.transaction() as connection:
            two.sql("SELECT 1")
            asked.set()
            got.append(HighWaterMarks().advance(connection, "p", second))

    thread = threading.Thread(target=other)
    thread.start()
    asked.wait(60)
    assert not got
    one.commit()
    thread.join(60)
    assert got == [new]


@pytest.mark.parametrize("producer, sequence", [("", 1), ("p", "1"), ("p", 2**64), ("p", True)])
def test_nonsense_is_refused(producer: str, sequence: Any, open_kind: Callable[[str], Door]):
    door = open_kind("sqlite3")
    with pytest.raises(UsageError), door.transaction() as connection:
        HighWaterMarks().advance(connection, producer, sequence)
