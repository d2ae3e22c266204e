"""Three drivers for PostgreSQL, behind one blocking interface: psycopg, async psycopg, asyncpg.

An async client runs its event loop for the length of each call, in the caller's own thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from twicesafe import AsyncReceiver, Outcome, Receiver

KINDS = ("psycopg", "psycopg-async", "asyncpg")


class DriverReceiver:
    def __init__(self, kind: str, url: str, **settings: Any) -> None:
        self.kind = kind
        self._runner = None if kind == "psycopg" else asyncio.Runner()
        self.receiver: Any
        if self._runner is None:
            self.receiver = Receiver.open(url, **settings)
        else:
            self.receiver = AsyncReceiver.open(url_for(kind, url), **settings)

    @property
    def store(self) -> Any:
        return self.receiver.store

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(self.receiver.close())
        if self._runner is not None:
            self._runner.close()


def url_for(kind: str, url: str) -> str:
    scheme = "postgresql+asyncpg:" if kind == "asyncpg" else "postgresql:"
    return scheme + url.partition(":")[2]


async def _awaited(found: Any) -> Any:
    return await found
