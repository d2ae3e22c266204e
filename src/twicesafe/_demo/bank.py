"""The effect: two banks outside twicesafe, durable before they answer; and books of our own.

`OpenBank` appends every charge it is asked for to an fsynced ledger: a repeat is a second charge.
`FencingBank` knows the payment's key and the fence of the claim that asks. It keeps one charge
per key, answers a repeat under a newer fence with the charge it has, and refuses an older fence:
whoever sends that has lost its claim.
`OwnBooks` are rows of the service's own database, written in the transaction of whoever charges:
they take every charge, and know nothing of keys or fences.
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
    """One charge as the bank keeps it; the claim's part is zero where there is no claim."""

    payment: str
    cents: int
    receipt: str
    fence: int = 0
    attempt: int = 0
    cause: str = ""
    repeats: int = 0
    """Repeats that this one charge absorbed."""


class StaleFenceError(Exception):
    """The bank has seen a newer claim of this payment."""


class Bank(Protocol):
    def charge(self, wanted: Charge) -> str:
        """Take the money, durably; the receipt."""

    def charges(self) -> list[Charge]:
        """Everything that was charged, in order."""

    def close(self) -> None:
        """Leave the bank, in this thread."""


LINE: Final = 256
"""Bytes, so that a page holds whole lines: SIGKILL can cut a write in two where a page ends."""


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
        """One per thread, as a bank's clients have."""
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
    """The same table without its rule: only the transaction keeps it right."""

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
