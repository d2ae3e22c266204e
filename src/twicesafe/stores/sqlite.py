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

import asyncio
import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar
from urllib.parse import unquote

from ..clocks import boot_id, since_boot, wall_clock
from ..core import lifecycle
from ..core.driving import drive
from ..core.protocol import (
    Ack,
    Browse,
    Claim,
    Claimed,
    Complete,
    Forget,
    History,
    Page,
    Read,
    Release,
    Request,
    Resolve,
    Survey,
    Sweep,
    Verdict,
)
from ..errors import ConfigurationError, SchemaVersionError, StoreError, StoreUnavailableError
from ..records import AuditEntry, Row, State, Stats, SweepReport, moment
from .base import AsyncStore, Capabilities, Finding, Program, Store
from .sql import (
    COLUMNS,
    STATES,
    Change,
    Query,
    atomically,
    number_of,
    row_from,
    scope_prefix,
    scope_text,
)
from .urls import identifier, options_of

__all__ = ["AsyncSqliteStore", "SqliteStore"]

T = TypeVar("T")

OPTIONS: Final = {"synchronous": "full", "timeout": 5.0, "table": "twicesafe", "migrate": True}

APART: Final = 2048
"""Results above this many bytes live in a table of their own, off the hot row."""

MIGRATIONS: Final[tuple[str, ...]] = (
    """
    CREATE TABLE {t}_meta (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        schema INTEGER NOT NULL,
        floor INTEGER NOT NULL,
        boot TEXT NOT NULL,
        clock INTEGER NOT NULL
    ) STRICT;
    INSERT INTO {t}_meta VALUES (1, 0, 0, '', 0);
    CREATE TABLE {t}_records (
        n INTEGER PRIMARY KEY,
        id BLOB NOT NULL UNIQUE,
        state INTEGER NOT NULL,
        fence INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        owner BLOB NOT NULL,
        lease_until INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        changed_at INTEGER NOT NULL,
        expires_at INTEGER NOT NULL,
        hold INTEGER NOT NULL,
        cause INTEGER NOT NULL,
        scope TEXT NOT NULL,
        value TEXT NOT NULL,
        error TEXT NOT NULL,
        fingerprint BLOB,
        apart INTEGER NOT NULL DEFAULT 0,
        result BLOB
    ) STRICT;
    CREATE TABLE {t}_results (n INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
    CREATE TABLE {t}_audit (
        id BLOB NOT NULL, at INTEGER NOT NULL, action TEXT NOT NULL, by TEXT NOT NULL,
        why TEXT NOT NULL, state_before INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX {t}_audit_id ON {t}_audit (id);
    """,
)


