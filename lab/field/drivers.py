"""Every driver of every engine, behind one blocking interface: see `tests/stores/drivers.py`."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tests.servers import launch, shared
from tests.servers.etcd import apt_program
from tests.stores.drivers import AnyReceiver
from twicesafe import Policy

__all__ = ["DRIVERS", "DriverReceiver", "sturdy", "through"]

DRIVERS: Final = {
    "sqlite": ("sqlite3", "sqlite3 awaited"),
    "postgres": ("psycopg", "psycopg awaited", "asyncpg awaited"),
    "valkey": ("redis-py", "redis-py awaited"),
    "mariadb": ("PyMySQL", "PyMySQL awaited"),
    "etcd": ("grpcio", "grpcio awaited"),
    "dynamodb": ("boto3", "aiobotocore awaited"),
    "mongodb": ("PyMongo", "PyMongo awaited"),
}


@functools.cache
def sturdy(engine: str) -> Any:
    """A server that survives when its clients are cut off. etcd 3.5.1, the wheel's, panics if that happens during a read
    (etcd-io/etcd 14110)."""
    return launch(engine, program=apt_program()) if engine == "etcd" else shared(engine)


def through(url: str, port: int) -> str:
    """The same store behind another port of this machine."""
    head, _, tail = url.partition("127.0.0.1:")
    return f"{head}127.0.0.1:{port}{tail.lstrip('0123456789')}"


class DriverReceiver(AnyReceiver):
    def __init__(self, driver: str, url: str, policy: Policy | None = None) -> None:
        if driver.startswith("asyncpg"):
            url = url.replace("postgresql:", "postgresql+asyncpg:", 1)
        super().__init__(url, is_async=driver.endswith("awaited"), policy=policy)

    def process_many(self, messages: Any, handler: Callable[..., Any], **settings: Any) -> Any:
        """The messages are their own keys."""
        return super().process_many(messages, handler, **{"key": str, **settings})

    def perform(self, request: Any) -> Any:
        """One request, straight to the store."""
        return self._end(self.receiver.store.perform(request))

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """On the event loop of this receiver."""
        assert self._runner is not None
        return self._runner.run(main)

    def end_loop(self) -> None:
        """As `asyncio.run` does at its end: running work is cancelled."""
        self._end_loop()
        self._runner = asyncio.Runner()
