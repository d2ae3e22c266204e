"""D8, D21, D24: an attacker who can write to the store can make nothing run, and nothing large come out."""

from __future__ import annotations

import os
import pickle
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twicesafe import CorruptRecordError, Key, Policy, Receiver, RememberedFailureError
from twicesafe._engines.sqlite import SqliteStore
from twicesafe.errors import ResultError, StoreError


class Harm:
    """Unpickled, it makes a folder. The path is short, so that it fits any column."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


Tamper = Callable[[str, bytes, int], None]


@pytest.fixture
def tamper(tmp_path: Path) -> Tamper:
    """Put these bytes where the recorded answer of a key is."""

    def write(key: str, result: bytes, state: int) -> None:
        with closing(sqlite3.connect(tmp_path / "keys.db")) as db, db:
            changed = db.execute(
                "UPDATE twicesafe_keys SET result = ?, state = ? WHERE id = ?",
                (result, state, Key(key).id[:16]),
            )
            assert changed.rowcount == 1

    return write


def state_number(path: Path, key: str | Key) -> int:
    id_ = key.id if isinstance(key, Key) else Key(key).id
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT state FROM twicesafe_keys WHERE id = ?", (id_[:16],))
        return found.fetchone()[0]


def charge() -> str:
    return "paid"


PAYLOADS: dict[str, Callable[[Path], bytes]] = {
    "pickle": lambda path: pickle.dumps(Harm(path)),
    "pickle protocol 0": lambda path: pickle.dumps(Harm(path), 0),
    "jsonpickle": lambda path: msgspec.json.encode(
        {"py/reduce": [{"py/function": "os.mkdir"}, {"py/tuple": [str(path)]}]}
    ),
    "yaml": lambda path: f"!!python/object/apply:os.mkdir ['{path}']".encode(),
    "class path": lambda path: msgspec.json.encode(
        {"$": "object", "type": "os:mkdir", "args": [str(path)]}
    ),
    "nothing": lambda _: b"",
    "half": lambda _: b'{"paid": tr',
}


@pytest.mark.attack("D8")
@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("as_failure", [False, True])
def test_no_stored_bytes_run_anything(
    tmp_path: Path, tamper: Tamper, payload: str, *, as_failure: bool
):
    """A changed answer is reported as corrupt, or replayed as plain data; the handler does not run."""
    target = tmp_path / "harm"
    ran: list[int] = []

    def counted() -> str:
        ran.append(1)
        return "paid"

    def fails() -> str:
        raise ValueError("no")

    with Receiver(
        SqliteStore(tmp_path / "keys.db"), policy=Policy(remember=(ValueError,))
    ) as receiver:
        receiver.process("tx-1", charge)
        with pytest.raises(ValueError, match="no"):
            receiver.process("tx-2", fails)
        completed, failed = (state_number(tmp_path / "keys.db", k) for k in ("tx-1", "tx-2"))
        tamper("tx-1", PAYLOADS[payload](target), failed if as_failure else completed)
        try:
            value = receiver.process("tx-1", counted).value
        except (CorruptRecordError, RememberedFailureError, ResultError, StoreError) as told:
            assert str(target) not in str(told)  # noqa: PT017 - nor is it quoted
        else:
            assert isinstance(value, str | dict | list | int | float | None)
    assert ran == []
    assert not target.exists()


@pytest.mark.attack("D21")
@pytest.mark.parametrize(
    "bomb",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b"9" * 1_000_000,
        b"1e999999999",
    ],
    ids=["lists", "objects", "digits", "exponent"],
)
def test_a_bomb_in_the_store_is_a_clean_error(tmp_path: Path, tamper: Tamper, bomb: bytes):
    with Receiver(SqliteStore(tmp_path / "keys.db")) as receiver:
        receiver.process("tx-1", charge)
        tamper("tx-1", bomb, state_number(tmp_path / "keys.db", "tx-1"))
        try:
            value = receiver.process("tx-1", charge).value
        except (CorruptRecordError, ResultError):
            return
        assert isinstance(value, float | int | str)


@pytest.mark.attack("D24", "D8")
@settings(max_examples=int(os.environ.get("TWICESAFE_FUZZ", "100")))
@given(result=st.binary(max_size=200), state=st.integers(0, 12))
def test_any_row_is_understood_or_reported(
    tmp_path_factory: pytest.TempPathFactory, result: bytes, state: int
):
    folder = tmp_path_factory.getbasetemp() / "rows"
    folder.mkdir(exist_ok=True)
    path = folder / "keys.db"
    ran: list[int] = []
    key = Key.random()
    with Receiver(SqliteStore(path, synchronous="normal")) as receiver:
        receiver.process(key, charge)
        completed = state_number(path, key)
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(
                "UPDATE twicesafe_keys SET result = ?, state = ? WHERE id = ?",
                (result, state, key.id[:16]),
            )
        try:
            receiver.process(key, ran.append, 1)
        except Exception as error:
            assert type(error).__module__ == "twicesafe.errors"  # noqa: PT017
        assert ran == [] or state != completed, "a completed record was run over"