class SqlitePrograms:
    """Every request as a generator of statements. ``now`` is the store's clock."""

    def __init__(self, table: str, now: Callable[[], int]) -> None:
        self.now = now
        records, results, meta = f"{table}_records", f"{table}_results", f"{table}_meta"
        self._results, self._audit, self._records = results, f"{table}_audit", records
        self._meta = meta
        whole = COLUMNS.replace(
            "result,",
            f"CASE apart WHEN 1 THEN (SELECT body FROM {results} r"
            f" WHERE r.n = {records}.n) ELSE result END,",
        )
        self._select = f"SELECT {whole} FROM {records}"
        self._load = f"{self._select} WHERE id = ?"
        self._insert = (
            f"INSERT INTO {records} (id, state, fence, attempt, owner, lease_until, created_at,"
            " changed_at, expires_at, hold, cause, scope, value, error, fingerprint)"
            f" SELECT ?1, 0, floor + 1, 1, ?2, ?3, ?4, ?4, 0, ?5, 0, ?6, ?7, '', ?8 FROM {meta}"
            " WHERE true ON CONFLICT (id) DO NOTHING RETURNING fence"
        )
        self._save = (
            f"UPDATE {records} SET state=?, fence=?, attempt=?, owner=?, lease_until=?,"
            " created_at=?, changed_at=?, expires_at=?, hold=?, cause=?, scope=?, value=?,"
            " error=?, fingerprint=?, apart=?, result=? WHERE id=?"
        )
        self._complete = (
            f"UPDATE {records} SET state=?, result=?, error=?, lease_until=0, changed_at=?,"
            " expires_at=? WHERE id=? AND owner=? AND fence=? AND state=0"
        )
        self._renew = (
            f"UPDATE {records} SET lease_until=max(lease_until, ?) WHERE id=? AND owner=?"
            " AND fence=? AND state=0"
        )

    # -- reading: no lock, no write -----------------------------------------------------------

    def peek(self, ask: Claim) -> Program[Claimed | None]:
        """The answer that needs no write, if there is one."""
        row = yield from self._row(ask.key.id)
        if row is None:
            return None
        now = self.now()
        return None if lifecycle.is_expired(row, now) else lifecycle.look(row, ask, now)

    def read(self, ask: Read) -> Program[Row | None]:
        row = yield from self._row(ask.id)
        return None if row is None or lifecycle.is_expired(row, self.now()) else row

    def _row(self, id: bytes) -> Program[Row | None]:  # noqa: A002
        rows = yield Query(self._load, (id,))
        return row_from(rows[0]) if rows else None

    def history(self, ask: History) -> Program[list[AuditEntry]]:
        rows = yield Query(
            f"SELECT at, action, by, why, state_before FROM {self._audit} WHERE id = ?"
            " ORDER BY rowid",
            (ask.id,),
        )
        return [
            AuditEntry(id=ask.id, at=moment(at), action=a, by=by, why=why, state_before=STATES[s])
            for at, a, by, why, s in rows
        ]

    def survey(self, ask: Survey) -> Program[Stats]:
        now = self.now()
        rows = yield Query(
            "SELECT state, count(*), sum(lease_until <= ?1),"
            f" sum(expires_at BETWEEN 1 AND ?1), min(changed_at) FROM {self._records}"
            " GROUP BY state",
            (now,),
        )
        running = [row for row in rows if STATES[row[0]] is State.IN_PROGRESS]
        return Stats(
            by_state={STATES[row[0]]: row[1] for row in rows},
            stuck=sum(row[2] for row in running),
            expired=sum(row[3] for row in rows),
            oldest_in_progress=moment(running[0][4]) if running else None,
        )

    def browse(self, ask: Browse) -> Program[Page]:
        prefix = scope_prefix(ask.scope)
        rows = yield Query(
            f"{self._select.replace('SELECT ', 'SELECT n, ', 1)} WHERE n < ? AND (? < 0 OR state = ?)"
            " AND substr(scope, 1, ?) = ? AND NOT expires_at BETWEEN 1 AND ?"
            " ORDER BY n DESC LIMIT ?",
            (
                int(ask.after or 2**62),
                *((-1 if ask.state is None else number_of(ask.state),) * 2),
                len(prefix),
                prefix,
                self.now(),
                ask.limit + 1,
            ),
        )
        shown = rows[: ask.limit]
        after = str(shown[-1][0]) if len(rows) > ask.limit else ""
        return Page([row_from(row[1:]) for row in shown], after)

    # -- writing ------------------------------------------------------------------------------

    def claim(self, ask: Claim) -> Program[Claimed]:
        key, now = ask.key, self.now()
        rows = yield Query(
            self._insert,
            (
                key.id,
                ask.owner,
                now + ask.lease,
                now,
                ask.hold,
                scope_text(key.scope),
                key.value,
                ask.fingerprint,
            ),
        )
        if rows:
            return Claimed(Verdict.WON, rows[0][0], 1)
        return None  # type: ignore[return-value]

    def complete(self, ask: Complete) -> Program[Ack | None]:
        if ask.result is not None and len(ask.result) > APART:
            return None
        now = self.now()
        changed = yield Change(
            self._complete,
            (
                number_of(ask.state),
                ask.result,
                ask.error,
                now,
                now + ask.retention,
                ask.id,
                ask.owner,
                ask.fence,
            ),
        )
        return Ack.OK if changed else None

    def renew(self, ask: Any) -> Program[Ack | None]:
        changed = yield Change(self._renew, (self.now() + ask.lease, ask.id, ask.owner, ask.fence))
        return Ack.OK if changed else None

    def shortcut(self, ask: Request) -> Program[Any]:
        """One statement that does the common case atomically; None: it was not that case."""
        if ask.op in ("claim", "complete", "renew"):
            return (yield from getattr(self, ask.op)(ask))
        return None

    def decide(self, ask: Any) -> Program[Any]:
        """Load, decide by the table, save. Needs a transaction around it."""
        id_ = ask.key.id if type(ask) is Claim else ask.id
        row = yield from self._row(id_)
        now = self.now()
        answer, after = getattr(lifecycle, ask.op)(row, ask, now)
        if after is not None:
            yield from self._save_row(after)
            if isinstance(ask, (Release, Resolve, Forget)):
                assert row is not None
                yield Change(
                    f"INSERT INTO {self._audit} VALUES (?, ?, ?, ?, ?, ?)",
                    (id_, now, ask.op, ask.by, ask.why, number_of(row.state)),
                )
        return answer

    def _save_row(self, row: Row) -> Program[None]:
        apart = row.result is not None and len(row.result) > APART
        yield Change(
            self._save,
            (
                number_of(row.state),
                row.fence,
                row.attempt,
                row.owner,
                row.lease_until,
                row.created_at,
                row.changed_at,
                row.expires_at,
                row.hold,
                number_of(row.cause),
                scope_text(row.scope),
                row.value,
                row.error,
                row.fingerprint,
                apart,
                None if apart else row.result,
                row.id,
            ),
        )
        which = f"(SELECT n FROM {self._records} WHERE id = ?)"
        if apart:
            yield Change(
                f"INSERT OR REPLACE INTO {self._results} VALUES ({which}, ?)",
                (row.id, row.result),
            )
        else:
            yield Change(f"DELETE FROM {self._results} WHERE n = {which}", (row.id,))

    def together(self, asks: Sequence[Request]) -> Program[list[Any]]:
        """Many requests, for one transaction; each sees what those before it wrote."""
        answers: list[Any] = []
        for ask in asks:
            answer = yield from self.shortcut(ask)
            answers.append((yield from self.decide(ask)) if answer is None else answer)
        return answers

    def sweep(self, ask: Sweep) -> Program[tuple[SweepReport, str]]:
        """One bite in the order of insertion: needs no index that every claim would pay for."""
        now = self.now()
        rows = yield Query(
            f"SELECT n, expires_at FROM {self._records} WHERE n > ? ORDER BY n LIMIT ?",
            (int(ask.after or 0), ask.limit),
        )
        due = [n for n, expires_at in rows if 0 < expires_at <= now]
        removed = 0
        if due:
            removed = yield from atomically(self._remove(due, now), BEGIN)
        after = str(rows[-1][0]) if len(rows) == ask.limit else ""
        return SweepReport(removed=removed, examined=len(rows), more=bool(after)), after

    def _remove(self, numbers: list[int], now: int) -> Program[int]:
        # What expired when we looked may have been claimed since: the condition is asked again.
        still = f"n IN ({','.join(map(str, numbers))}) AND expires_at BETWEEN 1 AND ?"
        yield Change(
            f"UPDATE {self._meta} SET floor = max(floor, coalesce("
            f"(SELECT max(fence) FROM {self._records} WHERE {still}), 0))",
            (now,),
        )
        yield Change(
            f"DELETE FROM {self._results} WHERE n IN (SELECT n FROM {self._records} WHERE {still})",
            (now,),
        )
        return (yield Change(f"DELETE FROM {self._records} WHERE {still}", (now,)))  # type: ignore[no-any-return]


