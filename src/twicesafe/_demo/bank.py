"""The effect: two banks outside twicesafe that write durably before they answer, and our own table.

`OpenBank` appends every charge to an fsynced ledger: a repeat is a second charge.
`FencingBank` receives the payment's key and the claim's fence. It keeps one charge per key, answers
a repeat under a newer fence with the existing charge, and refuses an older fence, because that
worker has lost its claim.
`OwnBooks` are rows in the service's own database, written in the handler's transaction. They take
every charge and ignore keys and fences.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

__all__ = [
    "Bank",
    "BankName",
    "Charge",
    "FencingBank",
    "OpenBank",
    "OwnBooks",
    "StaleFenceError",
    "bank_at",
]

BankName: TypeAlias = Literal["open", "fencing", "own"]


class Charge(msgspec.Struct, frozen=True):
    """One charge in the bank's ledger; fence and attempt are 0 without a claim."""

    payment: str
    cents: int
    receipt: str
    fence: int = 0
    attempt: int = 0
    cause: str = ""
    repeats: int = 0
    """How many repeats the bank answered with this charge."""


class StaleFenceError(Exception):
    """The bank has seen a newer claim of this payment."""


class Bank(Protocol):
    def charge(self, wanted: Charge) -> str:
        """Charge durably and return the receipt."""

    def charges(self) -> list[Charge]:
        """Everything that was charged, in order."""

    def close(self) -> None:
        """Close this thread's connection."""


LINE: Final = 256
"""Bytes per line. A page holds whole lines, because SIGKILL can cut a write at a page boundary."""


class OpenBank:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "ledger.jsonl"
        self._file = os.open(self._path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)

    def charge(self, wanted: Charge) -> str:
        line = msgspec.json.encode(wanted)
        os.write(self._file, line.ljust(-(len(line) + 1) % LINE + len(line)) + b"\n")
        os.fsync(self._file)
        return wanted.receipt

    def charges(self) -> list[Charge]:
        lines = self._path.read_bytes().splitlines()
        return [msgspec.json.decode(line, type=Charge) for line in lines]

    def close(self) -> None:
        os.close(self._file)


_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS charges (
        n INTEGER PRIMARY KEY, payment TEXT NOT NULL UNIQUE, cents INTEGER NOT NULL,
        receipt TEXT NOT NULL, fence INTEGER NOT NULL, attempt INTEGER NOT NULL,
        cause TEXT NOT NULL, repeats INTEGER NOT NULL DEFAULT 0
    ) STRICT
"""
_CHARGE: Final = """
    INSERT INTO charges (payment, cents, receipt, fence, attempt, cause)
    VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (payment) DO UPDATE SET fence = excluded.fence, repeats = repeats + 1
        WHERE excluded.fence > charges.fence
    RETURNING receipt
"""


class FencingBank:
    table = _TABLE

    def __init__(self, folder: Path) -> None:
        self._path = folder / "bank.db"
        self._own = threading.local()

    def _connection(self) -> Any:
        """One connection per thread."""
        import sqlite3

        connection = getattr(self._own, "connection", None)
        if connection is None:
            connection = sqlite3.connect(self._path, timeout=30, isolation_level=None)
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(self.table)
            self._own.connection = connection
        return connection

    def charge(self, wanted: Charge) -> str:
        rows = (
            self._connection()
            .execute(
                _CHARGE,
                (
                    wanted.payment,
                    wanted.cents,
                    wanted.receipt,
                    wanted.fence,
                    wanted.attempt,
                    wanted.cause,
                ),
            )
            .fetchall()
        )
        if not rows:
            raise StaleFenceError(f"a claim newer than fence {wanted.fence} has charged already")
        return str(rows[0][0])

    def charges(self) -> list[Charge]:
        rows = self._connection().execute(
            "SELECT payment, cents, receipt, fence, attempt, cause, repeats FROM charges ORDER BY n"
        )
        return [Charge(*row) for row in rows]

    def close(self) -> None:
        connection = self._own.__dict__.pop("connection", None)
        if connection is not None:
            connection.close()


class OwnBooks(FencingBank):
    """The same table without its UNIQUE constraint: only the transaction prevents a second charge."""

    table = _TABLE.replace(" UNIQUE", "")

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}"

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        connection = self._connection()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def charge(self, wanted: Charge) -> str:
        columns = (wanted.payment, wanted.cents, wanted.receipt, wanted.fence, wanted.attempt)
        self._connection().execute(
            "INSERT INTO charges (payment, cents, receipt, fence, attempt, cause)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (*columns, wanted.cause),
        )
        return wanted.receipt


def bank_at(name: BankName, folder: Path) -> Bank:
    return _BANKS[name](folder)


_BANKS: Final[dict[BankName, Callable[[Path], Bank]]] = {
    "open": OpenBank,
    "fencing": FencingBank,
    "own": OwnBooks,
}


def new_receipt() -> str:
    return f"rcpt-{uuid.uuid4().hex[:12]}"
