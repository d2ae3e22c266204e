"""After `close` no thread and no open file is left, however the thing was used, round after round."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import threading
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest

from tests.polling import until
from twicesafe import AsyncInbox, AsyncReceiver, Inbox, Receiver
from twicesafe.outbox import AsyncOutboxRelay, Outbox, OutboxRelay

ROUNDS = 4


@pytest.fixture(params=["sqlite", "postgres", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'left.db'}"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


def caller(url: str) -> Any:
    if url.startswith("sqlite"):
        return closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None))
    return closing(psycopg.connect(url, autocommit=True))


def waited_for(url: str, key: str) -> None:
    """A handler that runs until another receiver listens for its end; and upkeep beside it."""
    with Receiver.open(url) as one, Receiver.open(url) as two:
        one.maintain(every=60)
        runs, go = threading.Event(), threading.Event()

        def work() -> int:
            runs.set()
            go.wait()
            return 1

        first = threading.Thread(target=one.process, args=(key, work))
        first.start()
        runs.wait()
        second = threading.Thread(target=two.process, args=(key, work))
        second.start()
        go.wait(0.3)  # so that it listens, most likely; nothing depends on it
        go.set()
        first.join()
        second.join()


async def awaited(url: str, key: str) -> None:
    async def work() -> int:
        await asyncio.sleep(0.3)
        return 1

    async with (
        AsyncReceiver.open(url) as one,
        AsyncReceiver.open(url) as two,
    ):
        one.maintain(every=60)
        await asyncio.gather(one.process(key, work), two.process(key, work))


def fail() -> None:
    raise ValueError("no")


def noted(url: str, key: str) -> None:
    with Inbox.open(url) as inbox, caller(url) as connection:
        connection.execute("BEGIN")
        with pytest.raises(ValueError, match="no"):
            inbox.process(connection, key, fail)
        connection.execute("ROLLBACK")


async def inbox_opened(url: str) -> None:
    async with AsyncInbox.open(url):
        pass


def relayed(url: str) -> None:
    got: list[Any] = []
    with Outbox.open(url) as outbox, caller(url) as connection:
        for _ in range(2):
            connection.execute("BEGIN")
            outbox.add(connection, topic="orders", body=b"1", key="k")
            connection.execute("COMMIT")
            with OutboxRelay.open(url, got.append):
                until(lambda: outbox.depth().pending == 0, 60)


async def relayed_async(url: str) -> None:
    async def send(message: Any) -> None:
        return None

    async with AsyncOutboxRelay.open(url, send):
        pass
    drained = AsyncOutboxRelay.open(url, send)
    await drained.drain()
    await drained.close()


def open_files(url: str) -> list[str]:
    """The files of this database that the process can read. Python 3.13 warns of them, older versions do not."""
    path, opened = url.removeprefix("sqlite:///"), []
    for number in os.listdir("/proc/self/fd") if hasattr(os, "O_PATH") else ():
        with suppress(OSError):  # closed since
            name = os.readlink(f"/proc/self/fd/{number}")
            if name.startswith(path) and not fcntl.fcntl(int(number), fcntl.F_GETFL) & os.O_PATH:
                opened.append(name)
    return opened


@pytest.mark.timeout(600)
def test_nothing_is_left_after_close(url: str):
    before = set(threading.enumerate())
    for number in range(ROUNDS):
        waited_for(url, f"blocking {number}")
        asyncio.run(awaited(url, f"async {number}"))
        if not url.startswith("redis"):
            noted(url, f"noted {number}")
            asyncio.run(inbox_opened(url))
            relayed(url)
            asyncio.run(relayed_async(url))
        # A thread that was asked to end may need a moment.
        until(lambda: not set(threading.enumerate()) - before, 60)
        assert open_files(url) == []