BEGIN: Final = "BEGIN IMMEDIATE"
_READING: Final = frozenset({"read", "history", "survey", "browse"})
_open_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_left_to_parent: list[object] = []
"""Connections that a forked child inherited: closing them there could harm the parent's."""


class SqliteStore(Store):
    capabilities: ClassVar[Capabilities] = Capabilities(transactions=True)

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
        self._clock = now
        self._offset = 0
        self.programs = SqlitePrograms(self._table, now or self._now)
        self._tap: Callable[[str, Any], None] | None = None
        """Tests only: called before and after every statement."""
        self._writer: sqlite3.Connection | None = None
        self._fresh()
        _open_stores.add(self)
        with self._errors():
            if migrate:
                self.migrate()
            self._check_schema()
            self._agree_on_time()

    @classmethod
    def open(cls, url: str) -> Self:
        return cls(_path_of(url), **options_of(url, OPTIONS))

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

        def agree() -> Program[int]:
            rows = yield Query(f"SELECT boot, clock FROM {self._table}_meta")
            if rows[0][0] == boot:
                return rows[0][1]  # type: ignore[no-any-return]
            latest = yield Query(
                f"SELECT changed_at FROM {self._table}_records ORDER BY n DESC LIMIT 1"
            )
            known = latest[0][0] if latest else 0
            offset = max(wall_clock(), known) - int(since_boot() * 1000)
            yield Change(f"UPDATE {self._table}_meta SET boot = ?, clock = ?", (boot, offset))
            return offset

        self._offset = self._alone(atomically(agree(), BEGIN))

    # -- performing ---------------------------------------------------------------------------

    def perform(self, request: Request) -> Any:
        op = request.op
        if op == "claim":
            answer = self._reading(self.programs.peek(request))  # type: ignore[arg-type]
            return self._write(request) if answer is None else answer
        if op in _READING:
            return self._reading(getattr(self.programs, op)(request))
        if op == "sweep":
            with self._lane, self._errors():
                return self._alone(self.programs.sweep(request))  # type: ignore[arg-type]
        return self._write(request)

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers: list[Any] = [None] * len(requests)
        try:
            writes: list[int] = []
            for index, request in enumerate(requests):
                if type(request) is Claim:
                    answers[index] = self._reading(self.programs.peek(request))
                elif request.op in _READING or request.op == "sweep":
                    answers[index] = self.perform(request)
                    continue
                if answers[index] is None:
                    writes.append(index)
            if writes:
                with self._lane:
                    written = self._write_all([requests[index] for index in writes])
                for index, answer in zip(writes, written, strict=True):
                    answers[index] = answer
        except StoreError as error:
            answers = [error if answer is None else answer for answer in answers]
        return answers

    def _reading(self, program: Program[T]) -> T:
        """On a connection of its own: readers wait for nobody."""
        try:
            connection = self._readers.pop()
        except IndexError:
            connection = self._connect()
        with self._errors():
            answer = drive(program, self._executor(connection))
        self._readers.append(connection)
        return answer

    def _write(self, request: Request) -> Any:
        """In the lane. Whoever holds it writes for all who have gathered, in one transaction."""
        ticket = _Ticket(request)
        self._gathered.append(ticket)
        with self._lane:
            if ticket.answer is _UNANSWERED:
                tickets = [self._gathered.popleft() for _ in range(len(self._gathered))]
                answers = self._write_all([each.request for each in tickets])
                for each, answer in zip(tickets, answers, strict=True):
                    each.answer = answer
        if isinstance(ticket.answer, Exception):
            raise ticket.answer
        return ticket.answer

    def _write_all(self, requests: list[Any]) -> list[Any]:
        try:
            with self._errors():
                if len(requests) == 1:
                    answer = self._alone(self.programs.shortcut(requests[0]))
                    if answer is not None:
                        return [answer]
                together = self.programs.together(requests)
                if len(requests) == 1:
                    together = _as_list(self.programs.decide(requests[0]))
                return self._alone(atomically(together, BEGIN))
        except StoreError as error:
            return [error] * len(requests)

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
        self._lane = threading.Lock()
        self._gathered: deque[_Ticket] = deque()
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
            name = getattr(error, "sqlite_errorname", type(error).__name__)
            raise StoreUnavailableError(f"SQLite says {name} on {self.path}: {error}") from error

    # -- upkeep -------------------------------------------------------------------------------

    def migrate(self) -> list[str]:
        """Numbered, each in one transaction with its number; concurrent openers do it once."""
        done: list[str] = []

        def step() -> Program[bool]:
            version = yield from self._version()
            if version >= len(MIGRATIONS):
                return False
            for statement in MIGRATIONS[version].format(t=self._table).split(";"):
                if statement.strip():
                    yield Change(statement)
            yield Change(f"UPDATE {self._table}_meta SET schema = ?", (version + 1,))
            done.append(f"schema {version} → {version + 1}")
            return True

        with self._lane, self._errors():
            while self._alone(self._version()) < len(MIGRATIONS):
                self._alone(atomically(step(), BEGIN))
        return done

    def _version(self) -> Program[int]:
        present = yield Query(
            "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?",
            (f"{self._table}_meta",),
        )
        if not present:
            return 0
        return (yield Query(f"SELECT schema FROM {self._table}_meta"))[0][0]  # type: ignore[no-any-return]

    def _check_schema(self) -> None:
        version = self._alone(self._version())
        if version != len(MIGRATIONS):
            newer = version > len(MIGRATIONS)
            remedy = "upgrade twicesafe" if newer else "run: twicesafe migrate"
            raise SchemaVersionError(
                f"{self.path} has schema {version}, this version needs {len(MIGRATIONS)}; {remedy}"
            )

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
            Finding("ok", f"SQLite {version}, schema {len(MIGRATIONS)}"),
        ]

    def close(self) -> None:
        with self._lane:
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            while self._readers:
                self._readers.pop().close()


