"""SQLite: the embedded default. One file on a local disk, shared by the processes of one machine.

Durability is WAL with ``synchronous=FULL``: what was answered survives a power cut. With NORMAL
the last commits may be lost in a power cut (never in a crash of the process).

A duplicate reads on a connection of its own and never waits for a writer. All writes of a process
go through one lane: the calls that gather while one is being written are written together, in
one transaction, with one fsync. No reader ever becomes a writer, so SQLITE_BUSY can only mean
another process's write, for which SQLite itself waits (``timeout``).

    sqlite:///keys.db            beside the working directory
    sqlite:////var/lib/keys.db   an absolute path
    ?synchronous=normal&timeout=10&table=twicesafe&migrate=false
"""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar
from urllib.parse import unquote

from msgspec.structs import replace

from ..clocks import boot_id, since_boot, wall_clock
from ..core import lifecycle
from ..core.driving import drive
from ..core.protocol import Ack, Claim, Claimed, Complete, Renew, Request, Verdict
from ..errors import ConfigurationError, StoreError, StoreUnavailableError
from ..records import Row
from .base import Capabilities, Finding, Program, Store
from .inside import Inside
from .joining import ThreadedStore
from .lane import Lane
from .migrating import Schema, check, migrate
from .outbox import OUTBOX_READING, is_outbox
from .programs import READING, SqlPrograms
from .sql import (
    COLUMNS,
    PRESENT,
    Change,
    Query,
    atomically,
    number_of,
    present_from,
    scope_text,
)
from .sqlite_outbox import SqliteOutbox
from .urls import identifier, options_of

__all__ = ["AsyncSqliteStore", "SqliteStore"]

T = TypeVar("T")

OPTIONS: Final = {"synchronous": "full", "timeout": 5.0, "table": "twicesafe", "migrate": True}

APART: Final = 2048
"""Results above this many bytes live in a table of their own, off the hot row."""

AT_ONCE: Final = 100
"""Keys in one look at many."""


class SqliteSchema(Schema):
    def exists(self) -> Program[bool]:
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return bool((yield Query(query, (f"{self.table}_meta",))))


