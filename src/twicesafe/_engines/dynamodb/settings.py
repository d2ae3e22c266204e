"""The URL of a DynamoDB store: the table, the region, and options. It never holds credentials."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from ...errors import ConfigurationError
from ...stores._urls import expect_seconds, options_of

__all__ = ["Settings"]

OPTIONS: Final = {
    "region": "",
    "endpoint": "",
    "timeout": 5.0,
    "pool": 50,
    "skew": 5.0,
    "migrate": True,
}

_TABLE: Final = re.compile(r"[a-zA-Z0-9_.-]{3,255}", re.ASCII)
_REGION: Final = re.compile(r"[a-z0-9-]{0,40}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    url: str
    table: str
    region: str
    """Empty: the one that boto3 finds."""
    endpoint: str
    """Empty: AWS."""
    timeout: float
    """Seconds that all attempts of a call may take, without the pauses between them."""
    pool: int
    """Connections: as many requests of a batch run at once."""
    skew: float
    """Seconds by which two workers may disagree about the time (`lease_watch`)."""
    migrate: bool
    """Create the table if it is missing."""

    @classmethod
    def of(cls, url: str) -> Settings:
        parts = urlsplit(url)
        options: dict[str, Any] = options_of(url, OPTIONS)
        if "@" in parts.netloc:
            raise ConfigurationError(
                "a DynamoDB URL has no user and no password: set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, a profile, or the role of the machine"
            )
        if parts.path not in ("", "/") or not _TABLE.fullmatch(parts.netloc):
            raise ConfigurationError(
                "a DynamoDB URL is dynamodb://table?region=…; the name of a table has 3 to 255 of "
                "a-z, A-Z, 0-9, _ . and -"
            )
        _check(options)
        return cls(url=f"dynamodb://{parts.netloc}", table=parts.netloc, **options)


def _check(options: dict[str, Any]) -> None:
    if not _REGION.fullmatch(options["region"]):
        raise ConfigurationError(
            f"region={options['region'][:40]!r} is not valid: use a name such as eu-central-1"
        )
    if options["endpoint"]:
        _check_endpoint(options["endpoint"])
    expect_seconds(options, "timeout")
    expect_seconds(options, "skew", or_zero=True)


def _check_endpoint(endpoint: str) -> None:
    problem = ConfigurationError(
        "endpoint= is not a URL such as http://127.0.0.1:8000, without a user and without options"
    )
    try:
        parts = urlsplit(endpoint)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        raise problem from None
    if not valid or "@" in parts.netloc or parts.query or parts.fragment:
        raise problem
