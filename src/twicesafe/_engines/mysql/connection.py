"""One connection to MariaDB or MySQL: how it is opened, and how it runs a command.

Every session gets the settings that the programs rely on, not the server's defaults: READ COMMITTED, a
commit after every statement outside a transaction, unique indexes that are checked, strict types (a value
that does not fit is an error, never truncated), UTC, and lock waits that end before our own time-out. A
read-only server is refused when connecting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ...errors import ConfigurationError, StoreUnavailableError
from ..sql.commands import Query
from .settings import Settings, explain

__all__ = ["Session", "connect"]

Tap = Callable[[str, Any], None] | None

_MODE: Final = "STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
_ALL_ROWS: Final = 2**64 - 1


class Session:
    """A connection, with the version and the limits of its server."""

    def __init__(self, connection: Any, version: str, most_bytes: int) -> None:
        self.connection = connection
        self.version = version
        self.most_bytes = most_bytes
        """``max_allowed_packet``: the longest statement."""

    @property
    def returning(self) -> bool:
        """Whether the server has INSERT … RETURNING."""
        number = tuple(int(part) for part in self.version.split("-")[0].split(".")[:2])
        return "MariaDB" in self.version and number >= (10, 5)

    def executor(self, tap: Tap) -> Callable[[Any], Any]:
        connection = self.connection

        def execute(command: Any) -> Any:
            if not connection.open and command.sql == "ROLLBACK":
                return 0  # the server rolled back when the connection ended
            if tap is not None:
                tap("before", command)
            cursor = connection.cursor()
            changed = cursor.execute(_statement(command, cursor) if command.args else command.sql)
            reply = cursor.fetchall() if type(command) is Query else changed
            if tap is not None:
                tap("after", command)
            return reply

        return execute

    def close(self) -> None:
        if self.connection.open:
            self.connection.close()


_LITERALS: Final[dict[type, Callable[[Any], str]]] = {
    bytes: lambda value: f"X'{value.hex()}'",
    int: str,
    bool: "{:d}".format,
    type(None): lambda _: "NULL",
}


def _statement(command: Any, cursor: Any) -> str:
    """The statement with its values, as PyMySQL writes them, but numbers and bytes in less time."""

    def by_driver(value: Any) -> str:
        return cursor.mogrify("%s", (value,)) if value != "" else "''"

    literal_of = _LITERALS.get
    return command.sql % tuple([literal_of(type(each), by_driver)(each) for each in command.args])  # type: ignore[no-any-return]


def connect(settings: Settings) -> Session:
    import pymysql

    timeout = settings.timeout
    try:
        connection = pymysql.connect(
            host=settings.host,
            port=settings.port,
            unix_socket=settings.socket or None,
            user=settings.user or None,
            password=settings.password.encode(),
            database=settings.database,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=timeout * 0.9,
            read_timeout=max(timeout, _lock_timeout(settings) + 1),
            write_timeout=timeout,
            program_name="twicesafe",
            **_tls(settings),
        )
        try:
            return _prepare(connection, settings)
        except BaseException:
            if connection.open:
                connection.close()
            raise
    except (pymysql.Error, RuntimeError) as error:  # RuntimeError: the login needs `cryptography`
        raise explain(error, settings.url) from error


def _prepare(connection: Any, settings: Settings) -> Session:
    cursor = connection.cursor()
    cursor.execute(
        # Also what the driver has set: `init_connect` may change it back, and the driver is not told.
        "SET SESSION autocommit = 1, completion_type = NO_CHAIN, unique_checks = 1,"
        f" sql_mode = '{_MODE}', time_zone = '+00:00', sql_safe_updates = 0, sql_big_selects = 1,"
        f" sql_select_limit = {_ALL_ROWS}, innodb_lock_wait_timeout = {_lock_timeout(settings):d}"
    )
    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    cursor.execute("SELECT VERSION(), @@read_only, @@max_allowed_packet")
    version, read_only, most_bytes = cursor.fetchone()
    if read_only not in (0, "OFF"):  # a word since MariaDB 12
        raise StoreUnavailableError(
            f"{settings.url} is read-only (a replica, or a demoted primary); connect to the primary"
        )
    if settings.ssl in ("require", "verify") and not settings.socket:
        cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        if not cursor.fetchone()[1]:
            raise ConfigurationError(
                f"{settings.url} does not offer TLS, but ssl={settings.ssl} requires it"
            )
    session = Session(connection, version, most_bytes)
    if session.returning:  # MariaDB: a worker that hangs in a transaction must not keep its locks
        cursor.execute(
            f"SET SESSION idle_transaction_timeout = {max(1, round(settings.timeout)):d}"
        )
    return session


def _lock_timeout(settings: Settings) -> int:
    """Seconds that the server waits for a lock: it must answer before our own time-out."""
    return max(1, int(settings.timeout / 2))


def _tls(settings: Settings) -> dict[str, Any]:
    if settings.ssl == "prefer" and not settings.ssl_ca:
        return {}
    if settings.ssl == "off":
        return {"ssl_disabled": True}
    import ssl

    try:
        context = ssl.create_default_context(cafile=settings.ssl_ca or None)
    except OSError as error:
        raise ConfigurationError(f"ssl_ca={settings.ssl_ca!r} cannot be read: {error}") from error
    if settings.ssl != "verify" and not settings.ssl_ca:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return {"ssl": context}
