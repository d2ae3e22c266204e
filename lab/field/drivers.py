"""A receiver, blocking or async, through any driver, behind one blocking interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self

from twicesafe import AsyncReceiver, Outcome, Policy, Receiver

__all__ = ["DRIVERS", "DriverReceiver", "through"]

DRIVERS: Final = {
    "sqlite": ("sqlite3", "sqlite3 awaited"),
    "postgres": ("psycopg", "psycopg awaited", "asyncpg awaited"),
    "valkey": ("redis-py", "redis-py awaited"),
    "mariadb": ("PyMySQL", "PyMySQL awaited"),
}


def through(url: str, port: int) -> str:
    """The same store behind another port of this machine."""
    head, _, tail = url.partition("127.0.0.1:")
    return f"{head}127.0.0.1:{port}{tail.lstrip('0123456789')}"


class DriverReceiver:
    """An async one runs its event loop for the length of each call, in the caller's own thread."""

    def __init__(self, driver: str, url: str, policy: Policy | None = None) -> None:
        if driver.startswith("asyncpg"):
            url = url.replace("postgresql:", "postgresql+asyncpg:", 1)
        self._runner = asyncio.Runner() if driver.endswith("awaited") else None
        kind: Any = Receiver if self._runner is None else AsyncReceiver
        try:
            self.receiver: Any = kind.open(url, policy=policy)
        except BaseException:
            if self._runner is not None:
                self._runner.close()
            raise

    def process(self, key: str, handler: Callable[..., Any], *args: Any) -> Outcome[Any]:
        outcome: Outcome[Any] = self._end(self.receiver.process(key, self._own(handler), *args))
        return outcome

    def process_many(self, keys: list[str], handler: Callable[[str], Any]) -> list[Any]:
        return list(self._end(self.receiver.process_many(keys, self._own(handler), key=str)))

    def perform(self, request: Any) -> Any:
        """One request, straight to the store."""
        return self._end(self.receiver.store.perform(request))

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """On the event loop of this receiver."""
        assert self._runner is not None
        return self._runner.run(main)

    def end_loop(self) -> None:
        """As `asyncio.run` does at its end: what is still at work is cancelled."""
        assert self._runner is not None
        self._runner.close()
        self._runner = asyncio.Runner()

    def _own(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        if self._runner is None:
            return handler

        async def handle(*args: Any) -> Any:
            return handler(*args)

        return handle

    def _end(self, found: Any) -> Any:
        return found if self._runner is None else self._runner.run(_awaited(found))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end(self.receiver.close())
        if self._runner is not None:
            self._runner.close()


async def _awaited(found: Any) -> Any:
    return await found