class SqlitePrograms(SqlPrograms):
    """The common cases in one statement each. ``now`` is the store's clock."""

    begin = "BEGIN IMMEDIATE"
    lock = ""  # whoever has begun to write is alone

    def __init__(
        self, table: str, now: Callable[[], int], style: str = "?"
    ) -> None:
        """``style``: how whoever runs the statements writes the place of a value."""
        self.now = now
        self._style = style
        self.results = f"{table}_results"
        self.columns = COLUMNS.replace("result,", f"{_whole_result(table)},")
        super().__init__(table)
        present = PRESENT.replace("result", _whole_result(table))
        self._look = f"SELECT {present} FROM {self.records} WHERE id = ?"
        several = ", ".join("?" * AT_ONCE)
        self._look_at_many = f"SELECT id, {present} FROM {self.records} WHERE id IN ({several})"
        self._start = (
            f"INSERT INTO {self.records} (id, state, fence, attempt, owner, lease_until,"
            " created_at, changed_at, expires_at, hold, cause, scope, value, error, fingerprint)"
            f" VALUES (?1, 0, (SELECT floor + 1 FROM {self.meta}), 1, ?2, ?3, ?4, ?4, 0, ?5, 0,"
            " ?6, ?7, '', ?8) ON CONFLICT (id) DO NOTHING RETURNING fence"
        )
        self._complete = (
            f"UPDATE {self.records} SET state=?, result=?, error=?, lease_until=0, changed_at=?,"
            " expires_at=? WHERE id=? AND owner=? AND fence=? AND state=0"
        )
        self._renew = (
            f"UPDATE {self.records} SET lease_until=max(lease_until, ?) WHERE id=? AND owner=?"
            " AND fence=? AND state=0"
        )

    def mark(self, sql: str) -> str:
        return sql.replace("?", self._style)

    def clock(self) -> Program[int]:
        yield from ()
        return self.now()

    def peek(self, ask: Claim) -> Program[Claimed | None]:
        """The answer that needs no write, if there is one."""
        rows = yield Query(self._look, (ask.key.id,))
        return self._seen(ask, rows[0]) if rows else None

    def peek_all(self, asks: Sequence[Claim]) -> Program[list[Any]]:
        """The same for many, a hundred at once; what is wrong with a row stands in its place."""
        rows: dict[bytes, Any] = {}
        for start in range(0, len(asks), AT_ONCE):
            ids = [ask.key.id for ask in asks[start : start + AT_ONCE]]
            some = yield Query(self._look_at_many, (*ids, *[None] * (AT_ONCE - len(ids))))
            rows.update((row[0], row[1:]) for row in some)
        answers: list[Any] = []
        for ask in asks:
            row = rows.get(ask.key.id)
            try:
                answers.append(None if row is None else self._seen(ask, row))
            except StoreError as error:
                answers.append(error)
        return answers

    def _seen(self, ask: Claim, columns: Any) -> Claimed | None:
        row, now = present_from(ask.key.id, columns), self.now()
        return None if lifecycle.is_expired(row, now) else lifecycle.look(row, ask, now)

    def lone(self, ask: Request) -> Program[Any]:
        """A claim looks first, for a duplicate needs no write; the rest take their shortcut."""
        seen = (yield from self.peek(ask)) if type(ask) is Claim else None
        return seen if seen is not None else (yield from self.shortcut(ask))

    def shortcut(self, ask: Request) -> Program[Any]:
        now = self.now()
        if isinstance(ask, Claim):
            key = ask.key
            start = (
                key.id,
                ask.owner,
                now + ask.lease,
                now,
                ask.hold,
                scope_text(key.scope),
                key.value,
                ask.fingerprint,
            )
            rows = yield Query(self._start, start)
            return Claimed(Verdict.WON, rows[0][0], 1) if rows else None
        if isinstance(ask, Complete):
            if ask.result is not None and len(ask.result) > APART:
                return None
            end = (number_of(ask.state), ask.result, ask.error, now, now + ask.retention)
            changed = yield Change(self._complete, (*end, ask.id, ask.owner, ask.fence))
            return Ack.OK if changed else None
        if isinstance(ask, Renew):
            until = now + ask.lease
            changed = yield Change(self._renew, (until, ask.id, ask.owner, ask.fence))
            return Ack.OK if changed else None
        return None

    def save(self, row: Row, new: bool = False) -> Program[None]:
        apart = row.result is not None and len(row.result) > APART
        yield from super().save(replace(row, result=b"") if apart else row, new)
        this = self.mark("WHERE id = ?")
        which = f"SELECT n FROM {self.records} {this}"
        if apart:
            yield Change(f"UPDATE {self.records} SET apart = 1 {this}", (row.id,))
            keep = f"INSERT OR REPLACE INTO {self.results} VALUES (({which}), {self.mark('?')})"
            yield Change(keep, (row.id, row.result))
        elif not new:
            yield Change(f"UPDATE {self.records} SET apart = 0 {this} AND apart", (row.id,))
            yield Change(f"DELETE FROM {self.results} WHERE n = ({which})", (row.id,))

    def remove(self, numbers: list[int], now: int) -> Program[int]:
        removed = yield from super().remove(numbers, now)
        orphans = (
            f"n IN ({','.join(map(str, numbers))}) AND n NOT IN (SELECT n FROM {self.records})"
        )
        yield Change(f"DELETE FROM {self.results} WHERE {orphans}")
        return removed


def _whole_result(table: str) -> str:
    apart = f"(SELECT body FROM {table}_results r WHERE r.n = {table}_records.n)"
    return f"CASE apart WHEN 1 THEN {apart} ELSE result END"


