"""`steps.transact`: the effect of a step and its record are committed together, or neither is."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.durable import dying_transfers
from tests.durable.transacting import POLICY, Bank
from tests.polling import until
from tests.transactions.conftest import ENGINE_OF, NAMED
from tests.transactions.kinds import AsyncDoor
from twicesafe import (
    AtomicityBrokenError,
    CompensatedError,
    LeaseLostError,
    NotStorableError,
    ParkedError,
    Receiver,
    SchemaVersionError,
    State,
    StepMismatchError,
    Steps,
    UnsupportedByStoreError,
    UsageError,
    current_claim,
)
from twicesafe._transactions.idle_connection import AsyncBegun, Begun, begin_async
from twicesafe.stores.memory import MemoryStore


class Boom(Exception):  # noqa: N818
    pass


@pytest.fixture
def closing() -> Iterator[list[Callable[[], object]]]:
    opened: list[Callable[[], object]] = []
    yield opened
    for close in reversed(opened):
        close()


@pytest.fixture
def bank_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Bank]:
    def make(kind: str) -> Bank:
        engine = ENGINE_OF[kind]
        if engine == "sqlite":
            url = f"sqlite:///{tmp_path / 'shop.db'}?timeout=0.2"
        else:
            url = request.getfixturevalue(f"{engine}_url")
        return Bank(kind, url, request.getfixturevalue("closing"))

    return make


@pytest.fixture(params=NAMED)
def bank(request: pytest.FixtureRequest, bank_of: Callable[[str], Bank]) -> Bank:
    """Behind every kind of connection there is."""
    return bank_of(request.param)


LEAN = ["sqlite3", "aiosqlite", "psycopg", "asyncpg", "pymysql", "asyncmy"]


@pytest.fixture(params=LEAN)
def lean(request: pytest.FixtureRequest, bank_of: Callable[[str], Bank]) -> Bank:
    """One kind per engine and mode."""
    return bank_of(request.param)


def test_effect_and_record_are_committed_together(bank: Bank) -> None:
    credit, fails = bank.credit(), [True]

    def stop() -> str:
        if fails.pop():
            raise Boom
        return "stopped"

    fails.insert(0, False)

    def run(steps: Any, order: str) -> Any:
        first = yield steps.transact("credit", bank.door.connection, credit, order)
        last = yield steps.run("stop", bank.effect(stop))
        return [first, last]

    run = bank.durable(run)
    with pytest.raises(Boom):
        bank.call(run)
    assert bank.credits == 1
    until(lambda: bank.outside.record(run.key("a")).state is State.RELEASED)  # type: ignore[union-attr]
    assert bank.call(run) == ["credited", "stopped"]
    assert (bank.ran, bank.credits) == (1, 1), "the recorded step is not run again"


def test_a_function_that_raises_is_rolled_back(bank: Bank) -> None:
    def run(steps: Any, order: str) -> Any:
        yield steps.transact("credit", bank.door.connection, bank.credit(raises=Boom("no")))

    run = bank.durable(run)
    with pytest.raises(Boom):
        bank.call(run)
    assert bank.credits == 0
    with bank.door.transaction():  # the connection is idle, and can be used
        bank.door.sql("INSERT INTO credits (n, amount) VALUES (1, 1)")
    assert bank.credits == 1


def test_an_open_transaction_is_refused(bank: Bank) -> None:
    """It is begun after the claim of the run, which it would keep out on SQLite."""
    door = bank.door

    def run(steps: Any, order: str) -> Any:
        text = "INSERT INTO credits (n, amount) VALUES (1, 1)"
        yield door.abegin() if isinstance(door, AsyncDoor) else door.begin()
        yield door.asql(text) if door.is_async else door.sql(text)
        try:
            yield steps.transact("credit", door.connection, bank.credit())
        finally:
            yield door.arollback() if isinstance(door, AsyncDoor) else door.rollback()

    run = bank.durable(run)
    with pytest.raises(UsageError, match="idle"):
        bank.call(run)
    assert (bank.ran, bank.credits) == (0, 0)


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
def test_a_function_that_ends_the_transaction_itself_holds_the_run(lean: Bank, ends: str) -> None:
    def run(steps: Any, order: str) -> Any:
        options = steps.options(attempts=3)
        yield options.transact("credit", lean.door.connection, lean.credit(ends))

    run = lean.durable(run)
    with pytest.raises(AtomicityBrokenError, match=r"'credit'.*held") as raised:
        lean.call(run)
    assert raised.value.key == run.key("a")
    assert lean.outside.record(run.key("a")).state is State.HELD  # type: ignore[union-attr]
    assert (lean.ran, lean.credits) == (1, 1 if ends == "COMMIT" else 0)


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
def test_a_function_that_ends_the_transaction_itself_and_raises_holds_the_run(
    lean: Bank, ends: str
) -> None:
    """``with connection:`` commits. If the function then raised, the next attempt repeated what was committed."""

    def run(steps: Any, order: str) -> Any:
        credit = lean.credit(ends, raises=ConnectionError(111, "no mail server"))
        yield steps.options(attempts=3).transact("credit", lean.door.connection, credit)

    run = lean.durable(run)
    with pytest.raises(AtomicityBrokenError, match=r"'credit'.*held") as raised:
        lean.call(run)
    assert isinstance(raised.value.__cause__, ConnectionError)
    assert lean.outside.record(run.key("a")).state is State.HELD  # type: ignore[union-attr]
    assert (lean.ran, lean.credits) == (1, 1 if ends == "COMMIT" else 0)


def test_a_function_that_rolls_back_after_an_error_of_the_database_has_failed(lean: Bank) -> None:
    """The database may have rolled back by itself, as after a deadlock: nothing is held for that."""

    def run(steps: Any, order: str) -> Any:
        credit = lean.credit("ROLLBACK", "SELECT * FROM no_such_table")
        yield steps.transact("credit", lean.door.connection, credit)

    run = lean.durable(run)
    with pytest.raises(Exception, match="no_such_table"):
        lean.call(run)
    assert lean.outside.record(run.key("a")).state is State.RELEASED  # type: ignore[union-attr]
    assert (lean.ran, lean.credits) == (1, 0)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_worker_that_lost_the_run_rolls_back(lean: Bank, when: str) -> None:
    """Another worker's claim, written by hand: it changes the fence."""
    taken = f"UPDATE {lean.records} SET fence = fence + 1"

    def run(steps: Any, order: str) -> Any:
        if when == "before":
            other = lean.another()
            other.begin()
            other.sql(taken)
            other.commit()
            other.close()
        more = (taken,) if when == "meanwhile" else ()
        yield steps.transact("credit", lean.door.connection, lean.credit(*more))

    run = lean.durable(run)
    with pytest.raises(LeaseLostError) as raised:
        lean.call(run)
    assert raised.value.key == run.key("a")
    assert (lean.ran, lean.credits) == (0 if when == "before" else 1, 0)


