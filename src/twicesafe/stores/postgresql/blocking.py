"""The blocking PostgreSQL store: psycopg 3, a pool of connections, one listener for wake-ups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from ...core.driving import drive
from ...core.protocol import Request
from ...errors import StoreError, StoreUnavailableError
from ..base import Capabilities, Finding, Program, Store
from ..migrating import check, migrate
from ..pooling import Pool
from ..sql import Query
from .programs import CHANNEL, NOW, PostgresPrograms, PostgresSchema
from .settings import Settings, explain, percents

if TYPE_CHECKING:
    import psycopg

__all__ = ["CAPABILITIES", "PostgresStore", "findings"]

T = TypeVar("T")

CAPABILITIES = Capabilities(wake=True)

BATCH = 1000
"""Requests in one statement at most."""


class PostgresStore(Store):
    capabilities: ClassVar[Capabilities] = CAPABILITIES

    def __init__(self, settings: Settings, now: str = NOW) -> None:
        self.settings = settings
        self.url = settings.url
        self._schema = PostgresSchema(settings.table, settings.schema, percents)
        self.programs = PostgresPrograms(self._schema.table, percents, now)
        self._pool: Pool[psycopg.Connection[Any]] = Pool(
            self._connect, settings.pool, settings.timeout
        )
        self._listener = _Listener(self._connect) if settings.wake else None
        self._tap: Callable[[str, Any], None] | None = None
        """Tests only: called before and after every statement."""
        if settings.migrate:
            self.migrated = self.migrate()
        check(self._schema, self._run(self._schema.version()), self.url)

    @classmethod
    def open(cls, url: str) -> Self:
        return cls(Settings.of(url))

    def perform(self, request: Request) -> Any:
        return self._run(self.programs.perform(request))

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, len(requests), BATCH):
            part = requests[start : start + BATCH]
            try:
                answers += self._run(self.programs.perform_all(part))
            except StoreError as error:
                answers += [error.again() for _ in part]
        return answers

    def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        if self._listener is None:
            threading.Event().wait(min(seconds, 0.05))
            return
        with self._listener.listening(id) as bell:
            # Marked after we listen and before we wait: an end in between is not missed.
            if self._run(self.programs.awaits(id)):
                bell.wait(seconds)

    def migrate(self) -> list[str]:
        return self._run(migrate(self._schema, PostgresPrograms.begin))

    def doctor(self) -> list[Finding]:
        return findings(self._run(settings_program()), self._schema.newest)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._pool.close()

    # -- running programs ---------------------------------------------------------------------

    def _run(self, program: Program[T]) -> T:
        with self._pool.connection() as connection:
            return drive(program, self._executor(connection))

    def _executor(self, connection: psycopg.Connection[Any]) -> Callable[[Any], Any]:
        import psycopg

        tap, prepare = self._tap, self.settings.prepare

        def execute(command: Any) -> Any:
            if tap is not None:
                tap("before", command)
            try:
                cursor = connection.cursor(binary=True)
                cursor.execute(command.sql, command.args or None, prepare=prepare)
                reply = cursor.fetchall() if type(command) is Query else cursor.rowcount
            except psycopg.Error as error:
                raise explain(error, self.url) from error
            if tap is not None:
                tap("after", command)
            return reply

        return execute

    def _connect(self) -> psycopg.Connection[Any]:
        import psycopg

        timeout = self.settings.timeout
        try:
            return psycopg.connect(
                self.settings.dsn,
                autocommit=True,
                prepare_threshold=0 if self.settings.prepare else None,
                **connection_options(timeout),
            )
        except psycopg.Error as error:
            raise explain(error, self.url) from error


class _Listener:
    """One connection and one thread per process that hear of ends and wake who waits."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._bells: dict[str, set[threading.Event]] = {}
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._closed = False

    @contextmanager
    def listening(self, id: bytes) -> Iterator[threading.Event]:  # noqa: A002
        bell, name = threading.Event(), id.hex()
        with self._lock:
            self._bells.setdefault(name, set()).add(bell)
            if self._thread is None or not self._thread.is_alive():
                self._ready.clear()
                self._thread = threading.Thread(
                    target=self._listen, name="twicesafe-listen", daemon=True
                )
                self._thread.start()
        try:
            self._ready.wait(1.0)
            yield bell
        finally:
            with self._lock:
                bells = self._bells.get(name, set())
                bells.discard(bell)
                if not bells:
                    self._bells.pop(name, None)

    def _listen(self) -> None:
        import psycopg

        try:
            with self._connect() as connection:
                connection.execute(f"LISTEN {CHANNEL}")
                self._ready.set()
                while not self._closed:
                    for notice in connection.notifies(timeout=5.0):
                        self._ring(notice.payload)
                    with self._lock:
                        if not self._bells:
                            self._thread = None  # nobody waits: the next one starts us again
                            return
        except (psycopg.Error, StoreUnavailableError):
            return  # those who wait look for themselves; the next one starts us again
        finally:
            self._ready.set()

    def _ring(self, name: str) -> None:
        with self._lock:
            bells = list(self._bells.get(name, ()))
        for bell in bells:
            bell.set()

    def close(self) -> None:
        self._closed = True


def connection_options(timeout: float) -> dict[str, Any]:
    """A server that is gone is noticed within the time-out; a replica is refused."""
    return {
        "connect_timeout": max(2, round(timeout)),
        "tcp_user_timeout": round(timeout * 1000),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 2,
        "target_session_attrs": "read-write",
    }


_SETTINGS = (
    "server_version",
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "transaction_read_only",
    "default_transaction_isolation",
)


def settings_program() -> Program[dict[str, str]]:
    wanted = ", ".join(f"current_setting('{name}')" for name in _SETTINGS)
    row = (yield Query(f"SELECT {wanted}, pg_is_in_recovery()::text"))[0]
    return dict(zip((*_SETTINGS, "in_recovery"), row, strict=True))


def findings(settings: dict[str, str], schema: int) -> list[Finding]:
    replica = settings["in_recovery"] == "true" or settings["transaction_read_only"] == "on"
    lazy = settings["synchronous_commit"] in ("off", "local")
    return [
        Finding("refuse", "this server is a replica or read-only", "connect to the primary")
        if replica
        else Finding("ok", "a primary that takes writes"),
        Finding("refuse", "fsync is off: a crash of the server loses records", "set fsync = on")
        if settings["fsync"] == "off"
        else Finding("ok", "fsync is on"),
        Finding(
            "warn",
            f"synchronous_commit={settings['synchronous_commit']}: the last commits can be lost",
            "set synchronous_commit = on, and a synchronous standby for failover",
        )
        if lazy
        else Finding("ok", f"synchronous_commit={settings['synchronous_commit']}"),
        Finding("ok", f"PostgreSQL {settings['server_version']}, schema {schema}"),
    ]
