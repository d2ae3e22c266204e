"""The stores: for threads a write lane and readers of their own, for event loops one worker thread."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar

from ..._core import lifecycle
from ..._core.driving import drive
from ..._core.protocol import Ack, Claimed, ClaimRequest, Request, Verdict
from ..._forking import around_fork
from ..._values.clocks import boot_id, since_boot, wall_clock
from ...errors import StoreError, StoreUnavailableError
from ...stores._base import Capabilities, Finding, Program, Store
from ...stores._batching import ThreadedStore
from ...stores._group_commit import GroupCommit
from ...stores._urls import identifier, options_of
from ..sql.commands import Change, Query, atomically
from ..sql.in_transaction import InTransaction
from ..sql.migrations import check, migrate
from ..sql.programs import ACTS, READING
from .in_transaction import SqliteInTransaction
from .outbox_programs import SqliteOutbox, SqliteOutboxPort
from .programs import SqlitePrograms, SqliteSchema
from .settings import OPTIONS, DatabaseFile, path_of

__all__ = ["AsyncSqliteStore", "SqliteStore"]

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

COME_BACK: Final = 500
"""Milliseconds after which to ask again for a file that a writer keeps."""

_left_to_parent: list[object] = []
"""Connections that a forked child inherited: closing them there could harm the parent's."""

FORK_PATIENCE: Final = 5.0
"""Seconds, besides the store's time-out, that a fork waits for the store's threads."""


