"""The URL, the file that it names, how a connection to it is made, and its errors in our words."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from ...errors import ConfigurationError, StoreError, StoreUnavailableError

__all__ = ["OPTIONS", "DatabaseFile", "path_of"]

OPTIONS: Final = {"synchronous": "full", "timeout": 5.0, "table": "twicesafe", "migrate": True}


class DatabaseFile:
    def __init__(self, path: str | Path, synchronous: str, timeout: float) -> None:
        if synchronous.lower() not in ("full", "normal"):
            raise ConfigurationError(f"synchronous={synchronous[:20]!r}: use full or normal")
        self.path = Path(path).absolute()
        self.synchronous = synchronous.lower()
        self._timeout = timeout

    def connect(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                self.path,
                timeout=self._timeout,
                isolation_level=None,  # we say BEGIN ourselves
                check_same_thread=False,  # the lane and the pool see to that
            )
        except sqlite3.Error as error:
            raise StoreUnavailableError(
                f"cannot open {self.path}: {error}; does its folder exist and may you write there?"
            ) from error
        try:
            with self.errors():  # the first words that touch the file itself
                self._into_wal(connection)
                connection.execute(f"PRAGMA synchronous={self.synchronous}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _into_wal(self, connection: sqlite3.Connection) -> None:
        """SQLite does not wait for others while it changes the journal mode; so we do."""
        until = time.monotonic() + max(self._timeout, 5.0)
        while True:
            try:
                mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.005)
                continue
            if mode != "wal":
                raise ConfigurationError(
                    f"{self.path} cannot use WAL (it says {mode!r}): put the file on a local disk"
                )
            return

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self.trouble(error) from error

    def trouble(self, error: sqlite3.Error) -> StoreError:
        """Only what another try may cure is told as an outage."""
        hopeless = (
            sqlite3.DataError,  # SQLITE_TOOBIG
            sqlite3.IntegrityError,
            sqlite3.InterfaceError,
            sqlite3.NotSupportedError,
            sqlite3.ProgrammingError,
        )
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        kind = StoreError if isinstance(error, hopeless) else StoreUnavailableError
        return kind(f"SQLite says {name} on {self.path}: {error}")

    def filesystem(self) -> str:
        """The type of file system that it is on, where the system tells; links are followed."""
        best, kind, path = "", "", os.path.realpath(self.path)
        try:
            mounts = Path("/proc/mounts").read_text().splitlines()
        except OSError:
            return ""
        for line in mounts:
            _, at, what, *_ = line.split(" ")
            if path.startswith(at.rstrip("/") + "/") and len(at) > len(best):
                best, kind = at, what
        return kind


def path_of(url: str) -> str:
    start = "sqlite:///"
    path = unquote(url.partition("?")[0][len(start) :]) if url.startswith(start) else ""
    if not path or path == ":memory:" or path.startswith("file:") or "\0" in path:
        raise ConfigurationError(
            "a SQLite URL is sqlite:///file.db or sqlite:////absolute/file.db; "
            "for a store without a file use memory://"
        )
    return path
