"""One outbox in three engines: the caller's own connections, and a broker that remembers."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from twicesafe._core.outbox.requests import Message
from twicesafe.outbox import AsyncOutboxRelay, OutboxRelay

ENGINES = ("sqlite", "postgres", "mariadb")


def connect(url: str) -> Any:
    """A plain connection of the engine's usual driver, that begins by itself and must be committed."""
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=120, check_same_thread=False)
    if url.startswith("postgresql"):
        import psycopg

        return psycopg.connect(url)
    import pymysql

    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=parts.username,
        database=parts.path.lstrip("/"),
        autocommit=False,
    )


def begin(connection: Any) -> None:
    """PyMySQL tells from the outside only whether a transaction has begun: so it is begun."""
    if type(connection).__module__.startswith("pymysql"):
        connection.begin()


class Broker:
    """A publisher that keeps what it got; on request it refuses, or is away. It knows no keys."""

    batch = 100
    concurrency = 1

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.refuses: set[str] = set()
        """Bodies that it does not take."""
        self.why: Exception | None = None
        self.tried: list[str] = []
        self.away: BaseException | None = None
        self.changed = threading.Condition()

    def publish(self, messages: Sequence[Message]) -> list[Exception | None]:
        if self.away is not None:
            raise self.away
        answers: list[Exception | None] = []
        with self.changed:
            for message in messages:
                body = message.body.decode(errors="replace")
                self.tried.append(body)
                if body in self.refuses:
                    answers.append(self.why or ValueError(f"no {body}"))
                else:
                    self.got.append(message)
                    answers.append(None)
            self.changed.notify_all()
        return answers

    def close(self) -> None:
        pass

    @property
    def bodies(self) -> list[str]:
        return [message.body.decode() for message in self.got]

    def wait_for(self, count: int, time_limit: float = 20) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.got) >= count, time_limit), self.bodies


class AsyncBroker(Broker):
    """The same, awaited."""

    async def publish(self, messages: Sequence[Message]) -> list[Exception | None]:  # type: ignore[override]
        return super().publish(messages)

    async def close(self) -> None:  # type: ignore[override]
        pass


class RelayMode:
    """Relays of one mode, spoken to in blocking words."""

    def __init__(self, mode: str, url: str) -> None:
        self.name, self.url = mode, url
        self._made: list[Any] = []
        self._loop = asyncio.new_event_loop() if mode == "async" else None
        if self._loop is not None:
            self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
            self._thread.start()

    def relay(self, publisher: Any, url: str | None = None, **settings: Any) -> Relay:
        made = Relay(self, url or self.url, publisher, settings)
        self._made.append(made)
        return made

    def run(self, function: Any, *args: Any) -> Any:
        if self._loop is None:
            return function(*args)

        async def awaited() -> Any:
            reply = function(*args)
            return await reply if inspect.isawaitable(reply) else reply

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(60)

    def close(self) -> None:
        for relay in self._made:
            relay.close()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class Relay:
    def __init__(self, mode: RelayMode, url: str, publisher: Any, settings: dict[str, Any]) -> None:
        self._run = mode.run
        kind = OutboxRelay if mode.name == "sync" else AsyncOutboxRelay
        self.own: Any = mode.run(lambda: kind.open(url, publisher, **settings))

    def drain(self) -> int:
        return self._run(self.own.drain)  # type: ignore[no-any-return]

    def start(self) -> Relay:
        self._run(self.own.start)
        return self

    def stop(self) -> None:
        self._run(self.own.stop)

    def close(self) -> None:
        self._run(self.own.close)

    @property
    def published(self) -> int:
        return self.own.published  # type: ignore[no-any-return]
