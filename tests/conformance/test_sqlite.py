"""SQLite keeps every rule, one by one and in any order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import settings

from tests.conformance.selections import OneNode
from tests.conformance.stores import MovingSqlite, Sqlite, WideSqlite
from twicesafe._core.protocol import ClaimRequest, Complete, Read, Sweep, Verdict
from twicesafe._engines.sqlite import SqliteStore
from twicesafe._values.keys import Key
from twicesafe.testing import FakeClock, StoreConformance, StoreModel


class TestSqlite(Sqlite, StoreConformance):
    pass


class TestWideSqlite(WideSqlite, StoreConformance):
    modes = ("blocking",)  # the programs are the same in both


class TestMovingSqlite(MovingSqlite, OneNode):
    modes = ("blocking",)
    test_steps_of_parallel_branches_are_all_recorded = None


class SqliteModel(Sqlite, StoreModel):
    pass


class AsyncSqliteModel(Sqlite, StoreModel):
    mode = "async"


TestSqliteModel = SqliteModel.TestCase
TestSqliteModel.settings = settings(max_examples=200, stateful_step_count=30)
TestAsyncSqliteModel = AsyncSqliteModel.TestCase
TestAsyncSqliteModel.settings = settings(max_examples=30, stateful_step_count=30)


def test_a_sweep_between_the_two_looks_of_a_claim_leaves_no_bare_win(tmp_path: Path):
    """The claim met an expired row, and another process swept it before the claim wrote (P1)."""
    clock = FakeClock()
    ours, theirs = (SqliteStore(tmp_path / "keys.db", now=clock) for _ in range(2))
    key = Key("k")
    first = ours.perform(ClaimRequest(key, b"a" * 16, 1000))
    ours.perform(Complete(key.id, b"a" * 16, first.fence, 1000, b"x"))
    clock.advance(1)
    swept = []

    def sweep_first(when: str, command: Any) -> None:
        if command.sql.startswith("BEGIN") and not swept:
            swept.append(theirs.perform(Sweep(10))[0].removed)

    ours._tap = sweep_first
    second = ours.perform(ClaimRequest(key, b"b" * 16, 1000))
    row = theirs.perform(Read(key.id))
    ours.close()
    theirs.close()
    assert swept == [1]
    assert second.verdict is Verdict.WON
    assert row.fence == second.fence > first.fence