_open_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_left_to_parent: list[object] = []
"""Connections that a forked child inherited: closing them there could harm the parent's."""


class SqliteStore(Store):
    capabilities: ClassVar[Capabilities] = Capabilities(transactions=True, outbox=True)

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: str = "full",
        timeout: float = 5.0,
        table: str = "twicesafe",
        migrate: bool = True,
        now: Callable[[], int] | None = None,
    ) -> None:
        if synchronous.lower() not in ("full", "normal"):
            raise ConfigurationError(f"synchronous={synchronous[:20]!r}: use full or normal")
        self.path = Path(path).absolute()
        self.url = f"sqlite:///{self.path}"
        self._synchronous = synchronous.lower()
        self._timeout = timeout
        self._table = identifier(table)
        self._schema = SqliteSchema("sqlite", self._table)
        self._clock = now
        self._offset = 0
        self.programs = SqlitePrograms(self._table, now or self._now)
        outbox = SqliteSchema("sqlite_outbox", f"{self._table}_outbox")
        self.outbox = SqliteOutbox(outbox, lambda: self.programs.now(), migrate)  # noqa: PLW0108 - it may change
        self._tap: Callable[[str, Any], None] | None = None
        """Tests only: called before and after every statement."""
        self._writer: sqlite3.Connection | None = None
        self._fresh()
        _open_stores.add(self)
        with self._errors():
            if migrate:
                self.migrated = self.migrate()
            self._check_schema()
            self._agree_on_time()

    @classmethod
    def open(cls, url: str) -> Self:
        return cls(_path_of(url), **options_of(url, OPTIONS))

    @classmethod
    def script(cls, url: str) -> str:
        return SqliteSchema("sqlite", identifier(options_of(url, OPTIONS)["table"])).script()

    def inside(self, style: str) -> Inside:
        from .sqlite_inside import SqliteInside

        return SqliteInside(self._table, lambda: self.programs.now(), style)  # noqa: PLW0108 - it may change

    def apart(self, program: Callable[[], Program[T]]) -> T:
        whole = atomically(program(), SqlitePrograms.begin)
        with self._errors():
            return self._lane.alone(lambda: self._alone(whole))

    @classmethod
    def outbox_script(cls, url: str) -> str:
        table = identifier(options_of(url, OPTIONS)["table"])
        return SqliteSchema("sqlite_outbox", f"{table}_outbox").script()

    # -- the store's clock --------------------------------------------------------------------

    def _now(self) -> int:
        return int(since_boot() * 1000) + self._offset

    def _agree_on_time(self) -> None:
        """The first to open the store after a boot sets the offset; all others take it."""
        boot = boot_id()
        if self._clock is not None:
            return
        if not boot:
            self.programs.now = wall_clock
            return

        def agreed() -> Program[int | None]:
            rows = yield Query(f"SELECT boot, clock FROM {self._table}_meta")
            return rows[0][1] if rows[0][0] == boot else None

        def agree() -> Program[int]:
            known = yield from agreed()
            if known is not None:
                return known
            latest = yield Query(
                f"SELECT changed_at FROM {self._table}_records ORDER BY n DESC LIMIT 1"
            )
            newest = latest[0][0] if latest else 0
            offset = max(wall_clock(), newest) - int(since_boot() * 1000)
            yield Change(f"UPDATE {self._table}_meta SET boot = ?, clock = ?", (boot, offset))
            return offset

        offset = self._alone(agreed())  # by far most often: nobody who is writing is waited for
        if offset is None:
            offset = self._alone(atomically(agree(), SqlitePrograms.begin))
        self._offset = offset

    # -- performing ---------------------------------------------------------------------------

    def perform(self, request: Request) -> Any:
        op = request.op
        if is_outbox(op):
            return self._perform_outbox(request)
        if op == "claim" and self._lane.busy:  # others write: look beside them first
            answer = self._reading(self.programs.peek(request))  # type: ignore[arg-type]
            if answer is not None:
                return answer
        if op in READING:
            return self._reading(getattr(self.programs, op)(request))
        if op == "sweep":
            with self._errors():
                return self._writing(self.programs.sweep(request))  # type: ignore[arg-type]
        return self._lane.perform(request)

    def _perform_outbox(self, request: Any) -> Any:
        program = self.outbox.perform(request)
        if request.op in OUTBOX_READING:
            return self._reading(program)
        with self._errors():
            return self._lane.alone(lambda: self._alone(program))

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers: list[Any] = [_TO_WRITE] * len(requests)
        try:
            claims = [index for index, ask in enumerate(requests) if type(ask) is Claim]
            if claims:
                asks: list[Any] = [requests[index] for index in claims]
                seen = self._reading(self.programs.peek_all(asks))
                for index, answer in zip(claims, seen, strict=True):
                    answers[index] = _TO_WRITE if answer is None else answer
            for index, request in enumerate(requests):
                if type(request) is not Claim:
                    answers[index] = self._without_writing(request)
            writes = [index for index, answer in enumerate(answers) if answer is _TO_WRITE]
            if writes:
                batch = [requests[index] for index in writes]
                written = self._lane.alone(lambda: self._write_all(batch))
                for index, answer in zip(writes, written, strict=True):
                    answers[index] = answer
        except StoreUnavailableError as error:
            answers = [error.again() if answer is _TO_WRITE else answer for answer in answers]
        return answers

    def _without_writing(self, request: Request) -> Any:
        """The answer to an item that writes nothing in the lane, or its own error."""
        try:
            if request.op in READING or request.op == "sweep" or is_outbox(request.op):
                return self.perform(request)
        except StoreUnavailableError:
            raise
        except Exception as error:
            return error
        return _TO_WRITE

    def _reading(self, program: Program[T]) -> T:
        """On a connection of its own: readers wait for nobody."""
        try:
            connection = self._readers.pop()
        except IndexError:
            connection = self._connect()
        try:
            answer = drive(program, self._executor(connection))
        except sqlite3.Error as error:
            connection.close()
            raise self._trouble(error) from error
        except BaseException:
            connection.close()
            raise
        self._readers.append(connection)
        return answer

    def _write_one(self, request: Any) -> Any:
        """A lone call looks and writes on the writer: its pages are warm, a reader's are not."""
        try:
            answer = self._alone(self.programs.lone(request))
            if answer is None:
                decision = self.programs.decide(request)
                answer = self._alone(atomically(decision, SqlitePrograms.begin))
        except sqlite3.Error as error:
            raise self._trouble(error) from error
        return answer

    def _write_all(self, requests: list[Any]) -> list[Any]:
        try:
            with self._errors():
                together = self.programs.together(requests)
                return self._alone(atomically(together, SqlitePrograms.begin))
        except StoreUnavailableError as error:
            return [error.again() for _ in requests]
        except Exception:
            # One of them cannot be done and undid the others: alone, each gets its own answer.
            return [self._write_alone(request) for request in requests]

    def _write_alone(self, request: Any) -> Any:
        try:
            return self._write_one(request)
        except Exception as error:
            return error

    def _writing(self, program: Program[T]) -> T:
        """A program that is no exchange, when the lane is free for it."""
        return self._lane.alone(lambda: self._alone(program))

    def _alone(self, program: Program[T]) -> T:
        if self._writer is None:
            self._writer = self._connect()
        try:
            return drive(program, self._executor(self._writer))
        except BaseException:
            # Whatever it was, no half-done transaction stays behind on our connection.
            self._writer.close()
            self._writer = None
            raise

    def _executor(self, connection: sqlite3.Connection) -> Callable[[Any], Any]:
        run = connection.execute
        tap = self._tap

        def execute(command: Any) -> Any:
            if tap is not None:
                tap("before", command)
            cursor = run(command.sql, command.args)
            reply = cursor.fetchall() if type(command) is Query else cursor.rowcount
            if tap is not None:
                tap("after", command)
            return reply

        return execute

    # -- connections --------------------------------------------------------------------------

    def _fresh(self) -> None:
        self._lane = Lane(self._write_one, self._write_all)
        self._readers: deque[sqlite3.Connection] = deque()
        self._writer = None

    def _after_fork(self) -> None:
        _left_to_parent.append((self._writer, self._readers))
        self._fresh()

    def _connect(self) -> sqlite3.Connection:
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
            self._into_wal(connection)
            connection.execute(f"PRAGMA synchronous={self._synchronous}")
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
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._trouble(error) from error

    def _trouble(self, error: sqlite3.Error) -> StoreError:
        """Only what another try may cure is told as an outage."""
        hopeless = (sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.IntegrityError)
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        kind = StoreError if isinstance(error, hopeless) else StoreUnavailableError
        return kind(f"SQLite says {name} on {self.path}: {error}")

    # -- upkeep -------------------------------------------------------------------------------

    def migrate(self) -> list[str]:
        with self._errors():
            return self._writing(migrate(self._schema, SqlitePrograms.begin))

    def _check_schema(self) -> None:
        check(self._schema, self._alone(self._schema.version()), str(self.path))

    def doctor(self) -> list[Finding]:
        kind = _filesystem(self.path)
        remote = kind.startswith(("nfs", "cifs", "smb", "fuse.sshfs", "9p", "ceph", "glusterfs"))
        with self._errors():
            check = self._reading(_pragma("quick_check"))
            version = sqlite3.sqlite_version
        normal = self._synchronous == "normal"
        return [
            Finding("refuse", f"the file is on {kind}, where locks fail", "use a local disk")
            if remote
            else Finding("ok", f"local file system ({kind or 'unknown'})"),
            Finding("warn", "synchronous=normal: a power cut can lose the last commits")
            if normal
            else Finding("ok", "WAL with synchronous=full"),
            Finding("ok" if check == "ok" else "refuse", f"integrity: {check}"),
            Finding("ok", f"SQLite {version}, schema {self._schema.newest}"),
        ]

    def close(self) -> None:
        self._lane.alone(self._disconnect)

    def _disconnect(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        while self._readers:
            self._readers.pop().close()


class AsyncSqliteStore(ThreadedStore):
    """One worker thread runs whole requests; what gathers while it works is written together."""

    capabilities: ClassVar[Capabilities] = SqliteStore.capabilities

    @classmethod
    def open(cls, url: str) -> Self:
        path, options = _path_of(url), options_of(url, OPTIONS)
        identifier(options["table"])  # now, not when it is first used
        return cls(lambda: SqliteStore(path, **options), f"sqlite:///{Path(path).absolute()}")


_TO_WRITE: Final = object()
"""In place of an answer: this item needs the lane."""


def _pragma(name: str) -> Program[Any]:
    return (yield Query(f"PRAGMA {name}"))[0][0]


def _path_of(url: str) -> str:
    start = "sqlite:///"
    path = unquote(url.partition("?")[0][len(start) :]) if url.startswith(start) else ""
    if not path or path == ":memory:" or path.startswith("file:"):
        raise ConfigurationError(
            "a SQLite URL is sqlite:///file.db or sqlite:////absolute/file.db; "
            "for a store without a file use memory://"
        )
    return path


def _filesystem(path: Path) -> str:
    """The type of file system that a path is on, where the system tells."""
    best, kind = "", ""
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return ""
    for line in mounts:
        _, at, what, *_ = line.split(" ")
        if str(path).startswith(at.rstrip("/") + "/") and len(at) > len(best):
            best, kind = at, what
    return kind


def _after_fork() -> None:
    for store in list(_open_stores):
        store._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
