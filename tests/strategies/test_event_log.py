"""The event log: appended once, at the expected version; readers miss nothing that commits late."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from tests.transactions.kinds import Door
from twicesafe import (
    FingerprintMismatchError,
    Key,
    StoreError,
    UsageError,
    VersionConflictError,
)
from twicesafe.strategies import AsyncEventLog, AsyncProjection, Event, EventLog, Projection


def log_of(door: Door) -> Any:
    return (AsyncEventLog if door.is_async else EventLog)()


@pytest.fixture
def logged(door: Door) -> Door:
    for _ in range(2):
        with door.transaction() as connection:
            door.end(log_of(door).create(connection))
    return door


def append(door: Door, stream: str, event: Any, **how: Any) -> Any:
    with door.transaction() as connection:
        return door.end(log_of(door).append(connection, stream, event, type="Paid", **how))


def read(door: Door, stream: str, **how: Any) -> list[Event]:
    with door.transaction() as connection:
        events: list[Event] = door.end(log_of(door).read(connection, stream, **how))
    return events


def test_events_come_back_as_they_were_in_order(logged: Door):
    for at in range(3):
        done = append(logged, "a", {"paid": at}, expected_version=at)
        assert (done.version, done.replayed) == (at + 1, False)
    append(logged, "A", b"\0 other stream", expected_version=0)
    events = read(logged, "a")
    assert [(e.version, e.type, e.data) for e in events] == [
        (1, "Paid", {"paid": 0}),
        (2, "Paid", {"paid": 1}),
        (3, "Paid", {"paid": 2}),
    ]
    assert [e.version for e in read(logged, "a", after=1, limit=1)] == [2]
    assert [e.data for e in read(logged, "A")] == [b"\0 other stream"]


def test_a_repeat_finds_its_event(logged: Door):
    first = append(logged, "a", {"paid": 5}, expected_version=0)
    append(logged, "a", {"paid": 6}, expected_version=1)
    again = append(logged, "a", {"paid": 5}, expected_version=0)
    assert (again.version, again.id, again.replayed) == (1, first.id, True)
    assert len(read(logged, "a")) == 2


@pytest.mark.parametrize("how", [{"expected_version": 0}, {"id": "x"}], ids=["version", "id"])
def test_a_repeat_in_another_order_of_fields_is_a_repeat(logged: Door, how: dict[str, Any]):
    first = append(logged, "a", {"paid": 5, "by": {"c": 1, "d": {2, 3}}}, **how)
    again = append(logged, "a", {"by": {"d": {3, 2}, "c": 1}, "paid": 5}, **how)
    assert (again.version, again.id, again.replayed) == (1, first.id, True)
    other = {"by": {"d": {3, 2}, "c": True}, "paid": 5}  # True is not 1
    with pytest.raises((VersionConflictError, FingerprintMismatchError)):
        append(logged, "a", other, **how)
    assert len(read(logged, "a")) == 1


@pytest.mark.parametrize("event", [{"rate": float("nan")}, Decimal("NaN")], ids=["float", "number"])
def test_what_equals_nothing_is_the_same_byte_by_byte(logged: Door, event: Any):
    for replayed in (False, True):
        assert append(logged, "a", event, expected_version=0).replayed is replayed


def test_an_id_of_ones_own_needs_no_version(logged: Door):
    paid = Key("tx-1").derive("paid")
    assert [append(logged, "a", 5, id=each).replayed for each in (paid, "x", paid)] == [
        False,
        False,
        True,
    ]
    assert [e.version for e in read(logged, "a")] == [1, 2]


def test_the_same_id_with_other_data_is_refused(logged: Door):
    append(logged, "a", 5, id="x")
    with pytest.raises(FingerprintMismatchError):
        append(logged, "a", 6, id="x")
    assert append(logged, "b", 6, id="x").version == 1  # another stream, another event


def test_another_version_than_expected_is_a_conflict_and_the_transaction_goes_on(logged: Door):
    append(logged, "a", 5, expected_version=0)
    with logged.transaction() as connection:
        for wrong in (0, 2):
            with pytest.raises(VersionConflictError):
                logged.end(log_of(logged).append(connection, "a", 6, expected_version=wrong))
        logged.end(log_of(logged).append(connection, "a", 7, expected_version=1))
    assert [e.data for e in read(logged, "a")] == [5, 7]


def test_a_projection_applies_each_event_once_and_can_be_replayed(logged: Door):
    with logged.transaction():
        logged.sql("CREATE TABLE totals (n INTEGER NOT NULL)")
    for at in range(5):
        append(logged, f"s{at % 2}", at, id=f"e{at}")

    def write(connection: Any, event: Event) -> Any:
        insert = f"INSERT INTO totals VALUES ({event.data})"
        return logged.asql(insert) if logged.is_async else logged.sql(insert)

    kind = AsyncProjection if logged.is_async else Projection
    totals: Any = kind(log_of(logged), "totals", write)

    def advance(limit: int) -> int:
        with logged.transaction() as connection:
            moved: int = logged.end(totals.advance(connection, limit))
        return moved

    def seen() -> list[int]:
        with logged.transaction():
            return [row[0] for row in logged.sql("SELECT n FROM totals ORDER BY n")]

    logged.begin()  # a runner that dies takes rows and position with it
    logged.end(totals.advance(logged.connection))
    logged.rollback()
    assert seen() == []
    assert [advance(2), advance(2), advance(2), advance(2)] == [2, 2, 1, 0]
    assert seen() == [0, 1, 2, 3, 4]
    with logged.transaction() as connection:
        position = logged.end(totals.position(connection))
        logged.sql("DELETE FROM totals")
        logged.end(totals.rewind(connection))
    assert advance(3) == 3
    with logged.transaction() as connection:
        logged.end(totals.rewind(connection, position))
    assert [advance(9), seen()] == [0, [0, 1, 2]]


def test_an_event_whose_function_has_not_run_is_not_applied(open_kind: Callable[[str], Door]):
    door = open_kind("sqlite3")
    log = EventLog()

    async def write(_: Any, __: Event) -> None:
        raise AssertionError("nothing awaits it")

    with door.transaction() as connection:
        log.create(connection)
        log.append(connection, "a", 1, id="e1")
    totals = Projection(log, "totals", write)
    with pytest.raises(UsageError, match="is async"), door.transaction() as connection:
        totals.advance(connection)
    with door.transaction() as connection:
        assert totals.position(connection) == (0, 0)


# --- more than one at a time ---------------------------------------------------------------------


class Race:
    """Two connections to one log, and a projection that collects what it is shown."""

    def __init__(self, open_kind: Callable[[str], Door], kind: str) -> None:
        self.one, self.two, self.reader = (open_kind(kind) for _ in range(3))
        self.log = EventLog()
        self.shown: list[str] = []
        self.projection = Projection(
            self.log, "all", lambda _, event: self.shown.append(f"{event.stream}{event.version}")
        )
        with self.one.transaction() as connection:
            self.log.create(connection)

    def follow(self) -> list[str]:
        with self.reader.transaction() as connection:
            self.projection.advance(connection)
        return self.shown


@pytest.fixture(params=["psycopg", "pymysql"])
def race(request: pytest.FixtureRequest, open_kind: Callable[[str], Door]) -> Race:
    return Race(open_kind, request.param)


def test_a_late_commit_with_a_lower_number_is_not_skipped(open_kind: Callable[[str], Door]):
    race = Race(open_kind, "psycopg")
    race.one.begin()
    race.log.append(race.one.connection, "slow", 1, id="x")  # draws its number first
    with race.two.transaction() as connection:
        race.log.append(connection, "fast", 1, id="x")
    assert race.follow() == []  # not past what may still come
    race.one.commit()
    assert race.follow() == ["slow1", "fast1"]


def test_a_stream_is_shown_in_order_whatever_the_order_of_transactions(
    open_kind: Callable[[str], Door],
):
    """The older transaction appends second: its id is lower, its event is later."""
    race = Race(open_kind, "psycopg")
    race.one.begin()
    race.one.sql("SELECT pg_current_xact_id()")
    with race.two.transaction() as connection:
        race.log.append(connection, "s", "first", expected_version=0)
    race.log.append(race.one.connection, "s", "second", expected_version=1)
    race.one.commit()
    assert race.follow() == ["s1", "s2"]


@pytest.mark.parametrize("which", ["twicesafe_events", "twicesafe_events_positions"])
def test_a_log_from_another_server_is_reported_until_its_ticks_are_reset(
    open_kind: Callable[[str], Door], which: str
):
    """Restored from a dump: what is appended here has lower ticks, and would be skipped."""
    race = Race(open_kind, "psycopg")
    with race.one.transaction() as connection:
        race.log.append(connection, "s", 1, id="x")
    assert race.follow() == ["s1"]
    with race.one.transaction() as connection:
        race.one.sql(f"UPDATE {which} SET tick = tick + 1000000")
        race.log.append(connection, "new", 1, id="x")
    with pytest.raises(StoreError, match="another server"):
        race.follow()
    with race.one.transaction() as connection:
        race.one.sql("UPDATE twicesafe_events SET tick = 0")
        race.projection.rewind(connection, (0, 1))  # it had applied the first
    assert race.follow() == ["s1", "new1"]


def test_what_the_projections_own_transaction_appended_is_from_here(
    open_kind: Callable[[str], Door],
):
    race = Race(open_kind, "psycopg")
    with race.one.transaction() as connection:
        race.log.append(connection, "s", 1, id="x")
        assert race.projection.advance(connection) == 0  # not past what may still come
    assert race.follow() == ["s1"]


def test_of_two_who_expect_the_same_version_one_appends(race: Race):
    race.one.begin()
    race.log.append(race.one.connection, "s", "mine", expected_version=0)
    begun, got = threading.Event(), []

    def other() -> None:
        try:
            with race.two.transaction() as connection:
                race.two.sql("SELECT 1")
                begun.set()
                race.log.append(connection, "s", "theirs", expected_version=0)
        except VersionConflictError as error:
            got.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    begun.wait(60)
    race.one.commit()
    thread.join(60)
    assert len(got) == 1
    assert race.follow() == ["s1"]


def test_many_appenders_lose_nothing_and_stay_in_order(race: Race, open_kind: Any):
    kind = "psycopg" if "postgres" in race.one.url else "pymysql"
    doors = [open_kind(kind) for _ in range(4)]

    def work(door: Door, who: int) -> None:
        for at in range(10):
            with door.transaction() as connection:
                race.log.append(connection, f"s{at % 3}", at, id=f"{who}-{at}")

    threads = [threading.Thread(target=work, args=(door, n)) for n, door in enumerate(doors)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        race.follow()
    while len(race.follow()) < 40:
        pass
    assert len(race.shown) == len(set(race.shown)) == 40
    for stream in ("s0", "s1", "s2"):
        versions = [int(each[2:]) for each in race.shown if each.startswith(stream)]
        assert versions == sorted(versions)


@dataclass
class Paid:
    amount: int


def test_rich_events_come_back_as_what_the_reader_declares(open_kind: Callable[[str], Door]):
    door = open_kind("sqlite3")
    log = EventLog()
    with door.transaction() as connection:
        log.create(connection)
        log.append(connection, "a", Paid(5), expected_version=0)
        found = log.read(connection, "a", declared=Paid)
    assert [(event.type, event.data) for event in found] == [("Paid", Paid(5))]


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"expected_version": -1},
        {"expected_version": "0"},
        {"id": ""},
        {"id": "x" * 256},
        {"id": "\ud800"},
    ],
)
def test_nonsense_is_refused(how: dict[str, Any], open_kind: Callable[[str], Door]):
    door = open_kind("sqlite3")
    with pytest.raises(UsageError), door.transaction() as connection:
        EventLog().append(connection, "a", 1, **how)
