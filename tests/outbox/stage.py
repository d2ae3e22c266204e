"""One outbox in three engines: the caller's own connections, and a broker that remembers."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from twicesafe.core.outbox import Message
from twicesafe.core.publishing import NOT_TRIED

ENGINES = ("sqlite", "postgres", "mariadb")


def connect(url: str) -> Any:
    """A plain connection of the engine's usual driver, that begins by itself and must be committed."""
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=20, check_same_thread=False)
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
    """A publisher that keeps what it got; told so, it refuses, or is away."""

    batch = 100
    concurrency = 1

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.refuses: set[str] = set()
        """Bodies that it does not take."""
        self.tried: list[str] = []
        self.away: Exception | None = None
        self.changed = threading.Condition()

    def publish(self, messages: Sequence[Message]) -> list[Exception | None]:
        if self.away is not None:
            raise self.away
        answers: list[Exception | None] = []
        stopped: set[str | None] = set()
        with self.changed:
            for message in messages:
                if message.key is not None and message.key in stopped:
                    answers.append(NOT_TRIED)
                    continue
                body = message.body.decode(errors="replace")
                self.tried.append(body)
                if body in self.refuses:
                    answers.append(ValueError(f"no {body}"))
                    stopped.add(message.key)
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

    def wait_for(self, count: int, patience: float = 20) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.got) >= count, patience), self.bodies


class AsyncBroker(Broker):
    """The same, awaited."""

    async def publish(self, messages: Sequence[Message]) -> list[Exception | None]:  # type: ignore[override]
        return super().publish(messages)

    async def close(self) -> None:  # type: ignore[override]
        pass
