"""Both modes on one key: receivers and inboxes get the same deliveries, while others sweep.

A receiver works under a lease, an inbox in its caller's transaction. Whichever comes first does the
work; the other waits for it, hears that it is still in progress, or replays it. Transactions stay open
for longer than a store's statement may wait, and the receivers are allowed to run unprotected when the
store is away: it never is, so none may.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tests.servers import shared
from twicesafe import Inbox, Policy, Receiver, StillInProgressError, StoreUnavailableError
from twicesafe.events import StoreFailed, Unprotected

from .drivers import DRIVERS, DriverReceiver
from .trial import Trial, trial

__all__ = ["mixed_modes"]

HELD: Final = 0.5
"""Seconds for which every fifth transaction stays open: ten times what a claim waits for a row."""

KEPT: Final = 86_400
"""Seconds: longer than any trial. A record that expires between two deliveries is a new message by right."""

PATIENT: Final = Policy(wait=60, outage="run", retention=KEPT)
HASTY: Final = Policy(in_flight="reject", outage="run", retention=KEPT)


class Place:
    """A database with a table of effects, and connections to it as a user would make them."""

    def __init__(self, engine: str, url: str) -> None:
        self.engine, self.url = engine, url
        self.run("CREATE TABLE effects (name VARCHAR(100) NOT NULL, mode VARCHAR(10) NOT NULL)")

    def connect(self) -> Any:
        if self.engine == "sqlite":
            path = self.url.partition("?")[0].removeprefix("sqlite:///")
            return sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
        if self.engine == "postgres":
            import psycopg

            return psycopg.connect(self.url, autocommit=True)
        import pymysql

        parts = urlsplit(self.url)
        return pymysql.connect(
            host="127.0.0.1",
            port=parts.port or 0,
            user="root",
            database=parts.path[1:],
            autocommit=True,
        )

    def run(self, sql: str, connection: Any = None) -> list[Any]:
        with contextlib.ExitStack() as stack:
            if connection is None:
                connection = stack.enter_context(contextlib.closing(self.connect()))
            cursor = connection.cursor()
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        with contextlib.closing(self.connect()) as connection:
            self.run("BEGIN IMMEDIATE" if self.engine == "sqlite" else "BEGIN", connection)
            try:
                yield connection
            except BaseException:
                self.run("ROLLBACK", connection)
                raise
            self.run("COMMIT", connection)

    def effect(self, key: str, mode: str, connection: Any = None) -> str:
        self.run(f"INSERT INTO effects (name, mode) VALUES ('{key}', '{mode}')", connection)
        return mode


@contextlib.contextmanager
def _place(engine: str) -> Iterator[Place]:
    if engine == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield Place(engine, f"sqlite:///{Path(folder) / 'mixed.db'}?timeout=0.2")
        return
    with shared(engine).fresh() as url:
        yield Place(engine, url)


@trial("mixed modes", "C9", "deliveries", ("sqlite", "postgres", "mariadb"))
def mixed_modes(t: Trial) -> None:
    """Receivers and inboxes get the same messages at once, transactions stay open, and a sweep runs at the
    same time. Is every message applied once? Is a key that a transaction holds ever reported as an outage?"""
    with _place(t.engine) as place, Inbox.open(place.url) as inbox:
        keys = [f"m-{number}" for number in range(t.size(12, 300))]
        values: dict[str, set[str]] = {key: set() for key in keys}
        told: Counter[str] = Counter()
        over = threading.Event()

        def hear(event: Any) -> None:
            if isinstance(event, (Unprotected, StoreFailed)):
                told[type(event).__name__] += 1

        def deliver(key: str, once: Callable[[], str]) -> None:
            """As a sender does: again, until there is an answer."""
            while True:
                t.tried += 1
                try:
                    values[key].add(once())
                    return
                except StillInProgressError:
                    told["still in progress"] += 1
                except Exception as error:
                    if "locked" not in str(error):  # SQLite, at the caller's own BEGIN
                        raise
                    told["locked"] += 1

        def by_inbox(number: int) -> None:
            for place_, key in enumerate(keys):

                def once(key: str = key, held: bool = (place_ + number) % 5 == 0) -> str:
                    with place.transaction() as connection:

                        def work() -> str:
                            done = place.effect(key, "inbox", connection)
                            if held:
                                over.wait(HELD)
                            return done

                        return str(inbox.process(connection, key, work).value)

                deliver(key, once)

        def by_receiver(driver: str, policy: Policy) -> None:
            with DriverReceiver(driver, place.url, policy) as client:
                client.receiver._notify = hear

                def once(key: str) -> str:
                    return str(client.process(key, place.effect, key, "receiver").value)

                for key in reversed(keys):
                    deliver(key, functools.partial(once, key))

        def sweep() -> None:
            with Receiver.open(place.url) as receiver:
                while not over.wait(0.05):
                    with contextlib.suppress(StoreUnavailableError):  # SQLite: there is one writer
                        receiver.sweep()

        sweeping = threading.Thread(target=sweep)
        sweeping.start()
        try:
            drivers = DRIVERS[t.engine]
            t.at_once(
                [lambda _, n=n: by_inbox(n) for n in range(2)]
                + [
                    lambda _, d=driver, p=policy: by_receiver(d, p)  # type: ignore[misc]
                    for driver, policy in zip(drivers, (PATIENT, HASTY, PATIENT), strict=False)
                ]
            )
        finally:
            over.set()
            sweeping.join()
        done = Counter(name for name, _ in place.run("SELECT name, mode FROM effects"))
        for mode, number in place.run("SELECT mode, count(*) FROM effects GROUP BY mode"):
            t.count(f"done by the {mode}", int(number))
        for what, number in told.items():
            t.count(f"told {what}", number)
        for key in keys:
            t.expect(done[key] == 1, f"{key}: {done[key]} effects")
            t.expect(len(values[key]) == 1, f"{key}: told {sorted(values[key])}")
        t.expect(not told["Unprotected"], f"{told['Unprotected']} ran unprotected")
        t.expect(not told["StoreFailed"], f"{told['StoreFailed']} saw an outage")
