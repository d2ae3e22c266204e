"""A store of the first layout: used as it is, migrated under load, killed on the way, refused afterwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.transactions.kinds import Door, open_door
from twicesafe import (
    AsyncReceiver,
    Inbox,
    Key,
    Outcome,
    Policy,
    Receiver,
    SchemaVersionError,
    State,
    StoreUnavailableError,
)
from twicesafe._core.protocol import ClaimRequest
from twicesafe._engines.sql import migrations
from twicesafe._engines.sql.layouts import NARROW, WIDE
from twicesafe._engines.sql.migrations import first_steps

ENGINES = {"sqlite": "sqlite3", "postgres": "psycopg", "mariadb": "pymysql"}
DIALECTS = {"sqlite": "sqlite", "postgres": "postgresql", "mariadb": "mysql"}


class Database:
    """One database with the tables of the first version, made as that version made them."""

    def __init__(self, engine: str, url: str, version: int = 1) -> None:
        self.engine, self.url = engine, url
        with self.door() as door, door.transaction():
            for part in range(version):
                for statement in first_steps(DIALECTS[engine], "twicesafe", part + 1, part):
                    door.sql(statement.replace("%", "%%"))

    @contextmanager
    def door(self) -> Iterator[Door]:
        door = open_door(ENGINES[self.engine], self.url)
        try:
            yield door
        finally:
            door.close()

    def open(self, more: str = "") -> Receiver:
        return Receiver.open(
            self.url + more, policy=Policy(lease=60, wait=30, remember=(KeyError,))
        )


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database("sqlite", f"sqlite:///{tmp_path}/keys.db")
    return Database(request.param, request.getfixturevalue(f"{request.param}_url"))


def fail() -> None:
    raise ValueError("no")


def remembered() -> None:
    raise KeyError("never")


def filled(receiver: Receiver) -> None:
    """A record of every kind."""
    for number in range(30):
        receiver.process(f"done-{number}", lambda number=number: {"number": number})
    receiver.process(Key("scoped", ("tenant", "é")), str, "x" * 5000)
    with pytest.raises(ValueError, match="no"):
        receiver.process("failed", fail)
    with pytest.raises(KeyError):
        receiver.process("remembered", remembered)
    receiver.process("forgotten", str, 1)
    receiver.forget("forgotten", by="ann")
    receiver.process("released", str, 1)
    receiver.release("released", by="ann", why="again", force=True)
    receiver.store.perform(ClaimRequest(receiver.key("running"), b"r" * 16, 3_600_000))


NAMED = [
    *(f"done-{number}" for number in range(30)),
    "failed",
    "remembered",
    "forgotten",
    "released",
    "running",
]


def seen(receiver: Receiver) -> Any:
    """All that can be told about its records."""
    keys = [*(receiver.key(name) for name in NAMED), receiver.key(Key("scoped", ("tenant", "é")))]
    return (
        [(receiver.record(key), receiver.audit(key)) for key in keys],
        {
            record.id[:16]: (record.value, record.scope, record.state)
            for record in receiver.records()
        },
        receiver.stats(),
    )


def layout_of(receiver: Receiver) -> Any:
    return receiver.store.programs.layout  # type: ignore[attr-defined]


def test_opening_leaves_the_layout_as_it_is(database: Database):
    """Nodes of the first version may be at work: this one works beside them."""
    for more in ("", "?migrate=false"):
        with database.open(more) as receiver:
            assert layout_of(receiver) == WIDE
            assert list(receiver.store.migrated) == []  # type: ignore[attr-defined]
            assert receiver.process("k", str, 1).value == "1"
            assert "run: twicesafe migrate" in str(receiver.doctor())


def test_a_migration_changes_nothing_that_can_be_seen(database: Database):
    with database.open() as receiver, database.open() as beside:
        filled(receiver)
        before = seen(receiver)
        told: list[tuple[int, int]] = []
        done = receiver.store.migrate(lambda *progress: told.append(progress))
        assert "records moved" in str(done)
        assert told[-1][0] == told[-1][1] >= 34
        assert layout_of(receiver) == NARROW
        assert seen(receiver) == before
        assert receiver.store.migrate() == []
        assert "twicesafe migrate" not in str(receiver.doctor())
        assert seen(beside) == before, "a node that was open does not follow"
        ran: list[int] = []
        assert receiver.process("done-7", ran.append, 1).value == {"number": 7}
        assert receiver.process(Key("scoped", ("tenant", "é")), str, 1).value == "x" * 5000
        assert beside.process("failed", str, 2).attempt == 2
        assert not ran
    with database.open() as again:
        assert again.process("new", str, 1).fence == 1


def test_the_last_step_alone_moves_everything(database: Database):
    """As Django and Alembic take it, or a script that was run by hand."""
    with database.open() as receiver:
        filled(receiver)
        before = seen(receiver)
        with database.door() as door, door.transaction():
            for statement in first_steps(DIALECTS[database.engine], "twicesafe", 3, 1):
                door.sql(statement.replace("%", "%%"))
        assert seen(receiver) == before
        assert layout_of(receiver) == NARROW


class DiedError(BaseException):
    """In place of a kill: nothing catches it."""


def test_a_migration_can_be_killed_at_any_statement(
    database: Database, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(migrations, "BATCH", 9)
    with database.open() as receiver:
        filled(receiver)
        before = seen(receiver)
        deaths = 0
        for moment in range(1, 1000):
            victim = Receiver.open(database.url)
            store: Any = victim.store
            count = [moment]

            def tap(_: str, __: Any, count: list[int] = count) -> None:
                count[0] -= 1
                if not count[0]:
                    raise DiedError

            store._tap = tap
            try:
                store.migrate()
            except DiedError:
                deaths += 1
            else:
                break
            finally:
                store._tap = None
                victim.close()
            with database.open() as other:
                try:
                    assert other.process("done-3", fail).replayed
                except SchemaVersionError:
                    # Between two changes that MariaDB cannot make at once, all nodes wait for the rest.
                    assert database.engine == "mariadb"
        else:
            raise AssertionError("the migration never ends")
        assert deaths > 10
        assert seen(receiver) == before


def test_keys_run_once_while_a_migration_moves_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
):
    """Nodes that were open before, opened in between, and opened after, with old keys and new ones."""
    monkeypatch.setattr(migrations, "BATCH", 3)
    ran: list[str] = []
    values: dict[str, set[str]] = {}
    errors: list[BaseException] = []
    names = [f"k{number}" for number in range(60)]

    def handle(name: str) -> str:
        ran.append(name)
        return f"{name} {threading.get_ident()}"

    with database.open() as first:
        for name in names[:40]:
            values[name] = {first.process(name, handle, name).value}

        def deliver(receiver: Receiver, order: list[str]) -> None:
            try:
                for name in order:
                    values.setdefault(name, set()).add(receiver.process(name, handle, name).value)
                many = receiver.process_many(order, handle, key=str)
                for name, outcome in zip(order, many, strict=True):
                    assert isinstance(outcome, Outcome), outcome.error
                    values[name].add(outcome.value)
            except BaseException as error:
                errors.append(error)

        with database.open() as second:
            threads = [
                threading.Thread(target=deliver, args=(first, names)),
                threading.Thread(target=deliver, args=(second, names[::-1])),
                threading.Thread(target=deliver, args=(second, names)),
            ]
            for thread in threads:
                thread.start()
            with database.open() as migrating:
                migrating.store.migrate()
                deliver(migrating, names)
            for thread in threads:
                thread.join(60)
    assert errors == []
    assert sorted(ran) == sorted(names)
    assert all(len(told) == 1 for told in values.values()), values


def test_a_batch_follows_a_migration(database: Database):
    """The claims meet the new layout, or the recordings do: no item fails, and no result is lost."""
    names = [f"k{number}" for number in range(5)]
    with database.open() as early, database.open() as late, database.open() as migrating:

        def handle(name: str) -> str:
            if name == "k0":
                migrating.store.migrate()
            return name

        for node in (early, late):
            outcomes = node.process_many(names, handle, key=str)
            assert [outcome.value for outcome in outcomes] == names
        more = late.process_many(["k5", "k6"], str, key=str)
        assert not any(outcome.replayed for outcome in more)


def test_an_async_batch_follows_a_migration(database: Database):
    names = [f"k{number}" for number in range(5)]

    async def handle(name: str) -> str:
        if name == "k0":
            await asyncio.to_thread(migrating.store.migrate)
        return name

    async def deliver() -> None:
        async with AsyncReceiver.open(database.url) as receiver:
            outcomes = await receiver.process_many(names, handle, key=str)
            assert [outcome.value for outcome in outcomes] == names

    with database.open() as migrating:
        asyncio.run(deliver())
        assert [migrating.process(name, fail).value for name in names] == names


def test_a_waiter_follows_a_migration(database: Database):
    """Its claim found the key in progress, and it begins to wait: its next claim knows more."""
    with database.open() as waiting, database.open() as migrating:
        with migrating.claim("k") as claim:
            migrating.store.migrate()
            if waiting.store.capabilities.wake:
                waiting.store.watch(waiting.key("k").id, 60)
            claim.complete("done")
        assert waiting.process("k", fail).value == "done"


def test_a_node_that_knows_the_first_layout_only_is_refused(database: Database):
    """It finds no table, so it writes nothing and its handler does not run."""
    with database.open() as old, database.open() as new:
        old.process("k", str, 1)
        new.store.migrate()
        old.store.refresh = lambda: None  # type: ignore[method-assign]
        for key in ("k", "another"):
            with pytest.raises(SchemaVersionError, match="twicesafe migrate"):
                old.process(key, fail)
        assert new.stats().total == 1


def test_an_inbox_that_was_open_follows(database: Database):
    with Inbox.open(database.url) as inbox, database.door() as door:
        with door.transaction():
            assert inbox.accept(door.connection, "m-1")
        with database.open() as migrating:
            migrating.store.migrate()
        with pytest.raises(StoreUnavailableError, match="roll back"), door.transaction():
            inbox.accept(door.connection, "m-1")
        with door.transaction():
            assert not inbox.accept(door.connection, "m-1")
            assert inbox.accept(door.connection, "m-2")


def test_an_inbox_moves_its_records_in_the_callers_transaction(database: Database):
    with database.open() as receiver:
        receiver.process("m-1", lambda: "paid")
    with database.door() as door, door.transaction():
        for statement in first_steps(DIALECTS[database.engine], "twicesafe", 2, 1):
            door.sql(statement.replace("%", "%%"))
    with Inbox.open(database.url) as inbox, database.door() as door:
        for end in ("ROLLBACK", "COMMIT"):
            door.begin()
            assert inbox.process(door.connection, "m-1", fail).value == "paid"
            assert inbox.accept_many(door.connection, ["m-1", "m-2"]) == [False, True]
            door.rollback() if end == "ROLLBACK" else door.commit()
        with database.open() as receiver:
            assert receiver.stats().by_state == {State.COMPLETED: 2}
            receiver.store.migrate()
            assert receiver.process("m-1", fail).value == "paid"


def test_a_migration_waits_for_open_transactions_and_holds_up_no_claim(postgres_url: str):
    database = Database("postgres", postgres_url)
    with (
        Inbox.open(database.url) as inbox,
        database.door() as door,
        database.open() as receiver,
        closing(database.open()) as migrating,
    ):
        door.begin()
        assert inbox.accept(door.connection, "m-1")
        worker = threading.Thread(target=migrating.store.migrate)
        worker.start()
        for number in range(50):
            assert receiver.process(f"k{number}", str, 1).value == "1"
        assert layout_of(receiver) == WIDE
        door.commit()
        worker.join(60)
        assert receiver.process("k1", fail).replayed
        assert layout_of(receiver) == NARROW


def test_the_last_step_rewrites_no_audit_entry_of_a_record_that_was_moved(postgres_url: str):
    """There may be millions, and claims wait for this step."""
    with (
        Database("postgres", postgres_url).open() as receiver,
        psycopg.connect(postgres_url, autocommit=True) as connection,
    ):
        filled(receiver)

        def places() -> list[Any]:
            found = "SELECT n, ctid::text, length(id) FROM twicesafe_audit ORDER BY n"
            return connection.execute(found).fetchall()

        after_move: list[list[Any]] = []
        receiver.store.migrate(lambda *_: after_move.append(places()))
        assert [length for _, _, length in places()] == [16, 16]
        assert places() == after_move[-1]


def test_a_layout_that_was_read_too_early_is_not_used(postgres_url: str):
    """Two threads ask at the moment of a migration; the one that asked first answers last."""
    database = Database("postgres", postgres_url)
    with database.open() as receiver:
        store: Any = receiver.store
        store.migrate()
        schema, now = store._schema, [WIDE]

        def early(_: str) -> Any:
            yield from ()
            return now[0]

        schema.layout = early
        store.refresh()
        assert layout_of(receiver) == NARROW
