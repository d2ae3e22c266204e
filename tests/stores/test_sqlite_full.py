"""A disk that is full: SQLite refuses new work, keeps what it has, and goes on when there is room.

``max_page_count`` makes SQLite meet its own SQLITE_FULL at a file of a chosen size, at the same place
in its code as a full disk would.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from twicesafe import (
    Key,
    NotStorableError,
    Policy,
    Receiver,
    ResultUnavailableError,
    StoreUnavailableError,
)
from twicesafe._core.protocol import ClaimRequest
from twicesafe._engines.sqlite import SqliteStore
from twicesafe._engines.sqlite.database_file import DatabaseFile
from twicesafe._values.records import State


class Small(SqliteStore):
    """A store on a disk with room for so many more pages."""

    pages: int | None = None

    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        if self.pages is not None:
            connection.execute(f"PRAGMA max_page_count = {self.pages:d}")
        return connection


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that is as large as it may get."""
    path = tmp_path / "keys.db"
    with Receiver(SqliteStore(path)) as receiver:
        receiver.process("first", lambda: "x" * 100)
    with closing(sqlite3.connect(path)) as db:
        monkeypatch.setattr(Small, "pages", db.execute("PRAGMA page_count").fetchone()[0])
    yield path
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def fill(store: Small) -> int:
    """Claims of others, until one is refused: how many there was room for."""
    for number in range(1000):
        try:
            store.perform(ClaimRequest(Key(f"other-{number}"), b"o" * 16, 60_000))
        except StoreUnavailableError as error:
            assert "full" in str(error)  # noqa: PT017
            return number
    raise AssertionError("there is no end to it")


def test_a_full_disk_refuses_claims_and_keeps_what_it_has(full: Path):
    runs: list[str] = []
    store = Small(full)
    with Receiver(store, policy=Policy(lease=0.5)) as receiver:
        room = fill(store)
        with pytest.raises(StoreUnavailableError, match="full"):
            receiver.process("new", runs.append, "new")
        assert runs == []
        assert receiver.stats().total == room + 1, "half a record"
        assert receiver.process("first", runs.append, "first").replayed
    with Receiver(SqliteStore(full)) as receiver:  # now there is room again
        assert receiver.process("new", runs.append, "new").attempt == 1
        assert runs == ["new"]


def test_a_disk_that_fills_up_under_a_handler(full: Path):
    """The effect is there and its result has no room: done without it, and not run again."""
    with Receiver(Small(full), policy=Policy(lease=0.5)) as receiver:
        with pytest.raises(NotStorableError, match="disk is full") as caught:
            receiver.process("big", lambda: "x" * 200_000)
        assert caught.value.value == "x" * 200_000
        assert receiver.record("big").state is State.COMPLETED
    with Receiver(SqliteStore(full)) as receiver, pytest.raises(ResultUnavailableError):
        receiver.process("big", lambda: "y")


def test_a_constraint_is_a_refusal(tmp_path: Path):
    """No other try would cure it."""
    file = DatabaseFile(tmp_path / "keys.db", "full", 1.0)
    for kind in (sqlite3.IntegrityError, sqlite3.DataError):
        assert not file.error_of(kind("no")).retryable
    assert file.error_of(sqlite3.OperationalError("database or disk is full")).retryable
