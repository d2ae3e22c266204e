"""A database with accounts, a receiver on it, and the user's own connection, for `steps.transact`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.transactions.conftest import ENGINE_OF
from tests.transactions.kinds import Door, open_door
from twicesafe import AsyncReceiver, Backoff, Policy, Receiver

__all__ = ["POLICY", "Bank"]

POLICY = Policy(wait=1, backoff=Backoff(first=0.001, most=0.001))


class Bank:
    """Tests are written once: a function of a step may be a generator of statements."""

    def __init__(self, kind: str, url: str, opened: list[Callable[[], object]]) -> None:
        self.kind, self.url = kind, url.partition("?")[0]
        self.outside = Receiver.open(url)
        opened.append(self.outside.close)
        if not self.outside.store.capabilities.steps:
            pytest.skip("this store keeps no steps")
        self.door = open_door(kind, self.url)
        opened.append(self.door.close)
        with self.door.transaction():
            self.door.sql("CREATE TABLE IF NOT EXISTS credits (n INTEGER, amount INTEGER)")
        self.receiver: Any
        if self.door.is_async:
            self.receiver = AsyncReceiver.open(url, policy=POLICY)
            opened.append(lambda: self.door.end(self.receiver.close()))
        else:
            self.receiver = Receiver.open(url, policy=POLICY)
            opened.append(self.receiver.close)
        self.ran = 0

    def another(self) -> Door:
        return open_door(
            {"sqlite": "sqlite3", "postgres": "psycopg", "mariadb": "pymysql"}[
                ENGINE_OF[self.kind]
            ],
            self.url,
        )

    def durable(self, body: Callable[..., Any], **settings: Any) -> Any:
        """`body` yields what it calls on its steps, and receives the answers."""
        settings = {"key": "order", "scope": ("bank",), **settings}
        if self.door.is_async:

            async def run(steps: Any, order: Any) -> Any:
                return await _drive_async(body(steps, order))

        else:

            def run(steps: Any, order: Any) -> Any:  # type: ignore[misc]
                return _drive(body(steps, order))

        return self.receiver.durable(**settings)(run)

    def call(self, function: Any, order: str = "a") -> Any:
        return self.door.end(function(order))

    def credit(self, *more: str, value: Any = "credited", raises: Exception | None = None) -> Any:
        """The function of a step: adds a row on the connection that it gets, runs more statements."""
        texts = ("INSERT INTO credits (n, amount) VALUES (1, 5)", *more)
        if self.door.is_async:

            async def act(connection: Any, *args: Any) -> Any:
                self.ran += 1
                for text in texts:
                    await self.door.asql(text)
                if raises is not None:
                    raise raises
                return value

            return act

        def credit(connection: Any, *args: Any) -> Any:
            self.ran += 1
            for text in texts:
                self.door.sql(text)
            if raises is not None:
                raise raises
            return value

        return credit

    def effect(self, act: Callable[..., Any]) -> Any:
        return self.door.handler(act)

    @property
    def credits(self) -> int:
        """Committed rows, as others see them."""
        looking = self.another()
        try:
            looking.begin()
            (row,) = looking.sql("SELECT count(*) FROM credits")
            looking.rollback()
            return int(row[0])
        finally:
            looking.close()

    @property
    def records(self) -> str:
        return str(self.outside.store.programs.records)  # type: ignore[attr-defined]


def _drive(script: Any) -> Any:
    reply = None
    try:
        while True:
            reply = script.send(reply)
    except StopIteration as end:
        return end.value


async def _drive_async(script: Any) -> Any:
    send, reply = script.send, None
    try:
        while True:
            command = send(reply)
            try:
                send, reply = script.send, await command
            except BaseException as error:
                send, reply = script.throw, error
    except StopIteration as end:
        return end.value
