"""SQLite keeps every rule, one by one and in any order."""

from __future__ import annotations

from hypothesis import settings

from tests.conformance.stores import Sqlite
from twicesafe.testing import StoreConformance, StoreModel


class TestSqlite(Sqlite, StoreConformance):
    pass


class SqliteModel(Sqlite, StoreModel):
    pass


class AsyncSqliteModel(Sqlite, StoreModel):
    colour = "async"


TestSqliteModel = SqliteModel.TestCase
TestSqliteModel.settings = settings(max_examples=200, stateful_step_count=30)
TestAsyncSqliteModel = AsyncSqliteModel.TestCase
TestAsyncSqliteModel.settings = settings(max_examples=30, stateful_step_count=30)
