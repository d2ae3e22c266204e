"""Store URLs: what cannot be meant is refused by name, and passwords are never shown."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from twicesafe import AsyncReceiver, ConfigurationError, Receiver, StoreUnavailableError
from twicesafe._engines.sqlite.database_file import DatabaseFile
from twicesafe.stores._urls import (
    default_url,
    identifier,
    mask,
    open_async_store,
    open_store,
    options_of,
)


@pytest.mark.parametrize(
    "url, said",
    [
        ("", "memory:, sqlite:"),
        ("nothing", "memory:, sqlite:"),
        ("keys.db", "for a SQLite file, write sqlite:///keys.db"),
        ("mongo2://x", "'mongo2'"),
        ("postgresql://u:a/b@h/db", "postgresql://u:***@h/db: there is an @ after the host"),
        ("redis://:a?b@h/0", "redis://***: there is an @ after the host"),
        ("postgresql://u:a@b@h/db", "percent-encode @"),
        ("redis://u:p@[::1/0", "redis://u:***@[::1/0 cannot be parsed"),
        ("sqlite://", "sqlite:///file.db"),
        ("sqlite:///", "sqlite:///file.db"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///file:x?mode=memory", "memory://"),
        ("memory://a/b", "memory://name"),
        ("memory://?x=1", "no option 'x'; known: none"),
        ("SQLITE:///x.db", "did you mean 'sqlite:'"),
        ("sqlite:///x.db?tabel=y", "did you mean 'table'"),
        ("sqlite:///x.db?timeout=soon", "option timeout='soon' is not a duration"),
        ("sqlite:///x.db?timeout=-1", "is not a duration"),
        ("sqlite:///x.db?migrate=perhaps", "true or false"),
        ("sqlite:///x.db?synchronous=off", "full or normal"),
        ("sqlite:///x.db?table=x;drop", "refused"),
        ("sqlite:///x.db?table=", "refused"),
    ],
)
@pytest.mark.parametrize("mode", [open_store, lambda url: open_async_store(url).blocking_store()])
def test_bad_urls(
    url: str,
    said: str,
    mode: Callable[[str], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        mode(url)
    assert said in str(caught.value)


def test_an_unreachable_file_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="check that its folder exists"):
        open_store(f"sqlite:///{tmp_path}/no/such/folder/x.db")


def test_a_file_that_this_user_may_not_write_to_is_an_error_with_a_next_step(
    tmp_path: Path,
) -> None:
    path = tmp_path / "keys.db"
    open_store(f"sqlite:///{path}").close()
    file = DatabaseFile(path, "full", 5.0)
    with (
        closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as reader,
        pytest.raises(StoreUnavailableError, match="this user may not write to the file"),
        file.errors(),
    ):
        reader.execute("DELETE FROM twicesafe_keys")
    whole = path.read_bytes()
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(StoreUnavailableError, match="check the path"):
        open_store(f"sqlite:///{path}")
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreUnavailableError, match="restore it from a backup"):
        open_store(f"sqlite:///{path}")


def test_a_lock_of_another_program_is_named(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as other,
        closing(open_store(f"sqlite:///{path}")),
    ):
        other.execute("BEGIN EXCLUSIVE")
        with (
            pytest.raises(StoreUnavailableError, match="another program has locked it"),
            DatabaseFile(path, "full", 0.01).errors(),
            closing(sqlite3.connect(path, timeout=0)) as third,
        ):
            third.execute("CREATE TABLE mine (id)")


def test_options_have_the_types_of_their_defaults() -> None:
    known = {"size": 5, "wait": 1.5, "on": True, "name": "x"}
    chosen = options_of("any:///x?size=7&wait=2&on=no&name=y%20z", known)
    assert chosen == {"size": 7, "wait": 2.0, "on": False, "name": "y z"}
    assert options_of("any:///x", known) == known


@pytest.mark.parametrize(
    "url, shown",
    [
        ("postgresql://u:secret@h:5/db?password=secret", "postgresql://u:***@h:5/db"),
        ("postgresql://secret@h/db", "postgresql://***@h/db"),
        ("postgresql://u:sec/secret@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:secret?secret@h/db", "postgresql://***"),
        ("mysql:u:secret@h/db", "***@h/db"),
        ("secret@h:5/db", "***@h:5/db"),
        ("redis://:secret@h", "redis://:***@h"),
        ("redis://:secret#secret@h:1/0", "redis://:***@h:1/0"),
        ("redis://:sec@secret@[::1/0", "redis://:***@[::1/0"),
        ("redis://h:1/0?prefix=a@b", "redis://h:1/0"),
        ("nats://secret@h:9", "nats://***@h:9"),
        ("nats://secret@h:9,nats://secret@i:9", "nats://***@i:9"),
        ("https://secret:@h/hook?to=secret", "https://***@h/hook"),
        ("https://me:secret@h/hook", "https://***@h/hook"),
        ("sqlite:////a@b/x#1.db?timeout=1", "sqlite:////a@b/x#1.db"),
        ("sqlite:///x.db?key=secret", "sqlite:///x.db"),
        ("memory://", "memory://"),
    ],
)
def test_mask(url: str, shown: str) -> None:
    assert "secret" not in mask(url)
    assert mask(url) == shown


@pytest.mark.parametrize("name", ["a", "twicesafe", "_x9", "a" * 48])
def test_identifiers(name: str) -> None:
    assert identifier(name) == name


@pytest.mark.parametrize(
    "name", ["", "9a", "A", "a-b", "a b", 'a"b', "a;b", "a" * 49, "é", "a\n", "x.y"]
)
def test_names_that_may_not_stand_in_sql(name: str) -> None:
    with pytest.raises(ConfigurationError, match="refused"):
        identifier(name)


def test_memory_is_shared_by_name_only() -> None:
    assert open_store("memory://") is not open_store("memory://")
    assert open_store("memory://shared-by-name") is open_store("memory://shared-by-name")


async def test_without_a_url_it_is_a_file_in_the_users_data_folder(own_home: Path) -> None:
    assert default_url() == f"sqlite:///{own_home / 'data' / 'twicesafe' / 'twicesafe.db'}"
    with Receiver.open() as receiver:
        receiver.process("k", int)
    assert (own_home / "data" / "twicesafe" / "twicesafe.db").exists()

    async def one() -> int:
        return 1

    async with AsyncReceiver.open() as awaited:
        assert (await awaited.process("k", one)).replayed


def test_the_data_folder_may_have_characters_with_a_meaning_in_urls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "50%25 of #1?"))
    Receiver.open().close()
    assert (tmp_path / "50%25 of #1?" / "twicesafe" / "twicesafe.db").exists()
    assert len(list(tmp_path.iterdir())) == 1


def test_spaces_and_absolute_paths(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/with%20space.db")
    store.close()
    assert (tmp_path / "with space.db").exists()
    assert repr(store) == f"<SqliteStore sqlite:///{tmp_path}/with space.db>"