class AsyncSqliteStore(AsyncStore):
    """One worker thread runs whole requests; what gathers while it works is done together."""

    capabilities: ClassVar[Capabilities] = SqliteStore.capabilities

    def __init__(self, make: Callable[[], SqliteStore], url: str) -> None:
        self.url = url
        self._make = make
        self._opened: SqliteStore | None = None
        self._opening = threading.Lock()
        self._worker: _Worker | None = None

    @classmethod
    def open(cls, url: str) -> Self:
        path, options = _path_of(url), options_of(url, OPTIONS)
        return cls(lambda: SqliteStore(path, **options), f"sqlite:///{Path(path).absolute()}")

    def beside(self) -> SqliteStore:
        with self._opening:
            if self._opened is None:
                self._opened = self._make()
            return self._opened

    async def perform(self, request: Request) -> Any:
        return (await self._submit([request]))[0]

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        return await self._submit(requests, many=True)

    async def doctor(self) -> list[Finding]:
        return await asyncio.to_thread(lambda: self.beside().doctor())

    async def migrate(self) -> list[str]:
        return await asyncio.to_thread(lambda: self.beside().migrate())

    async def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await asyncio.to_thread(worker.stop)
        if self._opened is not None:
            self._opened.close()

    async def _submit(self, requests: Sequence[Request], many: bool = False) -> list[Any]:
        worker = self._worker
        if worker is None or worker.pid != os.getpid():
            worker = self._worker = _Worker(self.beside)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Any]] = loop.create_future()
        worker.put(_Errand(requests, loop, future))
        answers = await future
        if not many and isinstance(answers[0], Exception):
            raise answers[0]
        return answers


