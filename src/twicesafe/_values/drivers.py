"""Drivers: packages that an extra installs. A missing one raises the same error everywhere.

    require("redis", "hiredis")          in `open`: import now, not in the first request

    with driver("httpx"):                at the top of a module that needs it
        import httpx

Both raise a `ConfigurationError` that names the pip extra. It is never an outage. Waiting does not
install a driver, so no edge may answer 503 and no relay may count it as a message's failure.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ..errors import ConfigurationError

__all__ = ["EXTRAS", "driver", "missing", "require"]

EXTRAS: Final = {
    "agents": "openai-agents",
    "aiobotocore": "dynamodb",
    "aio_pika": "rabbitmq",
    "aiohttp": "aiohttp",
    "aiormq": "rabbitmq",
    "anyio": "httpx",
    "asyncpg": "asyncpg",
    "boto3": "sqs",
    "celery": "celery",
    "botocore": "sqs",
    "confluent_kafka": "kafka",
    "cryptography": "encryption",
    "dramatiq": "dramatiq",
    "fastmcp": "mcp",
    "faststream": "faststream",
    "google": "etcd",
    "grpc": "grpc",
    "h11": "proxy",
    "hiredis": "redis",
    "httpx": "httpx",
    "httpx2": "httpx2",
    "jinja2": "dashboard",
    "jsonschema": "mcp",
    "langchain": "langchain",
    "langchain_core": "langchain",
    "langgraph": "langchain",
    "markupsafe": "dashboard",
    "mcp_types": "mcp",
    "nats": "nats",
    "opentelemetry": "opentelemetry",
    "prometheus_client": "prometheus",
    "psycopg": "postgresql",
    "pydantic": "pydantic-ai",
    "pydantic_ai": "pydantic-ai",
    "pydantic_core": "pydantic-ai",
    "pymongo": "mongodb",
    "pymysql": "mysql",
    "redis": "redis",
    "requests": "requests",
    "rich": "cli",
    "rq": "rq",
    "starlette": "dashboard",
    "taskiq": "taskiq",
    "taskiq_dependencies": "taskiq",
    "typer": "cli",
    "uvicorn": "proxy",
    "wordllama": "semantic",
    "yaml": "cli",
}
"""The extra that installs each package."""


def require(*modules: str, extra: str = "") -> None:
    """Import these driver modules now; `ConfigurationError` if one cannot be imported.

    ``extra``: if several extras install the package, the one that its user needs.
    """
    for module in modules:
        with driver(module.partition(".")[0], extra):
            importlib.import_module(module)


@contextmanager
def driver(package: str, extra: str = "") -> Iterator[None]:
    """Wrap the import of a driver: an `ImportError` becomes the error of `missing`."""
    try:
        yield
    except ImportError as error:
        raise missing(package, error, extra) from error


def missing(package: str, error: ImportError, extra: str = "") -> ConfigurationError:
    """The error for a driver that is not installed or cannot be loaded."""
    extra = extra or EXTRAS[package]
    return ConfigurationError(
        f"the package {package} cannot be imported ({' '.join(str(error).split())[:200]}); "
        f"install it: pip install 'twicesafe[{extra}]'"
    )
