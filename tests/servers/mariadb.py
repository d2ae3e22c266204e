"""MariaDB from apt (`mariadb-server-core`, `mariadb-client-core`); and 11.4, if `make mariadb` has fetched it."""

from __future__ import annotations

import getpass
import itertools
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.servers.process import NoOptionalServerError, Server, find_program, run

FETCHED = Path(__file__).resolve().parents[2] / ".dev" / "mariadb"
REMEDY = "apt install mariadb-server-core mariadb-client-core"


class MariaDB(Server):
    name = "mariadb"
    _base: Sequence[str] = ()
    """Where it is installed, if it is not where it was built for."""

    def __init__(self, **settings: str) -> None:
        self._installer, self._program = self._programs()
        super().__init__()
        self._settings = {
            "performance-schema": "OFF",
            "innodb-buffer-pool-size": "64M",
            "innodb-flush-log-at-trx-commit": "1",
            "max-connections": "300",
        } | {name.replace("_", "-"): value for name, value in settings.items()}
        self._numbers = itertools.count(1)
        self.url = self.url_of("mysql")

    def _programs(self) -> tuple[str, str]:
        return (
            find_program("mariadb-install-db", remedy=REMEDY),
            find_program("mariadbd", remedy=REMEDY),
        )

    def url_of(self, database: str) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/{database}"

    def prepare(self) -> None:
        run(
            [
                *(self._installer, "--no-defaults", f"--datadir={self.folder / 'data'}"),
                *self._base,
                *("--auth-root-authentication-method=normal", "--skip-test-db"),
                f"--tmpdir={self._own_tmp()}",  # two that share one mix up their temporary tables
                f"--user={getpass.getuser()}",
            ],
            self.folder,
        )

    def _own_tmp(self) -> Path:
        folder = self.folder / "tmp"
        folder.mkdir(exist_ok=True)
        return folder

    def command(self) -> Sequence[str]:
        return [
            *(self._program, "--no-defaults", f"--user={getpass.getuser()}", *self._base),
            f"--tmpdir={self._own_tmp()}",
            *(f"--datadir={self.folder / 'data'}", f"--socket={self.folder / 's.sock'}"),
            *("--bind-address=127.0.0.1", f"--port={self.port}"),
            *(f"--{name}={value}" for name, value in self._settings.items()),
        ]

    def answers(self) -> bool:
        self.execute("SELECT 1")
        return True

    def execute(self, sql: str) -> None:
        import pymysql

        connection = pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            connect_timeout=60,
            autocommit=True,
            ssl_disabled=True,
        )
        with connection, connection.cursor() as cursor:
            cursor.execute(sql)

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """The URL of a database that no other test uses."""
        database = f"t{next(self._numbers)}_{uuid.uuid4().hex[:6]}"
        self.execute(f"CREATE DATABASE {database}")
        try:
            yield self.url_of(database)
        finally:
            if self.running:
                self.execute(f"DROP DATABASE IF EXISTS {database}")


class MariaDB11(MariaDB):
    name = "mariadb11"
    _base = (f"--basedir={FETCHED}",)

    def _programs(self) -> tuple[str, str]:
        if not (FETCHED / "stamp").exists():
            raise NoOptionalServerError(
                "MariaDB 11.4 was not fetched; make mariadb does it, with Maven"
            )
        return str(FETCHED / "scripts" / "mariadb-install-db"), str(FETCHED / "bin" / "mariadbd")