def test_a_worker_that_is_overtaken_in_its_transaction_rolls_back(lean: Bank) -> None:
    """Nothing of ours locks the run before its step is recorded, so a takeover does not wait."""
    if lean.outside.store.capabilities.single_writer:
        pytest.skip("no other worker can write meanwhile")

    def take_over() -> None:
        other = lean.another()
        other.begin()
        other.sql(f"UPDATE {lean.records} SET fence = fence + 1")
        other.commit()
        other.close()

    credit = lean.credit()

    async def overtaken_async(connection: Any) -> Any:
        done = await credit(connection)
        take_over()
        return done

    def overtaken(connection: Any) -> Any:
        done = credit(connection)
        take_over()
        return done

    def run(steps: Any, order: str) -> Any:
        act = overtaken_async if lean.door.is_async else overtaken
        yield steps.transact("credit", lean.door.connection, act)

    with pytest.raises(LeaseLostError):
        lean.call(lean.durable(run))
    assert (lean.ran, lean.credits) == (1, 0)


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_whose_answer_is_lost(
    lean: Bank, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store says whether the step is recorded; the function runs again only if it is not."""
    cut = [True]
    commit, commit_async = Begun.commit, AsyncBegun.commit

    def blocking(self: Begun) -> None:
        if committed or not cut:
            commit(self)
        if cut:
            cut.clear()
            raise ConnectionResetError("cut")

    async def awaited(self: AsyncBegun) -> None:
        if committed or not cut:
            await commit_async(self)
        if cut:
            cut.clear()
            raise ConnectionResetError("cut")

    monkeypatch.setattr(Begun, "commit", blocking)
    monkeypatch.setattr(AsyncBegun, "commit", awaited)

    def run(steps: Any, order: str) -> Any:
        options = steps.options(attempts=2)
        return (yield options.transact("credit", lean.door.connection, lean.credit()))

    run = lean.durable(run)
    assert lean.call(run) == "credited"
    assert (lean.ran, lean.credits) == (1 if committed else 2, 1)


ASYNC = ["aiosqlite", "psycopg-async", "asyncpg", "asyncmy", "sa-async:sqlite+aiosqlite"]


@pytest.mark.parametrize("kind", ASYNC)
def test_a_task_that_is_cancelled_in_its_begin_leaves_the_connection_idle(
    kind: str, bank_of: Callable[[str], Bank], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server executes the BEGIN all the same. On SQLite no other worker could write any more."""
    bank, running = bank_of(kind), [True]

    async def cancelled(connection: Any) -> Any:
        if running:
            running.clear()
            asyncio.get_running_loop().call_soon(outer.cancel)
        return await begin_async(connection)

    monkeypatch.setattr("twicesafe._runtime.step_transaction.begin_async", cancelled)

    def run(steps: Any, order: str) -> Any:
        return (yield steps.transact("credit", bank.door.connection, bank.credit()))

    run = bank.durable(run)

    async def both() -> Any:
        nonlocal outer
        outer = asyncio.ensure_future(run("a"))
        with pytest.raises(asyncio.CancelledError):
            await outer
        return await run("a")

    outer: Any = None
    assert bank.door.end(both()) == "credited"
    assert (bank.ran, bank.credits) == (1, 1)


@pytest.mark.parametrize("kind", ASYNC)
@pytest.mark.parametrize("committed", [True, False])
def test_a_step_that_is_cancelled_in_its_commit_is_undone_if_it_was_committed(
    kind: str, committed: bool, bank_of: Callable[[str], Bank], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `TaskGroup` does that if another branch fails."""
    bank, commits, undone = bank_of(kind), asyncio.Event(), []
    commit = AsyncBegun.commit

    async def slow(self: AsyncBegun) -> None:
        commits.set()
        await asyncio.sleep(0)
        await (commit(self) if committed else self.rollback())

    monkeypatch.setattr(AsyncBegun, "commit", slow)

    async def undo(value: str) -> None:
        undone.append(value)

    async def fail() -> None:
        await commits.wait()
        raise Boom

    @bank.receiver.durable(key="order", scope=("bank",), policy=POLICY.replace(max_attempts=1))
    async def run(steps: Any, order: str) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(
                steps.transact("credit", bank.door.connection, bank.credit(), undo=undo)
            )
            group.create_task(fail())

    with pytest.raises(CompensatedError if committed else BaseExceptionGroup):
        bank.call(run)
    assert (undone, bank.credits) == (["credited"] * committed, committed)


@pytest.mark.parametrize("committed", [True, False])
def test_an_interrupt_in_the_commit_of_the_last_attempt_does_not_park_what_was_committed(
    lean: Bank, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, commit_async = Begun.commit, AsyncBegun.commit

    def blocking(self: Begun) -> None:
        if committed:
            commit(self)
        raise KeyboardInterrupt

    async def awaited(self: AsyncBegun) -> None:
        if committed:
            await commit_async(self)
        raise asyncio.CancelledError

    monkeypatch.setattr(Begun, "commit", blocking)
    monkeypatch.setattr(AsyncBegun, "commit", awaited)
    undone: list[str] = []

    def run(steps: Any, order: str) -> Any:
        undo = lean.effect(undone.append)
        yield steps.transact("credit", lean.door.connection, lean.credit(), undo=undo)

    run = lean.durable(run, policy=POLICY.replace(max_attempts=1))
    with pytest.raises((KeyboardInterrupt, asyncio.CancelledError)):
        lean.call(run)
    with pytest.raises(CompensatedError if committed else ParkedError):
        lean.call(run)
    assert (undone, lean.credits) == (["credited"] * committed, committed)


@pytest.mark.parametrize("kind", ["django:sqlite3", "django:postgresql"])
def test_a_hook_of_the_commit_that_raises_is_an_event(
    kind: str, bank_of: Callable[[str], Bank], caplog: pytest.LogCaptureFixture
) -> None:
    from django.db import transaction

    bank = bank_of(kind)
    credit = bank.credit()

    def hooked(connection: Any) -> Any:
        transaction.on_commit(_boom, using=connection.alias)
        return credit(connection)

    def run(steps: Any, order: str) -> Any:
        return (yield steps.transact("credit", bank.door.connection, hooked))

    assert bank.call(bank.durable(run)) == "credited"
    assert bank.credits == 1
    assert "operation=commit error=Boom" in caplog.text


@pytest.mark.parametrize("kind", ["django:sqlite3", "django:postgresql", "django:mysql"])
def test_a_rollback_that_django_is_asked_for_holds_the_run(
    kind: str, bank_of: Callable[[str], Bank]
) -> None:
    from django.db import transaction

    bank = bank_of(kind)
    credit = bank.credit()

    def refused(connection: Any) -> Any:
        done = credit(connection)
        transaction.set_rollback(True, using=connection.alias)
        return done

    def run(steps: Any, order: str) -> Any:
        yield steps.transact("credit", bank.door.connection, refused)

    run = bank.durable(run)
    with pytest.raises(AtomicityBrokenError, match="Django"):
        bank.call(run)
    assert bank.outside.record(run.key("a")).state is State.HELD  # type: ignore[union-attr]
    assert bank.credits == 0


@pytest.mark.parametrize(
    "kind, remedy", [("sqlite3", "check_same_thread"), ("django:sqlite3", "alias")]
)
def test_a_connection_that_cannot_change_threads_is_refused_with_a_remedy(
    kind: str, remedy: str, bank_of: Callable[[str], Bank]
) -> None:
    bank = bank_of(kind)

    def run(steps: Any, order: str) -> Any:
        yield steps.options(timeout=30).transact("credit", bank.door.connection, bank.credit())

    with pytest.raises(UsageError, match=remedy):
        bank.call(bank.durable(run))
    assert (bank.ran, bank.credits) == (0, 0)


def test_the_scoped_session_of_a_task_is_used(bank_of: Callable[[str], Bank]) -> None:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker

    bank = bank_of("sa-async:postgresql+asyncpg")
    make = async_sessionmaker(bank.door._engine)  # type: ignore[attr-defined]
    session = async_scoped_session(make, scopefunc=asyncio.current_task)

    async def credit(given: Any) -> str:
        assert given is session
        await given.execute(text("INSERT INTO credits (n, amount) VALUES (1, 5)"))
        return "credited"

    def run(steps: Any, order: str) -> Any:
        done = yield steps.transact("credit", session, credit)
        yield session.remove()
        return done

    assert bank.call(bank.durable(run)) == "credited"
    assert bank.credits == 1


def test_djangos_default_connection_is_used(
    bank_of: Callable[[str], Bank], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``from django.db import connection`` is a proxy of the connection of the current thread."""
    from django.db import connection, connections

    bank = bank_of("django:sqlite3")
    with contextlib.suppress(AttributeError):
        del connections["default"]  # an earlier test may have asked for it
    monkeypatch.setitem(connections.settings, "default", connections.settings[bank.door.alias])  # type: ignore[attr-defined]

    def credit(given: Any) -> str:
        with given.cursor() as cursor:
            cursor.execute("INSERT INTO credits (n, amount) VALUES (1, 5)")
        return "credited"

    def run(steps: Any, order: str) -> Any:
        return (yield steps.transact("credit", connection, credit))

    try:
        assert bank.call(bank.durable(run)) == "credited"
    finally:
        connections["default"].close()
        del connections["default"]
    assert bank.credits == 1


def test_other_arguments_under_a_recorded_name_are_refused(lean: Bank) -> None:
    cents = [5]

    def run(steps: Any, order: str) -> Any:
        yield steps.transact("credit", lean.door.connection, lean.credit(), cents[0])
        yield steps.run("stop", lean.effect(_boom))

    run = lean.durable(run)
    with pytest.raises(Boom):
        lean.call(run)
    cents[0] = 6
    until(lambda: lean.outside.record(run.key("a")).state is State.RELEASED)  # type: ignore[union-attr]
    with pytest.raises(StepMismatchError):
        lean.call(run)
    assert lean.credits == 1


def test_a_result_that_cannot_be_kept_is_rolled_back(lean: Bank) -> None:
    def run(steps: Any, order: str) -> Any:
        yield steps.transact("credit", lean.door.connection, lean.credit(value=object()))

    run = lean.durable(run)
    with pytest.raises(NotStorableError, match="rolled back"):
        lean.call(run)
    assert lean.credits == 0


def test_a_transaction_is_undone_like_any_step(lean: Bank) -> None:
    undone: list[Any] = []

    def undo(value: Any) -> None:
        undone.append(value)

    def run(steps: Any, order: str) -> Any:
        for n in range(2):
            yield steps.transact(
                f"credit-{n}", lean.door.connection, lean.credit(value=n), undo=lean.effect(undo)
            )
        yield steps.abort("refused")

    run = lean.durable(run)
    with pytest.raises(CompensatedError):
        lean.call(run)
    assert undone == [1, 0]


def test_a_probe_is_refused(lean: Bank) -> None:
    def run(steps: Any, order: str) -> Any:
        options = steps.options(probe=lambda: None)
        yield options.transact("credit", lean.door.connection, lean.credit())

    with pytest.raises(UsageError, match="probe"):
        lean.call(lean.durable(run))


def _boom() -> None:
    raise Boom


# --- the wrong database ----------------------------------------------------------------------


def _transacts(receiver: Receiver, connection: sqlite3.Connection) -> Any:
    @receiver.durable(key="order", scope=("bank",))
    def run(steps: Steps, order: str) -> None:
        steps.transact("credit", connection, lambda connection: None)

    return run


def test_a_store_without_transactions_refuses(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db")
    with pytest.raises(UnsupportedByStoreError, match=r"steps\.transact"):
        _transacts(Receiver(MemoryStore()), connection)("a")
    connection.close()


@pytest.mark.parametrize("error, opened", [(SchemaVersionError, False), (UsageError, True)])
def test_another_database_is_refused(tmp_path: Path, error: type[Exception], opened: bool) -> None:
    if opened:  # it has the tables, and not this run
        with Receiver.open(f"sqlite:///{tmp_path}/other.db") as other:
            _transacts(other, sqlite3.connect(":memory:")).submit("b")
    connection = sqlite3.connect(tmp_path / "other.db")
    with (
        Receiver.open(f"sqlite:///{tmp_path}/shop.db") as receiver,
        pytest.raises(error, match="database of the receiver"),
    ):
        _transacts(receiver, connection)("a")
    connection.close()


def test_a_connection_of_another_kind_is_refused(tmp_path: Path, postgres_url: str) -> None:
    import psycopg

    with (
        Receiver.open(f"sqlite:///{tmp_path}/shop.db") as receiver,
        psycopg.connect(postgres_url) as connection,
        pytest.raises(UsageError, match="receiver is on sqlite"),
    ):
        _transacts(receiver, connection)("a")


# --- the lease -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite3", "aiosqlite"])
def test_a_long_transaction_on_sqlite_keeps_out_renewals_and_takeovers(
    kind: str, bank_of: Callable[[str], Bank]
) -> None:
    """Renewals wait for the write lock and fail; no other worker can claim meanwhile; the lease is
    renewed by the transaction itself, so that the next step may start."""
    bank = bank_of(kind)

    async def outlive_async(connection: Any) -> str:
        await connection.execute("INSERT INTO credits (n, amount) VALUES (1, 5)")
        claim = current_claim()
        assert claim is not None
        await asyncio.to_thread(until, lambda: claim.lost)
        return "late"

    def outlive(connection: Any) -> str:
        connection.execute("INSERT INTO credits (n, amount) VALUES (1, 5)")
        claim = current_claim()
        assert claim is not None
        until(lambda: claim.lost)
        return "late"

    def run(steps: Any, order: str) -> Any:
        long = outlive_async if bank.door.is_async else outlive
        first = yield steps.transact("long", bank.door.connection, long)
        return [first, (yield steps.run("next", bank.effect(lambda: steps.attempt)))]

    run = bank.durable(run, policy=POLICY.replace(lease=0.5))
    assert bank.call(run) == ["late", 1]
    assert bank.credits == 1


# --- kills -----------------------------------------------------------------------------------


def test_money_is_moved_once_however_often_the_worker_is_killed(tmp_path: Path) -> None:
    url, script = f"sqlite:///{tmp_path}/shop.db", dying_transfers.__file__
    dying_transfers.prepare(url)
    moments = dying_transfers.moments(f"sqlite:///{tmp_path}/counted.db")
    for dies_at in range(moments):
        ended = subprocess.run(
            [sys.executable, script, url, str(dies_at), f"order-{dies_at}"],
            check=False,
            capture_output=True,
        )
        assert ended.returncode == 9, (dies_at, ended.stderr.decode())
    for dies_at in range(moments):
        assert dying_transfers.main(url, -1, f"order-{dies_at}") == "done"
    assert dying_transfers.balance(url) == moments * dying_transfers.CENTS
