"""Nothing readable in a store: its files, its write-ahead log, its dumps and its logs (D17).

Each store first gets a canary without encryption, to prove that the search would find one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.logged import logged
from twicesafe import Policy, Receiver, RememberedFailureError
from twicesafe.encryption import KeyRing

OPEN, RESULT, FAILURE = "canary-open-9f1", "canary-result-9f2", "canary-failure-9f3"
RING = KeyRing({"a": os.urandom(32)})


def use(url: str) -> None:
    """A result and a failure, each recorded and replayed; and a result without encryption."""

    def fail() -> None:
        raise ZeroDivisionError(FAILURE)

    with Receiver.open(url, policy=Policy()) as receiver:
        receiver.process("open", lambda: {"card": OPEN})
    policy = Policy(encryption=RING, remember=(ZeroDivisionError,))
    with Receiver.open(url, policy=policy) as receiver:
        for _ in range(2):
            assert receiver.process("k", lambda: {"card": RESULT}).value == {"card": RESULT}
        with pytest.raises(ZeroDivisionError):
            receiver.process("f", fail)
        with pytest.raises(RememberedFailureError, match=FAILURE):
            receiver.process("f", fail)


def found(folder: Path) -> set[str]:
    heap = b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    return {canary for canary in (OPEN, RESULT, FAILURE) if canary.encode() in heap}


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.DEBUG)
    yield
    assert not any(canary.encode() in logged(caplog) for canary in (RESULT, FAILURE))


@pytest.mark.attack("D17")
@pytest.mark.usefixtures("quiet")
def test_nothing_readable_in_the_files_of_sqlite(tmp_path: Path):
    use(f"sqlite:///{tmp_path}/keys.db")
    assert found(tmp_path) == {OPEN}


@pytest.mark.attack("D17")
@pytest.mark.usefixtures("quiet")
def test_nothing_readable_in_the_files_and_logs_of_postgresql(own_server: Callable[..., Any]):
    import psycopg

    # The log of such a server has every statement with its parameters.
    server = own_server("postgres", log_statement="all", log_parameter_max_length="-1")
    use(server.url)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        dump = repr(connection.execute("SELECT * FROM twicesafe_keys").fetchall())
    assert OPEN in dump
    assert RESULT not in dump
    assert FAILURE not in dump
    assert found(server.folder) == {OPEN}


@pytest.mark.attack("D17")
@pytest.mark.usefixtures("quiet")
def test_nothing_readable_in_the_files_of_valkey(own_server: Callable[..., Any]):
    server = own_server("valkey", appendonly="yes", rdbcompression="no")
    use(server.url)
    client = server.client()
    client.save()
    client.close()
    assert found(server.folder) == {OPEN}