class _Errand:
    __slots__ = ("answers", "future", "loop", "requests")

    def __init__(
        self,
        requests: Sequence[Request],
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[list[Any]],
    ) -> None:
        self.requests, self.loop, self.future = requests, loop, future
        self.answers: list[Any] = []


class _Worker:
    """The thread that talks to SQLite for all event loops of a process."""

    def __init__(self, store: Callable[[], SqliteStore]) -> None:
        self.pid = os.getpid()
        self._store = store
        self._errands: deque[_Errand | None] = deque()
        self._bell = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._work, name="twicesafe-sqlite", daemon=True)
        self._thread.start()

    def put(self, errand: _Errand | None) -> None:
        self._errands.append(errand)
        self._bell.release()

    def stop(self) -> None:
        self.put(None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            self._bell.acquire()
            errands = [self._errands.popleft() for _ in range(len(self._errands))]
            for _ in errands[1:]:
                self._bell.acquire()
            self._run([errand for errand in errands if errand is not None])
            if None in errands:
                return

    def _run(self, errands: list[_Errand]) -> None:
        requests = [request for errand in errands for request in errand.requests]
        if not requests:
            return
        try:
            answers = self._store().perform_many(requests)
        except Exception as error:
            answers = [error] * len(requests)
        at = 0
        by_loop: dict[asyncio.AbstractEventLoop, list[_Errand]] = {}
        for errand in errands:
            errand.answers = answers[at : at + len(errand.requests)]
            at += len(errand.requests)
            by_loop.setdefault(errand.loop, []).append(errand)
        for loop, theirs in by_loop.items():
            try:
                loop.call_soon_threadsafe(_deliver, theirs)
            except RuntimeError:
                continue  # that loop is closed: nobody waits there any more


def _deliver(errands: list[_Errand]) -> None:
    for errand in errands:
        if not errand.future.done():
            errand.future.set_result(errand.answers)


class _Ticket:
    __slots__ = ("answer", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.answer: Any = _UNANSWERED


_UNANSWERED: Final = object()


def _as_list(program: Program[T]) -> Program[list[T]]:
    return [(yield from program)]


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
