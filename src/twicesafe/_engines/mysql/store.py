"""The MariaDB and MySQL stores: a pool of connections for threads, one worker for event loops.

Requests can be repeated, so one whose connection was lost is retried at once on a new connection, and
a deadlock is retried until the time-out. Callers see neither. A row that another session locks is
tried again for a while. Then a claim gets the answer that its key is in progress, because most likely
an open transaction of an inbox locks it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, Final, Self, TypeVar

from ..._core.driving import drive
from ..._core.protocol import Ack, ClaimRequest, Request
from ..._values.drivers import require
from ...errors import SchemaVersionError, StoreError, StoreUnavailableError
from ...stores._base import Capabilities, Finding, Program, Progress, Store
from ...stores._threaded_store import ThreadedStore
from ..sql.commands import atomically
from ..sql.connection_pool import Pool
from ..sql.in_transaction import InTransaction
from ..sql.layouts import MOVING, WIDE, Layout, layout_findings
from ..sql.migrations import migrate_records
from ..sql.moving import RecordMoves
from ..sql.programs import ACTS, held_by_a_transaction
from .connection import Session, connect
from .doctor import findings, variables
from .outbox_programs import MysqlOutbox, MysqlOutboxPort
from .programs import NOW, UTC_NOW, MysqlPrograms
from .schema import MysqlRecordsSchema, MysqlSchema
from .settings import CONFLICTS, LOCK_WAIT, Settings, code_of, explain, is_demoted, is_lost
from .sweep import make_gates

__all__ = ["AsyncMysqlStore", "MysqlStore"]

T = TypeVar("T")

BATCH: Final = 500
"""The most requests in one statement."""

BATCHED: Final = 16 * 1024
"""Requests with larger values are not batched. In a table of values, MariaDB silently truncates values
above 64 KiB, and a batch saves little for a large value."""

HEAVY: Final = 1024 * 1024
"""Bytes of values after which a statement is sent."""

_BATCHED_OPS: Final = frozenset({"claim", "complete", "fail", "renew", "abandon"})
CLAIM_LOCK_WAIT: Final = 0.05
"""Seconds for which a claim tries to lock a row that another session locks. Other calls of this process
may wait behind it, and a transaction that is open for longer will not end soon."""

_LOCKED: Final = 1024
"""How many keys we remember as locked by a transaction. They are not batched."""

MIGRATION_TIMEOUT: Final = 60.0
"""Seconds for which a migration tries to lock a table that transactions use."""

OPERATOR_LOCK_WAIT: Final = 1.0
"""Seconds that an operator's request waits for a locked row. An owner's write takes less."""


class MysqlStore(Store):
    """The blocking store, for threads."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        transactions=True, outbox=True, steps=True, copies=True
    )
    dialect = "mysql"

    def __init__(self, settings: Settings, now: str = NOW) -> None:
        """``now``: tests only; SQL for the store's clock in milliseconds."""
        self.settings = settings
        self.url = settings.url
        self._schema = MysqlRecordsSchema("mysql", settings.table)
        self._pool: Pool[Session] = Pool(self._connect, settings.pool, settings.timeout)
        self.programs = self._programs(WIDE, now=now)
        outbox = MysqlOutbox(settings.table, now, settings.migrate)
        self._outbox = MysqlOutboxPort(outbox, self._run)
        self._most_bytes = 1 << 20
        self._locked: dict[bytes, None] = {}
        self._tap: Callable[[str, Any], None] | None = None
        """Tests only: called before and after every statement."""
        if settings.migrate:
            self.migrated = self._run(lambda: self._schema.prepare(MysqlPrograms.begin))
        self.refresh()
        meta = self.programs.meta
        self._gates = self._run(lambda: make_gates(meta, settings.migrate))

    @classmethod
    def open(cls, url: str) -> Self:
        require("pymysql")
        return cls(Settings.of(url))

    @classmethod
    def script(cls, url: str) -> str:
        table = Settings.of(url).table
        runs = MysqlSchema("mysql_runs", f"{table}_runs")
        return f"{MysqlRecordsSchema('mysql', table).script()}\n{runs.script()}"

    def in_transaction(self, style: str = "%s") -> InTransaction:
        from .in_transaction import MysqlInTransaction

        now = UTC_NOW if self.programs.now == NOW else self.programs.now
        layout = self.programs.layout
        return MysqlInTransaction(
            self.settings.table, self.programs.returning, now, self._gates, layout
        )

    def own_transaction(self, program: Callable[[], Program[T]]) -> T:
        return self._run(lambda: atomically(program(), MysqlPrograms.begin))

    @classmethod
    def outbox_script(cls, url: str) -> str:
        return MysqlOutbox(Settings.of(url).table).schema.script()

    @property
    def outbox(self) -> MysqlOutboxPort:
        return self._outbox

    def perform(self, request: Request) -> Any:
        try:
            return self._perform(request)
        except SchemaVersionError:
            return self._follow_migration(request)

    def _perform(self, request: Request) -> Any:
        programs = self.programs
        if 2 * _size(request) + 4096 > self._most_bytes:  # PyMySQL sends bytes as hex
            raise StoreError(
                f"a result of {_size(request)} bytes is more than {self.url} accepts in one statement;"
                " raise max_allowed_packet on the server, or lower max_result_bytes"
            )
        if isinstance(request, ClaimRequest):
            return self._claim(request)
        if request.op in ACTS:
            return self._act(request)
        return self._run(lambda: programs.perform(request))

    def _act(self, ask: Request) -> Any:
        """An operator's request. It writes an audit entry, so it is not retried after a lost connection."""
        act = self.programs.perform
        try:
            return self._run(lambda: act(ask), again=False, lock_wait=OPERATOR_LOCK_WAIT)
        except StoreUnavailableError as error:
            if code_of(error.__cause__) != LOCK_WAIT:
                raise
            return Ack.LOCKED

    def _claim(self, ask: ClaimRequest) -> Any:
        locked = self._locked
        try:
            answer = self._run(lambda: self.programs.perform(ask), lock_wait=CLAIM_LOCK_WAIT)
        except StoreUnavailableError as error:
            if code_of(error.__cause__) != LOCK_WAIT:
                raise
            locked[ask.id] = None
            if len(locked) > _LOCKED:
                locked.pop(next(iter(locked)), None)
            return held_by_a_transaction()
        if locked:
            locked.pop(ask.id, None)
        return answer

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers: list[Any] = [None] * len(requests)
        together: list[int] = []
        weight = 0
        for index, request in enumerate(requests):
            size = _size(request)
            if request.op not in _BATCHED_OPS or size > BATCHED or self._is_locked(request):
                answers[index] = self._try(request)
                continue
            together.append(index)
            weight += size
            if len(together) == BATCH or weight > HEAVY:
                self._perform_together(requests, together, answers)
                together, weight = [], 0
        if together:
            self._perform_together(requests, together, answers)
        return answers

    def _perform_together(
        self, requests: Sequence[Request], places: list[int], answers: list[Any]
    ) -> None:
        asks = [requests[place] for place in places]
        programs = self.programs
        if len(asks) == 1:
            answers[places[0]] = self._try(asks[0])
            return
        known: list[Any] = [None] * len(asks)
        try:
            claims = any(type(ask) is ClaimRequest for ask in asks)
            found = self._run(
                lambda: programs.perform_all(asks, known),
                lock_wait=CLAIM_LOCK_WAIT if claims else None,
            )
        except (StoreError, TypeError) as error:
            if isinstance(error, StoreError) and not _one_was_refused(error):
                found = [error.again() if answer is None else answer for answer in known]
            else:  # one request failed the whole statement: try each alone
                found = [
                    self._try(ask) if answer is None else answer
                    for ask, answer in zip(asks, known, strict=True)
                ]
        for place, answer in zip(places, found, strict=True):
            answers[place] = answer

    def _is_locked(self, request: Any) -> bool:
        return bool(self._locked) and request.id in self._locked

    def _try(self, request: Request) -> Any:
        try:
            return self.perform(request)
        except (StoreError, TypeError) as error:
            return error

    # -- running programs ---------------------------------------------------------------------

    def _run(
        self, program: Callable[[], Program[T]], again: bool = True, lock_wait: float | None = None
    ) -> T:
        """`lock_wait`: seconds for which a row that another session locks is tried again."""
        import pymysql

        began = time.monotonic()
        until = began + self.settings.timeout
        while True:
            try:
                with self._pool.connection() as session:
                    try:
                        return self._run_on(session, program, until, lock_wait)
                    except pymysql.Error as error:
                        if code_of(error) != LOCK_WAIT:
                            raise
                        locked = error
                # Raised out here, because the connection is good.
                raise explain(locked, self.url) from locked
            except pymysql.Error as error:
                if is_demoted(error):
                    self._pool.close()
                if is_lost(error):
                    self._pool.close()  # the idle connections are most likely lost too
                    if again and time.monotonic() < (began + until) / 2:
                        again = False
                        continue
                raise explain(error, self.url) from error

    def _run_on(
        self,
        session: Session,
        program: Callable[[], Program[T]],
        until: float,
        lock_wait: float | None,
    ) -> T:
        import pymysql

        execute = session.executor(self._tap)
        enough = until if lock_wait is None else time.monotonic() + lock_wait
        while True:
            try:
                return drive(program(), execute)
            except pymysql.Error as error:
                code = code_of(error)
                if code not in CONFLICTS or time.monotonic() >= (
                    enough if code == LOCK_WAIT else until
                ):
                    raise
                time.sleep(random.uniform(0.0005, 0.005))

    def _connect(self) -> Session:
        session = connect(self.settings)
        self._most_bytes = session.most_bytes
        if not session.returning and self.programs.returning:
            old = self.programs
            self.programs = self._programs(old.layout, False, old.now)
        return session

    # -- upkeep -------------------------------------------------------------------------------

    def migrate(self, tell: Progress = None) -> list[str]:
        begin = MysqlPrograms.begin
        done = self._run(lambda: self._schema.prepare(begin))
        done += migrate_records(self._schema, self._moves, self._migrating, begin, tell)
        self.refresh()
        return done + self._run(self.programs.runs.migrated)

    def _migrating(self, program: Callable[[], Program[T]]) -> T:
        """Run a part of a migration, again while a table that it locks is in use."""
        until = time.monotonic() + MIGRATION_TIMEOUT
        while True:
            try:
                return self._run(lambda: self._schema.alone(program()))
            except StoreUnavailableError as error:
                if code_of(error.__cause__) != LOCK_WAIT or time.monotonic() > until:
                    raise

    def _follow_migration(self, request: Request) -> Any:
        """Perform a request that did not find its table, in the layout that the records have now.

        The server cannot rename a table and write the new version in one transaction, so for a moment
        the version may be the old one.
        """
        until = time.monotonic() + self.settings.timeout
        while True:
            self.refresh()
            try:
                return self._perform(request)
            except SchemaVersionError:
                if time.monotonic() > until:
                    raise
            time.sleep(0.01)

    def _moves(self) -> RecordMoves:
        old = self.programs
        return MysqlPrograms(self.settings.table, old.returning, old.now, layout=MOVING).moves  # type: ignore[no-any-return]

    def _programs(self, layout: Layout, returning: bool = True, now: str = NOW) -> MysqlPrograms:
        programs = MysqlPrograms(self.settings.table, returning, now, layout=layout)
        programs.migrates = self.settings.migrate
        return programs

    def refresh(self) -> None:
        """Use the layout that the records have now."""
        layout, old = self._run(lambda: self._schema.layout(self.url)), self.programs
        if layout.version > old.layout.version:
            self.programs = self._programs(layout, old.returning, old.now)

    def doctor(self) -> list[Finding]:
        layout, records = self.programs.layout, self.programs.records
        found = findings(self._run(lambda: variables(records)), layout.version)
        return found + layout_findings(layout)

    def close(self) -> None:
        self._pool.close()


@cache
def _sized_fields(kind: type[Request]) -> tuple[str, ...]:
    """The fields of a request of this kind whose values have no fixed size."""
    names = ("result", "fingerprint", "error", "after", "arguments")
    return tuple(name for name in names if hasattr(kind, name))


def _size(request: Request) -> int:
    """Bytes of the values that have no fixed size."""
    size = 0
    for name in _sized_fields(type(request)):
        value = getattr(request, name)
        if value:
            size += len(value)
    return size


def _one_was_refused(error: StoreError) -> bool:
    """Whether the server refused one value or row of the batch; otherwise it failed altogether."""
    return code_of(error.__cause__) > 0 and not is_lost(error.__cause__)


class AsyncMysqlStore(ThreadedStore):
    """The async version: one worker thread; requests that wait for it share statements."""

    capabilities: ClassVar[Capabilities] = MysqlStore.capabilities

    @classmethod
    def open(cls, url: str) -> Self:
        require("pymysql")
        settings = Settings.of(url)
        return cls(lambda: MysqlStore(settings), settings.url)
