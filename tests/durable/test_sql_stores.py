"""What durable runs cost and create on the SQL stores, and what happens while a statement is under way."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.durable.stores import SQL, fresh_url, opened
from tests.polling import until
from twicesafe import Key, SchemaVersionError
from twicesafe._core.durable.run_requests import (
    FindDue,
    LoadRun,
    RecordStep,
    Signal,
    StartRun,
    Submit,
    TidyRuns,
)
from twicesafe._core.outbox.requests import Fetch, Prepare, lane_of
from twicesafe._core.protocol import Ack, Complete, Read, Verdict
from twicesafe._engines.postgresql.request_kinds import step_values
from twicesafe._engines.sql.commands import Change, Query, atomically
from twicesafe._values.records import Row, State
from twicesafe._values.steps import Step, StepState

KEY = Key("order-7")
A, B = b"a" * 16, b"b" * 16


def start(owner: bytes = A, key: Key = KEY, lease: int = 60_000) -> StartRun:
    return StartRun(key, owner, lease, function="shop.checkout", arguments=b"j[]")


def step(fence: int, name: str, owner: bytes = A) -> RecordStep:
    return RecordStep(KEY.id, owner, fence, name, "run", result=b"r")


@pytest.fixture(params=SQL)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from fresh_url(request)


@pytest.fixture
def store(url: str) -> Iterator[Any]:
    with opened(url) as store:
        yield store


def with_option(url: str, option: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}"


# --- tables ----------------------------------------------------------------------------------


def test_without_migrations_the_error_says_what_to_run(url: str) -> None:
    with opened(url):
        pass  # the tables of records are there, those of runs are not
    with opened(with_option(url, "migrate=false&timeout=2")) as store:
        assert store.perform(LoadRun(KEY.id)) is None
        assert store.perform(FindDue(10, 1000)).runs == []
        assert store.perform(TidyRuns(10)) == (0, b"")
        with pytest.raises(SchemaVersionError, match=r"durable runs .*run: twicesafe migrate"):
            store.perform(start())
        with opened(url) as other:
            assert any("_runs: schema 0 → 1" in line for line in other.migrate())
            assert other.migrate() == []
        assert store.perform(start()).verdict is Verdict.WON


def test_processes_that_start_together_create_the_tables_once(url: str) -> None:
    def begin(number: int) -> None:
        with opened(url) as store:
            together.wait(60)
            answers.append(store.perform(start(key=Key(f"k{number}"))).verdict)

    together, answers = threading.Barrier(4), []
    with opened(url):
        threads = [threading.Thread(target=begin, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert answers == [Verdict.WON] * 4


# --- round trips -----------------------------------------------------------------------------


@contextmanager
def counted(store: Any) -> Iterator[list[Any]]:
    sent: list[Any] = []
    store._tap = lambda when, command: sent.append(command) if when == "before" else None
    yield sent
    store._tap = None


STATEMENTS = {"postgresql": (1, 3), "mysql": (4, 8), "sqlite": (5, 10)}
"""Of a start and of a takeover, at most. In a transaction, begin and commit are statements too."""


def test_a_start_is_one_transaction_and_a_step_is_one_statement(store: Any) -> None:
    store.perform(start(key=Key("warm")))
    new, takeover = STATEMENTS[store.dialect]
    with counted(store) as sent:
        mine = store.perform(start(lease=1))
    assert len(sent) <= new, sent
    for number in range(1000):
        with counted(store) as sent:
            assert store.perform(step(mine.fence, f"step-{number}")) is Ack.OK
        assert len(sent) == 1, sent
    with counted(store) as sent:
        taken = store.perform(start(B))
    assert len(taken.steps) == 1000
    assert len(sent) <= takeover, sent
    assert sum(isinstance(each, Query) and "steps" in each.sql for each in sent) == 1


# --- two at once -----------------------------------------------------------------------------


@contextmanager
def under_way(store: Any, program: Callable[[], Any]) -> Iterator[Any]:
    """The program has run in a transaction that ends with this block."""
    with store._pool.connection() as connection:
        execute = connection.perform if store.dialect == "postgresql" else connection.executor(None)
        work = atomically(program(), store.programs.begin)
        command, reply = next(work), None
        while command.sql != "COMMIT":
            reply = execute(command)
            command = work.send(reply)
        yield
        execute(command)


TWO = [each for each in SQL if each != "sqlite"]
"""SQLite has one writer at a time."""


@pytest.mark.parametrize("url", TWO, indirect=True)
def test_a_takeover_sees_the_step_that_is_under_way(store: Any) -> None:
    mine = store.perform(start(lease=1))
    with under_way(store, lambda: _lone_step(store, step(mine.fence, "charge"))):
        answer = store.perform(start(B))
        assert (answer.verdict, answer.locked) == (Verdict.BUSY, True)
    taken = won(store, B)
    assert [each.name for each in taken.steps] == ["charge"]


def _lone_step(store: Any, ask: RecordStep) -> Any:
    """The statement that records a step, in an open transaction."""
    programs = store.programs
    if store.dialect == "postgresql":
        sql, values = programs.runs.statements.record_step[0], step_values(ask, programs.identity)
        assert (yield Query(sql, values))
    else:
        assert (yield programs.runs.lone_step(ask))


def won(store: Any, owner: bytes) -> Any:
    """The answer of a start that is won, once what was under way has ended."""
    answers: list[Any] = []

    def is_won() -> bool:
        answers[:] = [store.perform(start(owner))]
        return answers[0].verdict is Verdict.WON

    until(is_won)
    return answers[0]


@pytest.mark.parametrize("url", TWO, indirect=True)
def test_a_run_that_starts_beside_its_signal_gets_it(store: Any) -> None:
    store.perform(start(key=Key("warm")))
    ask = Signal(KEY.id, "approval", b"jtrue", 60_000)
    with under_way(store, lambda: store.programs.runs.signal(ask)):
        answer = store.perform(start())
        assert (answer.verdict, answer.locked) == (Verdict.BUSY, True)
    mine = won(store, A)
    assert [(each.name, each.result) for each in mine.steps] == [("approval", b"jtrue")]
    run = store.perform(LoadRun(KEY.id))
    assert [each.fence for each in run.steps] == [mine.fence], "it belongs to this run"


@pytest.mark.parametrize("url", TWO, indirect=True)
def test_a_signal_beside_the_start_of_its_run_belongs_to_it(store: Any) -> None:
    """The start commits between the first look of the signal and its write."""
    store.perform(start(key=Key("warm")))
    ask = Signal(KEY.id, "approval", b"jtrue", 60_000)
    fences: list[int] = []

    def interrupted() -> Any:
        program = store.programs.runs.signal(ask)
        command = next(program)
        while True:
            reply = yield command
            if not fences and isinstance(command, Query) and "FOR UPDATE" in command.sql:
                fences.append(store.perform(start()).fence)
            try:
                command = program.send(reply)
            except StopIteration as end:
                return end.value

    assert store.own_transaction(interrupted) is True
    run = store.perform(LoadRun(KEY.id))
    assert [(each.name, each.fence) for each in run.steps] == [("approval", fences[0])]
    assert store.perform(FindDue(10, 1000)).runs == [], "its lease lasts"


@pytest.mark.parametrize("url", TWO, indirect=True)
def test_of_two_looks_at_once_one_gets_the_run(store: Any) -> None:
    store.perform(Submit(KEY, A, 60_000, function="shop.checkout", arguments=b"j[]"))
    found: list[Any] = []
    late = store.own_transaction(
        lambda: before_a_write(
            store.programs.runs.find_due(FindDue(10, 60_000)),
            lambda: found.extend(store.perform(FindDue(10, 60_000)).runs),
        )
    )
    assert [run.key for run in found] == [KEY]
    assert late.runs == []


@pytest.mark.parametrize("url", TWO, indirect=True)
def test_a_run_that_starts_while_the_last_one_is_removed_keeps_its_steps(store: Any) -> None:
    mine = store.perform(start(lease=1))
    store.perform(step(mine.fence, "charge"))
    store.perform(Complete(KEY.id, A, mine.fence, 1, b"x"))
    until(lambda: store.perform(Read(KEY.id)) is None)

    def again() -> None:
        fence = store.perform(start(B)).fence
        assert store.perform(step(fence, "ship", B)) is Ack.OK

    removed, _ = store.own_transaction(
        lambda: before_a_write(store.programs.runs.tidy_runs(TidyRuns(10)), again)
    )
    assert removed == 0
    assert [each.name for each in store.perform(LoadRun(KEY.id)).steps] == ["ship"]


def before_a_write(program: Any, meanwhile: Callable[[], None]) -> Any:
    """Run the program; `meanwhile` happens once, before the first statement that writes."""
    command, done = next(program), False
    while True:
        if not done and any(word in command.sql for word in ("UPDATE", "DELETE")):
            done = True
            meanwhile()
        reply = yield command
        try:
            command = program.send(reply)
        except StopIteration as end:
            assert done
            return end.value


def test_a_damaged_record_keeps_its_steps_and_hides_no_other(store: Any) -> None:
    mine = store.perform(start(lease=1))
    store.perform(step(mine.fence, "charge"))
    store.own_transaction(lambda: _only(Change(f"UPDATE {store.programs.records} SET state = 99")))
    store.perform(Submit(Key("other"), A, 60_000, function="shop.checkout", arguments=b"j[]"))
    found: list[str] = []

    def is_found() -> bool:
        found.extend(run.key.value for run in store.perform(FindDue(10, 60_000)).runs)
        return bool(found)

    until(is_found)
    assert found == ["other"]
    store.perform(TidyRuns(10))
    assert [each.name for each in store.perform(LoadRun(KEY.id)).steps] == ["charge"]


def _only(command: Any) -> Any:
    return (yield command)


class Unequal(Step):
    __hash__ = Step.__hash__

    def __eq__(self, other: object) -> bool:
        raise AssertionError("every step is compared with every other one")


def test_the_steps_of_an_older_record_are_dropped_in_one_pass(store: Any) -> None:
    """A key with 10,000 old steps took long to start again."""
    row = Row(b"k" * 32, (), "a", State.IN_PROGRESS, 2, 1, b"owner", 9, 5, 5)
    old = [Unequal(f"s{n}", "run", StepState.DONE, 1, 1, n, False, 1, 1) for n in range(3)]
    adopting = store.programs.runs._adopted(row, old)
    assert "DELETE" in next(adopting).sql
    with pytest.raises(StopIteration) as ended:
        adopting.send(3)
    assert ended.value.value == []


def test_many_due_runs_where_sqlite_takes_few_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Builds differ in how many values a statement may have: 999, 32,766, 250,000."""
    connect = sqlite3.connect

    def connect_limited(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_limited)
    keys = [Key(f"run-{number}") for number in range(1001)]
    with opened(f"sqlite:///{tmp_path / 'x.db'}") as store:
        store.perform_many([Submit(key, A, 60_000, function="f", arguments=b"j[]") for key in keys])
        assert len(store.perform(FindDue(2000, 60_000)).runs) == len(keys)
        store.outbox.perform(Prepare())
        lanes = [lane_of(key.value, "") for key in keys]
        assert store.outbox.perform(Fetch([0], 10, lanes)).rows == []
