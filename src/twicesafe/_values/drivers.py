"""Drivers: the packages that an extra brings. A missing one is one error, everywhere.

    require("redis", "hiredis")          in `open`: import now, so that no request has to

    with driver("httpx"):                at the top of a module that cannot exist without it
        import httpx

Both raise a `ConfigurationError` that names the pip extra. It is never an outage: a driver that is
not installed does not come back by waiting, so no edge may answer 503 and no relay may count it as a
message's failure.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ..errors import ConfigurationError

__all__ = ["EXTRAS", "driver", "missing", "require"]

EXTRAS: Final = {
    "aio_pika": "rabbitmq",
    "aiohttp": "aiohttp",
    "anyio": "httpx",
    "asyncpg": "asyncpg",
    "confluent_kafka": "kafka",
    "grpc": "grpc",
    "h11": "proxy",
    "hiredis": "redis",
    "httpx": "httpx",
    "nats": "nats",
    "psycopg": "postgresql",
    "pymysql": "mysql",
    "redis": "redis",
    "requests": "requests",
    "rich": "cli",
    "typer": "cli",
    "uvicorn": "proxy",
}
"""Which extra brings a package."""


def require(*modules: str) -> None:
    """Import these modules of drivers now; `ConfigurationError` if one cannot be imported."""
    for module in modules:
        with driver(module.partition(".")[0]):
            importlib.import_module(module)


@contextmanager
def driver(package: str) -> Iterator[None]:
    """Around the import of a driver: an `ImportError` comes out as `missing` says it."""
    try:
        yield
    except ImportError as error:
        raise missing(package, error) from error


def missing(package: str, error: ImportError) -> ConfigurationError:
    """The error for a driver that is not installed, or that is installed and cannot be loaded."""
    extra = EXTRAS[package]
    return ConfigurationError(
        f"the driver {package} cannot be imported ({' '.join(str(error).split())[:200]}); "
        f"install it: pip install 'twicesafe[{extra}]'"
    )
