"""A SQLite URL and the file behind it: which options it has, and where the file really is."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from twicesafe import ConfigurationError, Receiver, SchemaVersionError
from twicesafe._engines.sql.migrations import first_steps
from twicesafe._engines.sqlite import SqliteStore
from twicesafe.stores._urls import open_store


def test_options_are_read_behind_a_path_with_a_number_sign(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="did you mean 'table'"):
        open_store(f"sqlite:///{tmp_path}/a#1.db?tabel=y")
    with closing(open_store(f"sqlite:///{tmp_path}/a#1.db?synchronous=normal")) as store:
        assert any("synchronous=normal" in finding.what for finding in store.doctor())
    assert (tmp_path / "a#1.db").exists()


@pytest.mark.parametrize("linked", ["near", "near.db"], ids=["folder", "file"])
def test_the_doctor_follows_links(linked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    far, near = tmp_path / "far", tmp_path / linked
    far.mkdir()
    near.symlink_to(far / "keys.db" if near.suffix else far)
    path = near if near.suffix else near / "keys.db"
    mounts = f"/dev/disk / ext4 rw 0 0\nserver:/x {far.resolve()} nfs4 rw 0 0\n"
    with closing(open_store(f"sqlite:///{path}")) as store:
        monkeypatch.setattr(Path, "read_text", lambda _: mounts)
        assert store.doctor()[0].level == "refuse"


def test_a_migration_by_hand_that_stopped_half_way_says_so(tmp_path: Path):
    """The tables are there and nothing says that they are whole."""
    path = tmp_path / "keys.db"
    with closing(sqlite3.connect(path)) as connection:
        for statement in first_steps("sqlite", "twicesafe", 1)[:-1]:
            connection.execute(statement)
        connection.commit()
    with pytest.raises(SchemaVersionError, match=r"with schema 0.*by hand.*drop the tables"):
        SqliteStore(path)


def test_an_interrupt_while_its_connection_is_closed_does_not_break_the_store(tmp_path: Path):
    """Ctrl-C falls between the lines; the next call opens a new connection."""

    class Interrupted:
        def __init__(self, connection: sqlite3.Connection) -> None:
            self._connection = connection

        def close(self) -> None:
            self._connection.close()
            raise KeyboardInterrupt

    store = SqliteStore.open(f"sqlite:///{tmp_path}/keys.db")
    store._open_writer()
    store._writer = Interrupted(store._writer)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        store._close_writer()
    with Receiver(store) as receiver:
        assert receiver.process("k", lambda: 1).value == 1
