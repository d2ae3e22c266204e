"""The inbox on a cut connection (C5, mode 2): effect and record commit together, whatever was seen of it.

The caller's transaction goes through the proxy: one reply, or one request, of BEGIN, the inbox's own
statements, the effect or COMMIT ends after a chosen number of bytes. The caller knows nothing then, and
does what the promise asks of it: a new connection, and the same delivery again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from tests.servers import shared
from twicesafe import AsyncInbox, Inbox

from .drivers import through
from .proxy import Fault, Proxy
from .trial import Trial, trial

__all__ = ["cut_commits"]

TRIES: Final = 20
EFFECTS: Final = "CREATE TABLE effects (name VARCHAR(100) NOT NULL)"
EFFECT: Final = "INSERT INTO effects (name) VALUES ('{}')"
COUNT: Final = "SELECT count(*) FROM effects WHERE name = '{}'"


class Psycopg:
    """One delivery on its own connection; raises what the driver raises."""

    def __init__(self, direct: str, url: str) -> None:
        import psycopg

        def connect(where: str = url) -> Any:
            return psycopg.connect(where, connect_timeout=5)

        self._connect, self._direct = connect, direct
        self.inbox: Any = Inbox.open(direct)
        with self._connect(direct) as connection:
            connection.execute(EFFECTS)

    def deliver(self, key: str, armed: Callable[[], object]) -> str:
        with contextlib.closing(self._connect()) as connection:
            armed()
            with connection.transaction():

                def effect() -> str:
                    connection.execute(EFFECT.format(key))
                    return f"{key} done"

                return str(self.inbox.process(connection, key, effect).value)

    def count(self, key: str) -> int:
        with self._connect(self._direct) as connection:
            return int(connection.execute(COUNT.format(key)).fetchone()[0])

    def close(self) -> None:
        self.inbox.close()


class PyMySQL(Psycopg):
    def __init__(self, direct: str, url: str) -> None:
        import pymysql

        def connect(where: str = url) -> Any:
            parts = urlsplit(where)
            return pymysql.connect(
                host="127.0.0.1",
                port=parts.port or 0,
                user="root",
                database=parts.path[1:],
                connect_timeout=5,
                read_timeout=10,
            )

        self._connect, self._direct = connect, direct
        self.inbox = Inbox.open(direct)
        self._ask(EFFECTS)

    def _ask(self, sql: str) -> Any:
        with contextlib.closing(self._connect(self._direct)) as connection:
            cursor = connection.cursor()
            cursor.execute(sql)
            connection.commit()
            return cursor.fetchall()

    def deliver(self, key: str, armed: Callable[[], object]) -> str:
        connection = self._connect()
        try:
            armed()
            connection.begin()

            def effect() -> str:
                connection.cursor().execute(EFFECT.format(key))
                return f"{key} done"

            value = str(self.inbox.process(connection, key, effect).value)
            connection.commit()
            return value
        finally:
            if connection.open:
                connection.close()

    def count(self, key: str) -> int:
        return int(self._ask(COUNT.format(key))[0][0])


class Asyncpg(Psycopg):
    def __init__(self, direct: str, url: str) -> None:
        super().__init__(direct, url)
        self.inbox.close()
        self._runner = asyncio.Runner()
        self._url = url
        self.inbox = AsyncInbox.open(direct.replace("postgresql:", "postgresql+asyncpg:", 1))

    def deliver(self, key: str, armed: Callable[[], object]) -> str:
        return self._runner.run(self._deliver(key, armed))

    async def _deliver(self, key: str, armed: Callable[[], object]) -> str:
        import asyncpg

        connection = await asyncpg.connect(self._url, timeout=5)
        try:
            armed()
            async with connection.transaction():

                async def effect() -> str:
                    await connection.execute(EFFECT.format(key))
                    return f"{key} done"

                return str((await self.inbox.process(connection, key, effect)).value)
        finally:
            connection.terminate()

    def close(self) -> None:
        self._runner.run(self.inbox.close())
        self._runner.close()


CALLERS: Final[dict[str, tuple[type[Psycopg], ...]]] = {
    "postgres": (Psycopg, Asyncpg),
    "mariadb": (PyMySQL,),
}


@trial("cut commits", "C5", "cuts", ("postgres", "mariadb"))
def cut_commits(t: Trial) -> None:
    """The connection of a caller's transaction with an inbox is cut after every number of bytes, also in
    COMMIT and its reply. Is the effect applied once, whatever the caller saw?"""
    server = shared(t.engine)
    for kind in CALLERS[t.engine]:
        with server.fresh() as direct, Proxy(server.port) as proxy:
            caller = kind(direct, through(direct, proxy.port))
            try:
                for way in ("reply", "request"):
                    _sweep(t, caller, proxy, way)
            finally:
                caller.close()


def _sweep(t: Trial, caller: Psycopg, proxy: Proxy, way: Any) -> None:
    rng = random.Random(f"{type(caller).__name__}/{way}/{t.seed}")
    numbers = itertools.count()
    whole = Fault(way)
    for _ in range(2):
        whole = Fault(way)
        caller.deliver(f"{way}-{next(numbers)}", lambda: proxy.arm(whole))  # noqa: B023
        proxy.disarm()
    length = whole.passed
    tail = range(max(0, length - 40), length + 1)  # COMMIT and what comes back
    offsets: Sequence[int] = range(length + 1)
    if not t.full:
        offsets = sorted({*rng.sample(tail, 10), *rng.sample(offsets, 8)})
    for offset in offsets:
        key = f"{way}-{next(numbers)}"
        fault = Fault(way, offset, rng.choice(("close", "close", "reset")))
        value = _until_told(t, caller, key, lambda: proxy.arm(fault))  # noqa: B023
        proxy.disarm()
        t.tried += fault.happened
        what = f"{type(caller).__name__}, {way} cut after {offset} of {length} bytes"
        t.expect(value == f"{key} done", f"{what}: told {value!r}")
        t.expect(caller.count(key) == 1, f"{what}: {caller.count(key)} effects")


def _until_told(t: Trial, caller: Psycopg, key: str, armed: Callable[[], object]) -> str:
    """What a sender does: again and again, until it gets an answer."""
    for number in range(TRIES):
        try:
            return caller.deliver(key, armed if not number else lambda: None)
        except Exception as error:
            t.count(f"told {type(error).__name__}")
    raise AssertionError(f"{key}: no answer after {TRIES} deliveries")
