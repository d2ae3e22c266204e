"""The URL of a PostgreSQL store: our options, the driver's options, and the meaning of its errors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from ..._values.settings import expect, seconds
from ...errors import ConfigurationError, SchemaVersionError, StoreError, StoreUnavailableError
from ...stores._certificates import check_certificates
from ...stores._urls import check_driver_options, identifier, mask, options_of

__all__ = ["NOT_FREE", "Settings", "checked", "code_of", "explain", "percents", "pooler_met"]

NOT_FREE: Final = "55P03"
"""SQLSTATE: a lock was not free within our time-out."""


def code_of(error: Exception) -> str:
    """The SQLSTATE behind one of our errors."""
    return getattr(error.__cause__, "sqlstate", None) or ""


OPTIONS: Final = {
    "table": "twicesafe",
    "schema": "",
    "pool": 10,
    "timeout": 5.0,
    "prepare": True,
    "wake": True,
    "migrate": True,
    "generations": "",
}


_LIBPQ: Final[dict[str, int | tuple[str, ...]]] = {
    "port": 5432,
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 60,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30000,
    "sslcompression": ("0", "1"),
    "sslsni": ("0", "1"),
    "gssdelegation": ("0", "1"),
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "channel_binding": ("disable", "prefer", "require"),
    "gssencmode": ("disable", "prefer", "require"),
    "load_balance_hosts": ("disable", "random"),
    "target_session_attrs": (
        *("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
    ),
}
"""Options of libpq, which looks at most of them only when it connects."""


@dataclass(frozen=True, slots=True)
class Settings:
    url: str
    """To show: without the password."""
    dsn: str
    """For the driver: without our options."""
    table: str
    schema: str
    pool: int
    timeout: float
    prepare: bool
    wake: bool
    migrate: bool
    generations: float = 0.0
    """Seconds for which a generation of records is the current one; 0: all records are in one table."""
    prepare_given: bool = False
    """The URL has ``prepare=``, so its author knows about the pooler."""

    @classmethod
    def of(cls, url: str) -> Settings:
        parts = urlsplit(url)
        if parts.netloc.count("@") > 1:  # libpq would take the rest of the password as a host
            raise ConfigurationError(f"{mask(url)}: percent-encode @ in a user or password (%40)")
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        ours = urlencode([(name, value) for name, value in pairs if name in OPTIONS])
        rest = [(name, value) for name, value in pairs if name not in OPTIONS]
        check_driver_options(
            [(name, one) for name, text in rest for one in _each(name, text)], _LIBPQ
        )
        check_certificates(_files(rest), ("sslrootcert",))
        theirs = urlencode(rest, quote_via=quote)  # libpq does not read "+" as a space
        options: dict[str, Any] = options_of(f"postgresql:?{ours}", OPTIONS)
        identifier(options["table"])
        if options["schema"]:
            identifier(options["schema"], "schema")
        options["generations"] = period(options["generations"])
        # Not by `urlunsplit`: it drops the // of a URL without a host.
        dsn = f"postgresql://{parts.netloc}{parts.path}{'?' * bool(theirs)}{theirs}"
        given = any(name == "prepare" for name, _ in pairs)
        return cls(url=mask(url), dsn=dsn, prepare_given=given, **options)


def _each(name: str, text: str) -> list[str]:
    """``port=5432,5433``: one for each host."""
    return [one for one in text.split(",") if one] if name == "port" else [text]


_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")


def _files(given: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The options that name files: not ``sslrootcert=system``, nor a key in a device (``sslkey=engine:name``)."""
    return [
        (name, text)
        for name, text in given
        if name in _FILES and text != "system" and not (name == "sslkey" and ":" in text)
    ]


SHORTEST: Final = 60.0
"""Seconds. With each new generation, claims wait for a moment and are planned again."""


def period(text: str) -> float:
    """``6h`` in seconds; 0 if empty or ``off``."""
    if text in ("", "0", "off", "false", "no"):
        return 0.0
    found = seconds(text, "option generations")
    expect(
        found >= SHORTEST,
        "option generations",
        text,
        "use a minute or more, such as 30m, 6h or 1d; a quarter of the retention is a good choice",
    )
    return found


def checked(settings: Settings) -> Settings:
    """Refuse an option that libpq does not know before it connects."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        conninfo_to_dict(settings.dsn)
    except ProgrammingError as error:
        raise explain(error, settings.url) from error
    return settings


def percents(sql: str) -> str:
    """``?`` as psycopg expects it. Binary, because arrays as text take ten times as long."""
    return sql.replace("?", "%b")


_READ_ONLY: Final = ("read-only", "not read-write", "SessionAttribute.read_write")
_BAD_OPTION: Final = (
    "invalid connection option", "invalid URI", "unrecognized configuration parameter",
    "for connection option", "invalid literal for int()",  # a port that is no number
)  # fmt: skip
_NO_LOGIN: Final = re.compile(
    r'password authentication failed|no password supplied|no pg_hba\.conf entry|FATAL: role ".*" (does|is) not '
)
"""How libpq says 28000 and 28P01: its errors of connecting have no code."""


def explain(error: Exception, where: str) -> StoreError | ConfigurationError:
    """Our error for a driver's error: what happened, and what to do. Never shows a password."""
    if getattr(error, "_pgconn", None) is not None:
        error._pgconn = None  # type: ignore[attr-defined]  # psycopg keeps the password in it
    code = getattr(error, "sqlstate", None) or ""
    # DETAIL may contain the row, and a result must not end up in a log.
    text = " ".join(str(error).split()).partition(" DETAIL:")[0][:300]
    if code[:2] == "28" or (not code and _NO_LOGIN.search(text)):
        return ConfigurationError(f"{where} refuses the user or password: {text}")
    if code == "3D000" or ('database "' in text and "does not exist" in text):
        return ConfigurationError(f"{where}: the database does not exist; create it first")
    if code == "42P01":
        return SchemaVersionError(f"{where} has no twicesafe tables; run: twicesafe migrate")
    if code == "3F000":
        return ConfigurationError(
            f"{where}: there is no schema for our tables ({text}); create it, or name another with ?schema="
        )
    if code == "42501":
        return ConfigurationError(f"{where}: the role lacks a privilege: {text}")
    if code == "25006" or any(sign in text for sign in _READ_ONLY):
        return StoreUnavailableError(
            f"{where} is read-only (a replica, or a demoted primary); connect to the primary"
        )
    if code in ("26000", "42P05"):
        return pooler_met(where)
    if any(sign in text for sign in _BAD_OPTION):
        return ConfigurationError(
            f"the URL of {where} has an option that the driver refuses: {text}"
        )
    if _is_our_fault(error, code):
        return StoreError(f"{where} refuses a value ({type(error).__name__}): {text}")
    return StoreUnavailableError(f"{where} did not answer ({type(error).__name__}): {text}")


def pooler_met(where: str) -> ConfigurationError:
    return ConfigurationError(
        f"connection pooler detected at {where}; if it pools by transaction, add "
        "?prepare=false&wake=false to the URL; if each client keeps its own session, ?prepare=true"
    )


def _is_our_fault(error: Exception, code: str) -> bool:
    """Whether the server or the driver understood the statement and refuses a value in it.

    Class 54 is a limit of the server; 44 and P0 come from a view or a trigger of the database's owner.
    """
    return code[:2] in ("22", "23", "42", "44", "54", "P0") or (
        not code and type(error).__name__ in ("DataError", "ProgrammingError", "NotSupportedError")
    )
