"""A file that another program keeps to itself: an outage like any other, in our own words."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from twicesafe import Failure, Policy, Receiver, StoreUnavailableError
from twicesafe._core.commands import Sleep
from twicesafe._engines.sqlite import SqliteStore, database_file


@pytest.fixture
def receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Its store must connect anew, to a file that is locked. Its time limit passes at once."""
    path = tmp_path / "keys.db"
    store = SqliteStore(path, timeout=0)
    store.close()
    seconds = count()
    hasty = SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: None)
    monkeypatch.setattr(database_file, "time", hasty)
    monkeypatch.setattr("twicesafe._core.batch.Sleep", lambda _: Sleep(0))
    monkeypatch.setattr("twicesafe._core.delivery.CLAIM_RETRIES", 0)
    with closing(sqlite3.connect(path, isolation_level=None)) as other, Receiver(store) as made:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        yield made


@pytest.mark.parametrize(
    "ask",
    [
        lambda receiver: receiver.record("k"),
        lambda receiver: receiver.stats(),
        lambda receiver: receiver.sweep(),
        lambda receiver: receiver.store.doctor(),
        lambda receiver: receiver.store.migrate(),
    ],
    ids=["record", "stats", "sweep", "doctor", "migrate"],
)
def test_every_caller_hears_of_an_outage(receiver: Receiver, ask: Callable[[Receiver], Any]):
    with pytest.raises(StoreUnavailableError, match=r"SQLITE_BUSY on .*keys\.db") as told:
        ask(receiver)
    assert isinstance(told.value.__cause__, sqlite3.OperationalError)


def test_a_batch_fails_closed_item_by_item(receiver: Receiver):
    runs: list[str] = []
    answers = receiver.process_many(["a", "b"], runs.append, key=str)
    assert all(isinstance(answer, Failure) for answer in answers)
    assert [type(answer.error) for answer in answers] == [StoreUnavailableError] * 2
    assert runs == []


def test_work_that_may_run_unprotected_does(receiver: Receiver):
    runs: list[str] = []
    eager = receiver.options(policy=Policy(outage="run"))
    eager.process_many(["a", "b"], runs.append, key=str)
    assert runs == ["a", "b"]
