"""The stores that keep durable runs, with real servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from twicesafe.stores._urls import open_store

__all__ = ["ALL", "SQL", "fresh_url", "opened"]

SQL = ["sqlite", "postgres", "mariadb"]
ALL = [*SQL, "valkey", "valkey_cluster"]


def fresh_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty store of the kind that the test is parametrised with."""
    if request.param == "sqlite":
        folder: Path = request.getfixturevalue("tmp_path")
        yield f"sqlite:///{folder}/keys.db"
    else:
        yield request.getfixturevalue(f"{request.param}_url")


@contextmanager
def opened(url: str) -> Iterator[Any]:
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()
