"""A receiver, blocking or async, through any driver, behind one blocking interface.

An async one runs its event loop for the length of each call, in the caller's own thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

from twicesafe import AsyncReceiver, Outcome, Receiver

KINDS = ("psycopg", "psycopg-async", "asyncpg")
"""The drivers for PostgreSQL."""


class AnyReceiver:
    """`is_async`: an `AsyncReceiver`, with an event loop that belongs to it."""

    def __init__(self, url: str, *, is_async: bool, **settings: Any) -> None:
        self._runner = asyncio.Runner() if is_async else None
        kind: Any = AsyncReceiver if is_async else Receiver
        try:
            self.receiver: Any = kind.open(url, **settings)
        except BaseException:
            self._end_loop()
            raise

    def do(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Any method of the receiver, to its end."""
        return self._end(getattr(self.receiver, name)(*args, **kwargs))

    def process(self, key: Any, handler: Callable[..., Any], *args: Any) -> Outcome[Any]:
        outcome: Outcome[Any] = self.do("process", key, self._handler(handler), *args)
        return outcome

    def process_many(self, messages: Any, handler: Callable[..., Any], **settings: Any) -> Any:
        return self.do("process_many", messages, self._handler(handler), **settings)

    def _handler(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        if self._runner is None:
            return handler

        async def handle(*args: Any) -> Any:
            return handler(*args)

        return handle

    def _end(self, found: Any) -> Any:
        return found if self._runner is None else self._runner.run(_awaited(found))

    def _end_loop(self) -> None:
        if self._runner is not None:
            self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end(self.receiver.close())
        self._end_loop()


class DriverReceiver(AnyReceiver):
    """A receiver on PostgreSQL, through one of its drivers."""

    def __init__(self, kind: str, url: str, **settings: Any) -> None:
        self.kind = kind
        super().__init__(url_for(kind, url), is_async=kind != "psycopg", **settings)

    @property
    def store(self) -> Any:
        return self.receiver.store

    def ask(self, port: Any, request: Any) -> Any:
        """One request to the store or to its outbox."""
        return self._end(port.perform(request))

    def doctor(self) -> Any:
        return self._end(self.store.doctor())


def url_for(kind: str, url: str) -> str:
    scheme = "postgresql+asyncpg:" if kind == "asyncpg" else "postgresql:"
    return scheme + url.partition(":")[2]


async def _awaited(found: Any) -> Any:
    return await found
