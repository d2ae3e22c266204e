"""The file of a SQLite store: open connections to it, notice if it is replaced, translate errors."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ...errors import ConfigurationError, SchemaVersionError, StoreError, StoreUnavailableError

__all__ = ["DatabaseFile"]

LOOK_EVERY: Final = 0.001
"""Seconds between two looks at the file's path, each of which takes 3 % of a delivery."""


_NEXT_STEPS: Final = {
    "SQLITE_READONLY": "; this user may not write to the file or to its folder, which SQLite needs even to read "
    "(WAL): use the user of the service, or give this one access",
    "SQLITE_FULL": "; make room on its disk",
    "SQLITE_NOTADB": "; check the path",
    "SQLITE_CORRUPT": "; stop all processes that use it, and restore it from a backup",
    "SQLITE_BUSY": "; another program has locked it for longer than timeout=: find out which, for example with fuser",
}
"""What to do about errors whose own words do not say it."""


class DatabaseFile:
    """The one file of a store. A connection to any other file at the same path is refused."""

    def __init__(self, path: str | Path, synchronous: str, timeout: float) -> None:
        if synchronous.lower() not in ("full", "normal"):
            raise ConfigurationError(f"synchronous={synchronous[:20]!r}: use full or normal")
        self.path = Path(path).absolute()
        self._name = str(self.path)
        self._encoded = os.fsencode(self._name)  # else every check encodes it
        self.synchronous = synchronous.lower()
        self.timeout = timeout
        self._identity: tuple[int, int] | None = None
        """Number and device of the file that we opened first. No other file is ever written to."""
        self.next_look = 0.0
        """When `look` must look again. The two usual requests compare this themselves, which is cheaper."""
        self._is_logged = False

    def connect(self) -> sqlite3.Connection:
        """A new connection; the first one creates the file if it is missing."""
        first = self._identity is None
        if first:
            self._create()
        else:
            self.look()
        try:
            connection = sqlite3.connect(
                self._name if first else f"{self.path.as_uri()}?mode=rw",
                uri=not first,
                timeout=self.timeout,
                isolation_level=None,  # our programs send BEGIN
                check_same_thread=False,  # one thread at a time uses it
            )
        except sqlite3.Error as error:
            raise StoreUnavailableError(
                f"cannot open {self.path}: {error}; check that its folder exists, and that this user may "
                "read and write both"
            ) from error
        try:
            with self.errors():  # the first statements that touch the file
                self._use_wal(connection)
                connection.execute(f"PRAGMA synchronous={self.synchronous}")
            self.look()
        except BaseException:
            connection.close()
            raise
        return connection

    def _create(self) -> None:
        """Readable by its owner only, because it holds results. SQLite gives -wal and -shm the same mode.

        An existing file is not opened here: closing it would release SQLite's locks on it.
        """
        if not os.path.exists(self.path):
            # Another process may create it just now. Any other error will come from SQLite.
            with suppress(OSError):
                new = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
                os.close(os.open(os.path.realpath(self.path), new, 0o600))

    def check(self) -> None:
        """Raise if the file at our path is not the one that we opened. Called before every answer.

        SQLite continues in a file that was removed, while other processes create a new one: a key
        would run in both. A look of the last millisecond is enough: it misses no more than one that
        comes a millisecond earlier.
        """
        if time.monotonic() >= self.next_look:
            self.look()

    def look(self) -> None:
        """Only the path can tell: a folder that was moved, or another target of a symbolic link,
        leaves the open file as it was."""
        self.next_look = 0.0  # look at every call until the file is back
        looked = time.monotonic()
        try:
            here: tuple[int, int] = os.stat(self._encoded)[1:3]  # its number and its device
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                raise StoreUnavailableError(f"cannot look at {self.path}: {error}") from error
            raise self._gone("removed") from error
        if self._identity is None:
            self._identity = here
            if hasattr(os, "O_PATH"):
                # While it is open, its inode number is not given to another file. It is not open for
                # reading, so closing it does not release SQLite's locks.
                kept = os.open(self._name, os.O_PATH | os.O_CLOEXEC)
                weakref.finalize(self, _close, kept, here)
        elif self._identity != here:
            raise self._gone("replaced by another file")
        self.next_look = looked + LOOK_EVERY

    def _gone(self, how: str) -> StoreError:
        error = StoreError(
            f"{self.path} was {how} while it was open; no handler runs and no call is answered, because "
            "keys could run twice; stop all processes that use it, restore the right file, and start again"
        )
        if not self._is_logged:
            self._is_logged = True
            logging.getLogger("twicesafe").error("%s", error)
        return error

    def is_private(self) -> bool:
        """Whether only its owner may read it."""
        return os.name != "posix" or not os.stat(self._name).st_mode & 0o077

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """Set the journal mode. SQLite does not wait for other connections here, so we do."""
        until = time.monotonic() + max(self.timeout, 5.0)
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
                    f"{self.path} cannot use WAL (journal mode {mode!r}): put the file on a local disk"
                )
            return

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self.error_of(error) from error

    def error_of(self, error: sqlite3.Error) -> StoreError:
        """Our error for this one: an outage only if a retry may help."""
        if str(error).startswith("no such table"):
            return SchemaVersionError(
                f"{self.path} has no twicesafe tables; run: twicesafe migrate"
            )
        permanent = (
            sqlite3.DataError,  # SQLITE_TOOBIG
            sqlite3.IntegrityError,
            sqlite3.InterfaceError,
            sqlite3.NotSupportedError,
            sqlite3.ProgrammingError,
        )
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        kind = StoreError if isinstance(error, permanent) else StoreUnavailableError
        steps = (step for begin, step in _NEXT_STEPS.items() if name.startswith(begin))
        return kind(f"SQLite error {name} on {self.path}: {error}{next(steps, '')}")

    def filesystem(self) -> str:
        """The type of the file system that holds the file, or "" if unknown. Follows links."""
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


def _close(descriptor: int, identity: tuple[int, int]) -> None:
    """Close the descriptor if it is still ours: a daemon may have closed it, and its number been reused."""
    import fcntl  # where there is O_PATH, there is fcntl

    with suppress(OSError):
        found = os.fstat(descriptor)
        is_ours = (found.st_ino, found.st_dev) == identity
        if is_ours and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_PATH:
            os.close(descriptor)
