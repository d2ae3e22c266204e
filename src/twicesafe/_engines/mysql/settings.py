"""The URL of a MariaDB or MySQL store, and the meaning of the driver's errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from ...errors import ConfigurationError, SchemaVersionError, StoreError, StoreUnavailableError
from ...stores._certificates import check_certificates
from ...stores._urls import identifier, mask, options_of

__all__ = ["CONFLICTS", "LOCK_WAIT", "Settings", "code_of", "explain", "is_demoted", "is_lost"]

OPTIONS: Final = {
    "table": "twicesafe",
    "pool": 10,
    "timeout": 5.0,
    "ssl": "prefer",
    "ssl_ca": "",
    "socket": "",
    "migrate": True,
}

TLS: Final = ("prefer", "off", "require", "verify")

DUPLICATE: Final = 1062
LOCK_WAIT: Final = 1205
DEADLOCK: Final = 1213
NO_NUMBER: Final = 1467
"""The wait for the next auto-increment value timed out."""

CONFLICTS: Final = frozenset({DUPLICATE, LOCK_WAIT, DEADLOCK, NO_NUMBER})
"""Conflicts with another session. Nothing was written: try again."""

_LOST: Final = frozenset(
    {
        0,  # PyMySQL: this connection is closed
        1053,  # the server is shutting down
        1077,
        1079,
        1080,
        1152,
        1158,
        1159,
        1160,
        1161,
        1927,  # MariaDB: the connection was killed
        2006,
        2013,
        2014,
        2055,
        4031,  # MySQL: idle for too long
    }
)
_REFUSED: Final = frozenset(
    {
        1048,
        1118,  # the row is too large for a page
        1153,  # larger than max_allowed_packet; the server closes the connection
        1162,
        1197,  # larger than max_binlog_cache_size
        1264,
        1301,
        1366,
        1406,  # too long for its column
        1644,  # a trigger refused it (SIGNAL)
        1690,
        1705,
        4025,  # MariaDB: a CHECK constraint
        3819,  # MySQL: the same
    }
)
"""The server understood the statement and refuses a value in it: a retry does not help."""
_READ_ONLY: Final = frozenset({1290, 1792, 1836, 3100})
_NO_LOGIN: Final = frozenset({1045, 1698, 1862, 1820, 1130, 1251, 2059})
_NO_PRIVILEGE: Final = frozenset({1044, 1142, 1143, 1227, 1370})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    url: str
    """For people: no password."""
    host: str
    port: int
    user: str
    password: str
    database: str
    table: str
    pool: int
    timeout: float
    ssl: str
    ssl_ca: str
    socket: str
    migrate: bool

    def __repr__(self) -> str:
        return f"<Settings {self.url}>"

    @classmethod
    def of(cls, url: str) -> Settings:
        parts = urlsplit(url)
        options: dict[str, Any] = options_of(url, OPTIONS)
        identifier(options["table"])
        if options["timeout"] < 1:
            raise ConfigurationError("timeout= is in seconds: use 1 or more")
        if options["ssl"] not in TLS:
            raise ConfigurationError(f"ssl={options['ssl'][:20]!r}: use one of {', '.join(TLS)}")
        if options["ssl_ca"] and options["ssl"] in ("prefer", "off"):
            raise ConfigurationError(
                f"ssl_ca= is for ssl=verify: with ssl={options['ssl']} a connection may have no TLS at all"
            )
        check_certificates([("ssl_ca", options["ssl_ca"])], ("ssl_ca",))
        database = unquote(parts.path.lstrip("/"))
        if not database:
            raise ConfigurationError(
                "a MariaDB or MySQL URL names a database: mysql://user:password@host/database"
            )
        try:
            port = parts.port or 3306
        except ValueError:
            raise ConfigurationError(f"{mask(url)}: the port is not a number") from None
        return cls(
            url=mask(url),
            host=parts.hostname or "localhost",
            port=port,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            database=database,
            **options,
        )


def code_of(error: BaseException | None) -> int:
    """The error number of the server or the driver; -1: none."""
    args = getattr(error, "args", ())
    return args[0] if args and isinstance(args[0], int) else -1


def is_lost(error: BaseException | None) -> bool:
    """The connection was lost. The statement may or may not have been executed."""
    return code_of(error) in _LOST


def is_demoted(error: BaseException | None) -> bool:
    """The server became read-only, so its other connections are of no use either."""
    return code_of(error) in _READ_ONLY


def explain(error: Exception, where: str) -> StoreError | ConfigurationError:
    """Our error for a driver's error: what happened, and what to do. Never shows a password."""
    code = code_of(error)
    text = " ".join(str(error.args[-1] if error.args else error).split())[:300]
    if code in _NO_LOGIN or "cryptography" in text:
        return ConfigurationError(
            f"{where} refuses the login: {text}; check user and password, and for MySQL's "
            "caching_sha2_password use ssl=require or install PyMySQL[rsa]"
        )
    if code == 1049:
        return ConfigurationError(f"{where}: the database does not exist; create it first")
    if code == 1146:
        return SchemaVersionError(f"{where} has no twicesafe tables; run: twicesafe migrate")
    if code in _NO_PRIVILEGE:
        return ConfigurationError(f"{where}: the user lacks a privilege: {text}")
    if code in _READ_ONLY:
        return StoreUnavailableError(
            f"{where} is read-only (a replica, or a demoted primary); connect to the primary"
        )
    if code == 1665:
        return ConfigurationError(
            f"{where} has binlog_format=STATEMENT, which cannot be used with READ COMMITTED; "
            "set binlog_format to ROW or MIXED"
        )
    if code in (2003, 2002, 2005):
        return StoreUnavailableError(
            f"{where} cannot be reached: {text}; check that the server is up, and its host and port"
        )
    if code == 1040:
        return StoreUnavailableError(
            f"{where} has no free connection; lower pool= or raise max_connections"
        )
    if code == 2026:
        return ConfigurationError(f"{where}: no TLS connection with these ssl= and ssl_ca=: {text}")
    if code in _REFUSED:
        return StoreError(f"{where} refuses a value ({code}): {text}")
    if code in CONFLICTS:
        return StoreUnavailableError(f"{where}: another session held the row too long ({text})")
    return StoreUnavailableError(f"{where} did not answer ({code}): {text}")