class Fork:
    """One fork, while the store stands still for it."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.holds = False
        """We hold the write lane."""
        self.clean = False
        """No connection is open."""


class SqliteStore(Store):
    capabilities: ClassVar[Capabilities] = Capabilities(
        transactions=True, single_writer=True, outbox=True
    )
    dialect = "sqlite"
    recalls: ClassVar[bool] = True

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
        self._file = DatabaseFile(path, synchronous, timeout)
        self.path = self._file.path
        self.url = f"sqlite:///{self.path}"
        self._table = identifier(table)
        self._schema = SqliteSchema("sqlite", self._table)
        self._clock = now
        self._offset = 0
        self.programs = SqlitePrograms(self._table, now or self._now)
        outbox = SqliteSchema("sqlite_outbox", f"{self._table}_outbox")
        statements = SqliteOutbox(outbox, lambda: self.programs.now(), migrate)  # noqa: PLW0108 - it may change
        self._outbox = SqliteOutboxPort(statements, self._reading, self._writing_outbox)
        self._tap: Callable[[str, Any], None] | None = None
        """Tests only: called before and after every statement."""
        self._writer: sqlite3.Connection | None = None
        self._fork: Fork | None = None
        self._is_lost = False
        self._fresh()
        around_fork(self._before_fork, self._after_fork_in_parent, self._after_fork_in_child)
        with self._file.errors():
            if migrate:
                self.migrated = self.migrate()
            self._check_schema()
            self._agree_on_time()

    @classmethod
    def open(cls, url: str) -> Self:
        return cls(path_of(url), **options_of(url, OPTIONS))

    @classmethod
    def missing(cls, url: str) -> bool:
        options_of(url, OPTIONS)
        return not Path(path_of(url)).exists()

    @classmethod
    def script(cls, url: str) -> str:
        return SqliteSchema("sqlite", identifier(options_of(url, OPTIONS)["table"])).script()

    def in_transaction(self, style: str = "?") -> InTransaction:
        return SqliteInTransaction(self._table, lambda: self.programs.now(), style)  # noqa: PLW0108 - it may change

    def own_transaction(self, program: Callable[[], Program[T]]) -> T:
        whole = atomically(program(), SqlitePrograms.begin)
        with self._file.errors():
            return self._writing(whole)

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

        offset = self._writing(agreed())  # by far most often: nobody who is writing is waited for
        if offset is None:
            offset = self._writing(atomically(agree(), SqlitePrograms.begin))
        self._offset = offset

    # -- performing ---------------------------------------------------------------------------

    def recall(self, id: bytes) -> Claimed | None:  # noqa: A002
        try:
            if self._lane.busy or self._tap is not None:  # beside those who write
                return self._reading(self.programs.recall(id))
            return self._lane.alone(partial(self._recall, id))
        except (sqlite3.Error, StoreError):
            return lifecycle.ASK

    def _recall(self, id_: bytes) -> Claimed | None:
        if self._writer is None:
            self._writer = self._connect()
        rows = self._writer.execute(self.programs.look, (id_,)).fetchall()
        self._file.check()
        return self.programs.recalled(id_, rows)

    def perform(self, request: Request) -> Any:
        op = request.op
        if isinstance(request, ClaimRequest) and not request.looked and self._lane.busy:
            answer = self._reading(self.programs.peek(request))  # beside those who write
            if answer is not None:
                return answer
        if op in READING:
            return self._reading(getattr(self.programs, op)(request))
        if op == "sweep":
            with self._file.errors():
                return self._writing(self.programs.sweep(request))  # type: ignore[arg-type]
        return self._lane.perform(request)

    @property
    def outbox(self) -> SqliteOutboxPort:
        return self._outbox

    def _writing_outbox(self, program: Program[T]) -> T:
        with self._file.errors():
            return self._lane.alone(lambda: self._alone(program))

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers: list[Any] = [_TO_WRITE] * len(requests)
        try:
            claims = [index for index, ask in enumerate(requests) if type(ask) is ClaimRequest]
            if claims:
                asks: list[Any] = [requests[index] for index in claims]
                seen = self._reading(self.programs.peek_all(asks))
                for index, answer in zip(claims, seen, strict=True):
                    answers[index] = _TO_WRITE if answer is None else answer
            for index, request in enumerate(requests):
                if type(request) is not ClaimRequest:
                    answers[index] = self._without_writing(request)
            writes = [index for index, answer in enumerate(answers) if answer is _TO_WRITE]
            if writes:
                batch = [requests[index] for index in writes]
                written = self._lane.alone(lambda: self._write_all(batch))
                for index, answer in zip(writes, written, strict=True):
                    answers[index] = answer
        except StoreError as error:
            answers = [error.again() if answer is _TO_WRITE else answer for answer in answers]
        return answers

    def _without_writing(self, request: Request) -> Any:
        """The answer to an item that writes nothing in the lane, or its own error."""
        try:
            if request.op in READING or request.op == "sweep":
                return self.perform(request)
        except StoreUnavailableError:
            raise
        except Exception as error:
            return error
        return _TO_WRITE

    def _reading(self, program: Program[T]) -> T:
        """On a connection of its own: readers wait for nobody, but for a fork."""
        me = object()
        connection: sqlite3.Connection | None = None
        try:
            self._reading_now[me] = None
            while (
                fork := self._fork
            ) is not None:  # entered first, so one of us two sees the other
                del self._reading_now[me]
                fork.over.wait(self._file.timeout + FORK_PATIENCE)
                self._reading_now[me] = None
            try:
                connection = self._readers.pop()
            except IndexError:
                connection = self._connect()
            answer = drive(program, self._executor(connection))
            self._file.check()
            self._readers.append(connection)
        except sqlite3.Error as error:
            raise self._ended(connection, self._file.trouble(error)) from error
        except BaseException as error:
            self._ended(connection, error)
            raise
        finally:
            self._reading_now.pop(me, None)
        return answer

    def _ended(self, connection: sqlite3.Connection | None, error: E) -> E:
        if connection is not None:
            connection.close()
        return error

    def _write_one(self, request: Any) -> Any:
        """A lone call looks and writes on the writer: its pages are warm, a reader's are not."""
        try:
            if self._tap is not None or (type(request) is ClaimRequest and not request.looked):
                answer = self._alone(self.programs.lone(request))
            else:
                answer = self._at_once(request)
            if answer is None:
                decision = self.programs.decide(request)
                answer = self._alone(atomically(decision, SqlitePrograms.begin))
        except sqlite3.Error as error:
            if _is_told(request) and is_held(error):
                return self._looked(request)
            raise self._file.trouble(error) from error
        return answer

    def _at_once(self, request: Any) -> Any:
        """The one statement of the common case, without a program around it; None: not common."""
        statement = self.programs.statement_for(request)
        if statement is None:
            return None
        if self._writer is None:
            self._writer = self._connect()
        try:
            cursor = self._writer.execute(statement.sql, statement.args)
            reply = cursor.fetchall() if type(statement) is Query else cursor.rowcount
            self._file.check()
        except BaseException:
            self._writer.close()
            self._writer = None
            raise
        return self.programs.meaning(request, reply)

    def _looked(self, ask: Any) -> Any:
        """A writer keeps the file beyond our patience, most likely an open inbox transaction. If the
        file can be read, the store is up: the key is being worked on, as far as anybody can tell."""
        if ask.op in ACTS:
            self._reading(self.programs.load(ask.id))
            return Ack.LOCKED
        answer = self._reading(self.programs.peek(ask))
        return Claimed(Verdict.BUSY, wait=COME_BACK, locked=True) if answer is None else answer

    def _write_all(self, requests: list[Any]) -> list[Any]:
        try:
            with self._file.errors():
                together = self.programs.together(requests)
                return self._alone(atomically(together, SqlitePrograms.begin))
        except StoreUnavailableError as error:
            if is_held(error.__cause__):
                return [self._looked_or(request, error) for request in requests]
            return [error.again() for _ in requests]
        except Exception:
            # One of them cannot be done and undid the others: alone, each gets its own answer.
            return [self._write_alone(request) for request in requests]

    def _looked_or(self, request: Any, error: StoreUnavailableError) -> Any:
        try:
            return self._looked(request) if _is_told(request) else error.again()
        except StoreUnavailableError as worse:
            return worse

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
            answer = drive(program, self._executor(self._writer))
            self._file.check()
        except BaseException:
            # Whatever it was, no half-done transaction stays behind on our connection.
            self._writer.close()
            self._writer = None
            raise
        return answer

    def _executor(self, connection: sqlite3.Connection) -> Callable[[Any], Any]:
        run = connection.execute
        tap = self._tap

        def execute(command: Any) -> Any:
            if command.sql == "ROLLBACK" and not connection.in_transaction:
                return (
                    0  # a full disk rolls back by itself: the error that matters is the first one
                )
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
        self._lane = GroupCommit(self._write_one, self._write_all)
        self._readers: deque[sqlite3.Connection] = deque()
        self._reading_now: dict[object, None] = {}
        self._writer = None

    def _connect(self) -> sqlite3.Connection:
        if self._is_lost:
            raise StoreError(
                "this process was forked while another thread was using the store, and SQLite's locks in "
                "it cannot be told from its parent's; fork before the store is used, or use spawn"
            )
        return self._file.connect()

    # -- forks: SQLite counts its locks per process, and a child would inherit those of our threads ----

    def _before_fork(self) -> None:
        """Nobody reads, nobody writes, and nothing is open; so the child inherits no lock."""
        fork = Fork()
        patience = self._file.timeout + FORK_PATIENCE
        until = time.monotonic() + patience
        fork.holds = self._lane.hold(patience)  # before readers wait: who writes may have to read
        self._fork = fork
        while self._reading_now and time.monotonic() < until:
            time.sleep(0.0005)
        if fork.holds and not self._reading_now:
            self._disconnect()
            fork.clean = True

    def _after_fork_in_parent(self) -> None:
        fork, self._fork = self._fork, None
        if fork is not None:
            if fork.holds:
                self._lane.let_go()
            fork.over.set()

    def _after_fork_in_child(self) -> None:
        fork, self._fork = self._fork, None
        if fork is None or not fork.clean:
            self._is_lost = True
            _left_to_parent.append((self._writer, self._readers))
        self._fresh()

    # -- upkeep -------------------------------------------------------------------------------

    def migrate(self) -> list[str]:
        with self._file.errors():
            return self._writing(migrate(self._schema, SqlitePrograms.begin))

    def _check_schema(self) -> None:
        check(self._schema, self._writing(self._schema.version()), str(self.path))

    def doctor(self) -> list[Finding]:
        kind = self._file.filesystem()
        remote = kind.startswith(("nfs", "cifs", "smb", "fuse.sshfs", "9p", "ceph", "glusterfs"))
        with self._file.errors():
            check = self._reading(_pragma("quick_check"))
            version = sqlite3.sqlite_version
        normal = self._file.synchronous == "normal"
        return [
            Finding("refuse", f"the file is on {kind}, where locks fail", "use a local disk")
            if remote
            else Finding("ok", f"local file system ({kind or 'unknown'})"),
            Finding("warn", "synchronous=normal: a power cut can lose the last commits")
            if normal
            else Finding("ok", "WAL with synchronous=full"),
            Finding("ok" if check == "ok" else "refuse", f"integrity: {check}"),
            Finding("ok", "readable by its owner only")
            if self._file.is_private()
            else Finding(
                "warn",
                "other users of this machine may read the file, and results are in it",
                f"chmod 600 {self.path}*, if no other user's process needs it",
            ),
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
        path, options = path_of(url), options_of(url, OPTIONS)
        identifier(options["table"])  # now, not when it is first used
        return cls(lambda: SqliteStore(path, **options), f"sqlite:///{Path(path).absolute()}")


def is_held(error: BaseException | None) -> bool:
    """Does another connection write, and go on writing?"""
    return getattr(error, "sqlite_errorname", "") in ("SQLITE_BUSY", "SQLITE_BUSY_TIMEOUT")


_TO_WRITE: Final = object()
"""In place of an answer: this item needs the lane."""


def _is_told(request: Any) -> bool:
    """Is the answer that a transaction holds the file? An owner asks again instead."""
    return type(request) is ClaimRequest or request.op in ACTS


def _pragma(name: str) -> Program[Any]:
    return (yield Query(f"PRAGMA {name}"))[0][0]
