"""The SQLite stores: `SqliteStore` for threads, `AsyncSqliteStore` for event loops.

Here each request chooses its way: answered by a read, written alone in one statement, or written with
others in one transaction. `connections` runs it; `programs` holds the statements.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar

from ..._core import lifecycle
from ..._core.protocol import Ack, Claimed, ClaimRequest, Complete, Request, Verdict
from ..._core.run_requests import RUN_OPS, WITHOUT_RUNS
from ..._values.clocks import boot_id, since_boot, wall_clock
from ...errors import SchemaVersionError, StoreError, StoreUnavailableError
from ...stores._base import Capabilities, Finding, Program, Progress, Store
from ...stores._threaded_store import ThreadedStore
from ...stores._urls import identifier, options_of
from ..sql.commands import Change, Query, atomically
from ..sql.in_transaction import InTransaction
from ..sql.layouts import MOVING, Layout, layout_findings
from ..sql.migrations import LAYOUT_CHANGES, migrate_records, prepare
from ..sql.moving import RecordMoves
from ..sql.programs import ACTS, READING
from .connections import SqliteConnections
from .in_transaction import SqliteInTransaction
from .outbox_programs import SqliteOutbox, SqliteOutboxPort
from .programs import SqlitePrograms, SqliteRecordsSchema, SqliteSchema
from .settings import OPTIONS, DatabaseFile, path_of

__all__ = ["AsyncSqliteStore", "SqliteStore"]

T = TypeVar("T")

RETRY_WHEN_LOCKED: Final = 500
"""Milliseconds after which to claim again, when another transaction locks the file."""

EMPTY_LOOKS: Final = 64
"""After this many looks in a row that found no record, claims are made without a look, until one of
them finds a record. Most keys are delivered once, and a look is one of three statements then."""

_TO_WRITE: Final = object()
"""In place of an answer: this item needs a write."""


class SqliteStore(SqliteConnections, Store):
    """The blocking store on one file."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        transactions=True, single_writer=True, outbox=True, steps=True, copies=True
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
        super().__init__(DatabaseFile(path, synchronous, timeout))
        self.path = self._file.path
        self.url = f"sqlite:///{self.path}"
        self._table = identifier(table)
        self._schema = SqliteRecordsSchema("sqlite", self._table)
        self._clock = now
        self._offset = 0
        self._empty_looks = 0
        outbox = SqliteSchema("sqlite_outbox", f"{self._table}_outbox")
        statements = SqliteOutbox(outbox, lambda: self.programs.now(), migrate)  # noqa: PLW0108 - it may change
        self._outbox = SqliteOutboxPort(statements, self._read, self._write)
        if migrate:
            self.migrated = self._write(prepare(self._schema, SqlitePrograms.begin))
        self._migrates = migrate
        self.programs = self._programs(now or self._now, self._present_layout())
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
        table = identifier(options_of(url, OPTIONS)["table"])
        runs = SqliteSchema("sqlite_runs", f"{table}_runs")
        return f"{SqliteRecordsSchema('sqlite', table).script()}\n{runs.script()}"

    def in_transaction(self, style: str = "?") -> InTransaction:
        now = lambda: self.programs.now()  # noqa: E731, PLW0108 - it may change
        return SqliteInTransaction(self._table, now, style, self.programs.layout)

    def own_transaction(self, program: Callable[[], Program[T]]) -> T:
        return self._write(atomically(program(), SqlitePrograms.begin))

    @classmethod
    def outbox_script(cls, url: str) -> str:
        table = identifier(options_of(url, OPTIONS)["table"])
        return SqliteSchema("sqlite_outbox", f"{table}_outbox").script()

    # -- the store's clock --------------------------------------------------------------------

    def _now(self) -> int:
        return int(since_boot() * 1000) + self._offset

    def _agree_on_time(self) -> None:
        """The first process that opens the store after a boot sets the offset; the others use it."""
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
                f"SELECT changed_at FROM {self.programs.records} ORDER BY n DESC LIMIT 1"
            )
            newest = latest[0][0] if latest else 0
            offset = max(wall_clock(), newest) - int(since_boot() * 1000)
            yield Change(f"UPDATE {self._table}_meta SET boot = ?, clock = ?", (boot, offset))
            return offset

        # Almost always the offset is there: then this only reads, and waits for no other process.
        offset = self._write(agreed())
        if offset is None:
            offset = self._write(atomically(agree(), SqlitePrograms.begin))
        self._offset = offset

    # -- performing ---------------------------------------------------------------------------

    def recall(self, id: bytes) -> Claimed | None:  # noqa: A002
        writes = self._writes
        if self.programs.moves is not None:
            return lifecycle.ASK
        try:
            if writes.is_busy() or self._tap is not None:  # do not wait for the writer
                return self._read(self.programs.recall(id))
            if self._empty_looks >= EMPTY_LOOKS:
                return None
            return writes.alone(self._recall, id)
        except (sqlite3.Error, StoreError):
            return lifecycle.ASK

    def _recall(self, id_: bytes) -> Claimed | None:
        cursor = self._cursor or self._open_writer()
        try:
            rows = cursor.execute(
                self.programs.look_for_answer, (bytearray(self.programs.stored(id_)),)
            ).fetchall()
        except BaseException:
            self._close_writer()  # an open statement would keep its snapshot
            raise
        if not rows:
            self._empty_looks += 1
            return None  # a claim follows, and its answer is checked
        self._empty_looks = 0
        self._file.check()
        return self.programs.recalled(id_, rows)

    def perform(self, request: Request, tries: int = LAYOUT_CHANGES) -> Any:
        """`tries`: how often it is repeated if the records were migrated to another layout meanwhile."""
        op = request.op
        try:
            if op in RUN_OPS and not self._has_runs(op):
                return WITHOUT_RUNS[op]
            if self.programs.moves is not None:
                moved = self.programs.move_and_perform(request)
                return self._write(atomically(moved, SqlitePrograms.begin))
            if type(request) is Complete:
                return self._writes.perform(request)
            if type(request) is ClaimRequest:
                if not request.looked and self._writes.is_busy():  # do not wait for the writer
                    answer = self._read(self.programs.peek(request))
                    if answer is not None:
                        return answer
                return self._writes.perform(request)
            if op in READING:
                return self._read(getattr(self.programs, op)(request))
            if op == "sweep":
                return self._write(self.programs.sweep(request))  # type: ignore[arg-type]
            return self._writes.perform(request)
        except SchemaVersionError:
            if not tries:
                raise
            self.refresh()
            return SqliteStore.perform(self, request, tries - 1)

    @property
    def outbox(self) -> SqliteOutboxPort:
        return self._outbox

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers = self._perform_many(requests)
        for index, answer in enumerate(answers):
            if isinstance(answer, SchemaVersionError):
                self.refresh()
                answers[index] = self._perform_or_error(requests[index])
        return answers

    def _has_runs(self, op: str) -> bool:
        """Create the tables of durable runs, before the transaction that needs them.

        False: they are missing, and this request does not need them.
        """
        runs = self.programs.runs
        return runs.is_ready or self._write(runs.prepared(op))

    def _perform_many(self, requests: Sequence[Request]) -> list[Any]:
        if any(request.op in RUN_OPS for request in requests):
            self._has_runs("record_step")
        if self.programs.moves is not None:
            return [self._perform_or_error(request) for request in requests]
        answers: list[Any] = [_TO_WRITE] * len(requests)
        try:
            claims = [index for index, ask in enumerate(requests) if type(ask) is ClaimRequest]
            if claims:
                asks: list[Any] = [requests[index] for index in claims]
                seen = self._read(self.programs.peek_all(asks))
                for index, answer in zip(claims, seen, strict=True):
                    answers[index] = _TO_WRITE if answer is None else answer
            for index, request in enumerate(requests):
                if type(request) is not ClaimRequest:
                    answers[index] = self._answer_unbatched(request)
            writes = [index for index, answer in enumerate(answers) if answer is _TO_WRITE]
            if writes:
                batch = [requests[index] for index in writes]
                written = self._writes.alone(lambda: self._write_all(batch))
                for index, answer in zip(writes, written, strict=True):
                    answers[index] = answer
        except StoreError as error:
            answers = [error.again() if answer is _TO_WRITE else answer for answer in answers]
        return answers

    def _perform_or_error(self, request: Request) -> Any:
        try:
            return SqliteStore.perform(self, request)
        except Exception as error:
            return error

    def _answer_unbatched(self, request: Request) -> Any:
        """The answer or the error of an item that is not batched; `_TO_WRITE` for all others."""
        try:
            if request.op in READING or request.op == "sweep":
                return self.perform(request)
        except StoreUnavailableError:
            raise
        except Exception as error:
            return error
        return _TO_WRITE

    def _write_one(self, request: Any) -> Any:
        """A single claim also reads on the writing connection, because its page cache is warm."""
        try:
            if self._tap is not None or (type(request) is ClaimRequest and not request.looked):
                answer = self._run_on_writer(self.programs.look_or_shortcut(request))
            else:
                answer = self._run_common_case(request)
                if answer is None and type(request) is ClaimRequest:  # it may have a record
                    self._empty_looks = 0
                    answer = self._run_on_writer(self.programs.peek(request))
            if answer is None:
                decision = self.programs.decide(request)
                answer = self._run_on_writer(atomically(decision, SqlitePrograms.begin))
        except sqlite3.Error as error:
            if _can_answer_locked(request) and _is_locked(error):
                self._empty_looks = 0  # a look would not have waited
                return self._answer_locked(request)
            raise self._file.trouble(error) from error
        return answer

    def _run_common_case(self, request: Any) -> Any:
        """One statement, without the cost of a program. None: this request needs more."""
        programs = self.programs
        common = programs.common_cases.get(type(request))
        if common is None:
            return None
        sql, values_of, answer_to = common
        values = values_of(request, programs.now())
        if values is None:
            return None
        cursor = self._cursor or self._open_writer()
        try:
            changed = cursor.execute(sql, values).rowcount
            self._file.check()
        except BaseException:
            self._close_writer()
            raise
        return answer_to(values) if changed else None

    def _answer_locked(self, ask: Any) -> Any:
        """The answer when another transaction, most likely an inbox's, locks the file for too long.

        If the file can be read, the store is up. The key may be one of that transaction's, so it
        counts as in progress.
        """
        if ask.op in ACTS:
            self._read(self.programs.load(ask.id))
            return Ack.LOCKED
        answer = self._read(self.programs.peek(ask))
        return (
            Claimed(Verdict.BUSY, wait=RETRY_WHEN_LOCKED, locked=True) if answer is None else answer
        )

    def _write_all(self, requests: list[Any]) -> list[Any]:
        try:
            with self._file.errors():
                together = self.programs.together(requests)
                return self._run_on_writer(atomically(together, SqlitePrograms.begin))
        except StoreUnavailableError as error:
            if _is_locked(error.__cause__):
                return [self._answer_locked_or_error(request, error) for request in requests]
            return [error.again() for _ in requests]
        except Exception:
            # One request failed and rolled back all of them: run each alone for its own answer.
            return [self._write_one_or_error(request) for request in requests]

    def _answer_locked_or_error(self, request: Any, error: StoreUnavailableError) -> Any:
        try:
            return self._answer_locked(request) if _can_answer_locked(request) else error.again()
        except StoreUnavailableError as worse:
            return worse

    def _write_one_or_error(self, request: Any) -> Any:
        try:
            return self._write_one(request)
        except Exception as error:
            return error

    # -- upkeep -------------------------------------------------------------------------------

    def migrate(self, tell: Progress = None) -> list[str]:
        begin = SqlitePrograms.begin
        done = self._write(prepare(self._schema, begin))
        done += migrate_records(
            self._schema, self._moves, lambda program: self._write(program()), begin, tell
        )
        self.refresh()
        return done + self._write(self.programs.runs.migrated())

    def _moves(self) -> RecordMoves:
        return SqlitePrograms(self._table, self.programs.now, layout=MOVING).moves  # type: ignore[no-any-return]

    def _programs(self, now: Callable[[], int], layout: Layout) -> SqlitePrograms:
        programs = SqlitePrograms(self._table, now, layout=layout)
        programs.migrates = self._migrates
        return programs

    def _present_layout(self) -> Layout:
        return self._write(self._schema.layout(str(self.path)))

    def refresh(self) -> None:
        layout, old = self._present_layout(), self.programs
        if layout.version > old.layout.version:
            self.programs = self._programs(old.now, layout)

    def doctor(self) -> list[Finding]:
        kind = self._file.filesystem()
        remote = kind.startswith(("nfs", "cifs", "smb", "fuse.sshfs", "9p", "ceph", "glusterfs"))
        check = self._read(_pragma("quick_check"))
        normal = self._file.synchronous == "normal"
        return [
            Finding("refuse", f"the file is on {kind}, where locks do not work", "use a local disk")
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
                "other users of this machine may read the file, which holds results",
                f"chmod 600 {self.path}*, unless a process of another user needs it",
            ),
            Finding(
                "ok", f"SQLite {sqlite3.sqlite_version}, schema {self.programs.layout.version}"
            ),
            *layout_findings(self.programs.layout),
        ]


class AsyncSqliteStore(ThreadedStore):
    """The async version: one worker thread; requests that wait for it are written together."""

    capabilities: ClassVar[Capabilities] = SqliteStore.capabilities

    @classmethod
    def open(cls, url: str) -> Self:
        path, options = path_of(url), options_of(url, OPTIONS)
        identifier(options["table"])  # refuse a wrong name now, not on first use
        return cls(lambda: SqliteStore(path, **options), f"sqlite:///{Path(path).absolute()}")


def _is_locked(error: BaseException | None) -> bool:
    """Whether another connection kept its write lock for longer than the time-out."""
    return getattr(error, "sqlite_errorname", "") in ("SQLITE_BUSY", "SQLITE_BUSY_TIMEOUT")


def _can_answer_locked(request: Any) -> bool:
    """Claims and operators get an answer when the file is locked; an owner's requests are retried."""
    return isinstance(request, ClaimRequest) or request.op in ACTS


def _pragma(name: str) -> Program[Any]:
    return (yield Query(f"PRAGMA {name}"))[0][0]
