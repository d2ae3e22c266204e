"""The same storm on an inbox: effect and record in one transaction of the worker's own.

Besides SIGKILL of workers it can end their sessions in the server (`pg_terminate_backend`), and
kill and restart its own server. A worker knows nothing of it: what fails is rolled back or
unknown, and comes again.

    inbox_storm.py FOLDER --store URL --seed 1 --kills 300 [--cut 50] [--server postgres --restarts 5]
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.kill.storm import Broker
from twicesafe import Inbox, StoreUnavailableError, TwicesafeError

TABLES = (
    "CREATE TABLE charges (number INTEGER NOT NULL, fence BIGINT NOT NULL)",
    "CREATE TABLE account (balance INTEGER NOT NULL)",
    "INSERT INTO account VALUES (0)",
)


def connect(url: str) -> Any:
    """A connection that begins by itself and commits on request."""
    if url.startswith("sqlite:"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=120)
        connection.execute("PRAGMA synchronous=FULL")
        return connection
    if url.startswith("postgresql:"):
        import psycopg

        return psycopg.connect(url)
    import pymysql

    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname, port=parts.port, user=parts.username, database=parts.path[1:]
    )


def run(connection: Any, sql: str) -> list[Any]:
    cursor = connection.cursor()
    cursor.execute(sql)
    return list(cursor.fetchall()) if cursor.description else []


def charge(connection: Any, number: int) -> str:
    """Two writes that must come together: with each other, and with the record."""
    from twicesafe import current_claim

    claim = current_claim()
    assert claim is not None
    run(connection, "UPDATE account SET balance = balance + 1")
    run(connection, f"INSERT INTO charges VALUES ({number}, {claim.fence})")
    return f"{number}/{claim.fence}"


def work(folder: Path, options: argparse.Namespace, inbox: int, outbox: int) -> None:
    """A worker whose connection may go at any moment: then it takes a new one."""
    box = patiently(lambda: Inbox.open(options.store))
    connection: Any = None
    while delivery := os.read(inbox, 4):
        (number,) = struct.unpack("I", delivery)
        try:
            if connection is None:
                connection = connect(options.store)
            if options.apart:
                told = apart(box, connection, number)
            else:
                told = box.process(connection, f"key-{number}", charge, connection, number).value
            connection.commit()
        except Exception as error:
            told = "busy" if isinstance(error, TwicesafeError) and error.retryable else "lost"
            try:
                connection.rollback()
            except Exception:
                connection = None
        os.write(outbox, f"{number} {os.getpid()} {told}\n".encode())


def apart(box: Inbox, connection: Any, number: int) -> str:
    """The mistake that an inbox saves from: first look, then the effect, and the record after it."""
    if not run(connection, f"SELECT 1 FROM charges WHERE number = {number}"):
        run(connection, "UPDATE account SET balance = balance + 1")
        connection.commit()
        run(connection, f"INSERT INTO charges VALUES ({number}, 1)")
    box.accept(connection, f"key-{number}")
    return f"{number}/1"


def patiently(act: Any) -> Any:
    until = time.monotonic() + 120
    while True:
        try:
            return act()
        except StoreUnavailableError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


class InboxBroker(Broker):
    work = staticmethod(work)

    def run(self) -> dict[str, Any]:
        done = threading.Event()
        counts = {"cut": 0, "restarts": 0}
        threads = [
            threading.Thread(target=act, args=(done, counts))
            for act, wanted in (
                (self._cut_sessions, self.options.cut),
                (self._restart, self.options.restarts),
            )
            if wanted
        ]
        for thread in threads:
            thread.start()
        self._faults = threads
        try:
            return {**super().run(), "cut": counts["cut"], "restarts": counts["restarts"]}
        finally:
            done.set()

    def rages(self) -> bool:
        return super().rages() or any(thread.is_alive() for thread in self._faults)

    def _cut_sessions(self, done: threading.Event, counts: dict[str, int]) -> None:
        """End one session in the server, whatever it is doing."""
        connection: Any = None
        while counts["cut"] < self.options.cut and not done.wait(0.01):
            try:
                if connection is None:
                    connection = connect(self.options.store)
                    connection.autocommit = True
                rows = run(
                    connection,
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <>"
                    " pg_backend_pid() AND datname = current_database()"
                    " AND backend_type = 'client backend' ORDER BY random() LIMIT 1",
                )
                counts["cut"] += len(rows)
            except Exception:
                connection = None

    def _restart(self, done: threading.Event, counts: dict[str, int]) -> None:
        """Kill the server without a word, and start it again."""
        server = self.options.launched
        while counts["restarts"] < self.options.restarts and not done.wait(0.3):
            server.kill() if counts["restarts"] % 2 else server.stop()
            server.start()
            counts["restarts"] += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--store", default="")
    parser.add_argument("--server", default="")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--cut", type=int, default=0)
    parser.add_argument("--restarts", type=int, default=0)
    options = parser.parse_args()
    if options.server:
        from tests.servers import launch

        options.launched = launch(options.server)
        options.store = options.launched.url
    Inbox.open(options.store).close()
    connection = connect(options.store)
    for statement in TABLES:
        run(connection, statement)
    connection.commit()
    connection.close()
    notes = InboxBroker(options.folder, options).run()
    connection = connect(options.store)
    notes["charges"] = run(connection, "SELECT number, fence FROM charges ORDER BY number")
    notes["balance"] = run(connection, "SELECT balance FROM account")[0][0]
    records = run(connection, "SELECT state, count(*) FROM twicesafe_keys GROUP BY state")
    notes["records"] = [list(row) for row in records]
    connection.close()
    print(json.dumps(notes))
    if options.server:
        options.launched.remove()


if __name__ == "__main__":
    main()
