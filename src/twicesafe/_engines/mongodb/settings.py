"""The URL of a MongoDB store: our options, and the driver's, of which some would break a promise."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from ...errors import ConfigurationError
from ...stores._certificates import check_certificates
from ...stores._urls import check_driver_options, expect_seconds, mask, options_of

__all__ = ["Settings"]

OPTIONS: Final = {
    "collection": "twicesafe",
    "timeout": 5.0,
    "pool": 50,
    "skew": 5.0,
    "migrate": True,
}

_COLLECTION: Final = re.compile(r"(?!system\.)[A-Za-z_][A-Za-z0-9_.-]{0,99}", re.ASCII)
_DATABASE: Final = re.compile(r'[^/\\. "$*<>:|?\0]{1,63}')

_OF_THE_SERVER: Final = ("admin", "config", "local")
"""Databases that no store may use. ``local`` has no replicas: a failover loses its records."""

_FIXED: Final = {
    "w": (
        ("majority",),
        (
            "every write waits for a majority of the members; a claim that fewer have can be lost in "
            "a failover, and its handler would run twice"
        ),
    ),
    "journal": (("true",), "every write waits for the journal"),
    "readpreference": (("primary",), "a secondary may not know of a claim yet"),
    "readconcernlevel": ((), "twicesafe chooses it for each read"),
    "wtimeoutms": ((), "use timeout="),
    "timeoutms": ((), "use timeout="),
    "maxpoolsize": ((), "use pool="),
    **dict.fromkeys(("tz_aware", "datetime_conversion"), ((), "twicesafe reads times itself")),
    "unicode_decode_error_handler": ((), "twicesafe reads text itself"),
    "uuidrepresentation": ((), "no record has a UUID"),
}
"""Options of the driver that have one right value here, or none."""


_WORDS: Final = ("true", "false")
_DRIVER: Final[dict[str, int | tuple[str, ...]]] = {
    **dict.fromkeys(
        ("connecttimeoutms", "sockettimeoutms", "serverselectiontimeoutms", "waitqueuetimeoutms"),
        5000,
    ),
    "heartbeatfrequencyms": 10_000,
    "maxidletimems": 60_000,
    "localthresholdms": 15,
    "minpoolsize": 1,
    "maxconnecting": 2,
    "zlibcompressionlevel": 6,
    **dict.fromkeys(
        ("retrywrites", "retryreads", "directconnection", "loadbalanced", "tls", "ssl"), _WORDS
    ),
    **dict.fromkeys(
        ("tlsinsecure", "tlsallowinvalidcertificates", "tlsallowinvalidhostnames"), _WORDS
    ),
}
"""Options of the driver with a number or a truth value. PyMongo compares their names in lower case."""


_FILES: Final = ("tlscafile", "tlscertificatekeyfile", "tlscrlfile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    url: str
    """To show: without the password."""
    dsn: str
    """For the driver: without our options."""
    query: str
    """The driver's options."""
    database: str
    collection: str
    timeout: float
    """Seconds until a call counts as an outage, all its attempts included."""
    pool: int
    """Connections to each server."""
    skew: float
    """Seconds by which two workers may disagree about the time (`lease_watch`)."""
    migrate: bool
    """Create the collection and its index if they are missing."""

    @classmethod
    def of(cls, url: str) -> Settings:
        parts = urlsplit(url)
        if parts.netloc.count("@") > 1:
            raise ConfigurationError(f"{mask(url)}: percent-encode @ in a user or password (%40)")
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        ours = urlencode([(name, value) for name, value in pairs if name in OPTIONS])
        options: dict[str, Any] = options_of(f"mongodb:?{ours}", OPTIONS)
        rest = [(name, value) for name, value in pairs if name not in OPTIONS]
        for name, value in rest:
            _check_fixed(name, value)
        check_driver_options(rest, {name: _DRIVER.get(name.lower()) for name, _ in rest})
        files = [(name, value) for name, value in rest if name.lower() in _FILES]
        if files and any(
            name.lower() in ("tls", "ssl") and value == "false" for name, value in rest
        ):
            raise ConfigurationError("certificates are for TLS: write tls=true, or leave them out")
        check_certificates(files, [name for name, _ in files if name.lower() == "tlscafile"])
        _check(options)
        database = unquote(parts.path.strip("/"))
        if not parts.netloc or not _DATABASE.fullmatch(database):
            raise ConfigurationError(
                f"{mask(url)} names no database: a MongoDB URL is mongodb://host:27017/database"
            )
        if database in _OF_THE_SERVER:
            raise ConfigurationError(
                f"{mask(url)}: {database!r} is the server's own database; name one of yours, and the one that has the "
                "users as authSource="
            )
        query = urlencode(rest, quote_via=quote, safe=":,/")
        dsn = urlunsplit((parts.scheme, parts.netloc, parts.path, query, ""))
        return cls(url=mask(url), dsn=dsn, query=query, database=database, **options)


def _check_fixed(name: str, value: str) -> None:
    right, why = _FIXED.get(name.lower(), ((value.lower(),), ""))
    if value.lower() not in right:
        raise ConfigurationError(
            f"{name[:40]}={value[:40]} is not possible: {why}; remove it from the URL"
        )


def _check(options: dict[str, Any]) -> None:
    if not _COLLECTION.fullmatch(options["collection"]):
        raise ConfigurationError(
            f"collection={options['collection'][:40]!r} is not valid: use 1 to 100 of a-z, A-Z, 0-9, "
            "_ . and -, starting with a letter or _"
        )
    expect_seconds(options, "timeout")
    expect_seconds(options, "skew", or_zero=True)
