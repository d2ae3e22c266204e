"""Strategies work wherever a transaction of the caller's can be joined.

That every kind of connection behaves is tested in tests/transactions; here are enough of them to meet
each dialect, each way to write values, both modes and both ways to count rows.
"""

from __future__ import annotations

import pytest

from tests.transactions.conftest import door, open_kind, opened, url_of

__all__ = ["door", "open_kind", "opened", "url_of"]

KINDS = [
    "sqlite3",
    "psycopg",
    "asyncpg",
    "sa-async-session:postgresql+asyncpg",
    "pymysql",
    "asyncmy",
    "django:mysql",
]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found
