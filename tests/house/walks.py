"""Walks: which functions of the package one call visits, recorded from a real run.

``python -m tests.house.walks`` records all of them on real servers and writes them to
``docs/drawing/sources/*.walk``; ``python docs/generate.py`` draws them.

A line of a recording is the depth, the file, the function, and ``again`` if a generator or a coroutine
goes on where it had stopped.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tests.house.repository import PACKAGE, ROOT
from tests.servers import shared

SOURCES = ROOT / "docs" / "drawing" / "sources"
_RESUMABLE = 0x20 | 0x80 | 0x200  # generator, coroutine, async generator: flags of a code object


class Recorder:
    """Notes every call of a function of the package, in every thread that starts meanwhile."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._started: set[int] = set()
        self._kept: list[FrameType] = []  # an id is not used again while its frame is alive

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(f"{PACKAGE}/"):
            return
        again = id(frame) in self._started
        if code.co_flags & _RESUMABLE and not again:
            self._started.add(id(frame))
            self._kept.append(frame)
        file = Path(code.co_filename).relative_to(PACKAGE)
        words = [str(_depth(frame)), str(file), code.co_qualname, *(["again"] if again else [])]
        self.lines.append(" ".join(words).replace(".<locals>", ""))

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


@contextmanager
def recorded() -> Iterator[list[str]]:
    recorder = Recorder()
    with recorder.everywhere():
        yield recorder.lines


def _depth(frame: FrameType) -> int:
    depth, outer = 0, frame.f_back
    while outer is not None:
        depth += outer.f_code.co_filename.startswith(f"{PACKAGE}/")
        outer = outer.f_back
    return depth


# --- the walks ------------------------------------------------------------------------------------


def function_on_sqlite(key: str = "tx-9") -> list[str]:
    """A function, blocking, on SQLite: the first delivery."""
    from twicesafe import Receiver

    with (
        tempfile.TemporaryDirectory() as folder,
        Receiver.open(f"sqlite:///{folder}/keys.db") as receiver,
    ):
        for number in range(3):  # then connections are open and profiles are made
            receiver.process(f"warm-{number}", charge, 5)
        with recorded() as lines:
            receiver.process(key, charge, 5)
    # Whether it looks at its file depends on the time since the last look.
    return [line for line in lines if "DatabaseFile.look" not in line]


def repeat_on_sqlite() -> list[str]:
    """The same, delivered once more."""
    return function_on_sqlite("warm-2")


def charge(cents: int) -> dict[str, int]:
    return {"cents": cents}


def request_on_postgresql() -> list[str]:
    """An HTTP request through the ASGI middleware, on PostgreSQL by asyncpg."""
    from twicesafe import AsyncReceiver
    from twicesafe.asgi import IdempotencyMiddleware

    async def walk(url: str) -> list[str]:
        async with AsyncReceiver.open(
            url.replace("postgresql:", "postgresql+asyncpg:")
        ) as receiver:
            middleware = IdempotencyMiddleware(_application, receiver=receiver)
            return await _third(lambda number: _request(middleware, number))

    with _postgresql() as url:
        return asyncio.run(walk(url))


def message_into_a_session() -> list[str]:
    """A message through the inbox, in a SQLAlchemy AsyncSession on PostgreSQL."""
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    from twicesafe import AsyncInbox

    async def walk(url: str) -> list[str]:
        engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))

        async def apply(session: AsyncSession) -> int:
            return 1

        async def deliver(number: int) -> list[str]:
            async with AsyncSession(engine) as session, session.begin():
                with recorded() as lines:
                    await inbox.process(session, f"message-{number}", apply)
            return lines

        async with AsyncInbox.open(url) as inbox:
            lines = [await deliver(number) for number in range(3)][-1]
        await engine.dispose()
        return lines

    with _postgresql() as url:
        return asyncio.run(walk(url))


def message_to_kafka() -> list[str]:
    """A message added to the outbox in a transaction of psycopg."""
    return _outbox_to_kafka()[0]


def relay_to_kafka() -> list[str]:
    """The relay publishes that message to Kafka."""
    return _outbox_to_kafka()[1]


def _outbox_to_kafka() -> tuple[list[str], list[str]]:
    import psycopg

    from twicesafe import Outbox, OutboxRelay

    with (
        _postgresql() as url,
        shared("kafka").fresh() as target,
        Outbox.open(url) as outbox,
        closing(OutboxRelay.open(url, target)) as relay,
    ):
        for number in range(3):
            with psycopg.connect(url) as connection, recorded() as added:
                outbox.add(connection, topic="orders", body={"id": number}, key="order-1")
            with recorded() as published:
                relay.drain()
    return added, published


# --- what they walk on ----------------------------------------------------------------------------


@contextmanager
def _postgresql() -> Iterator[str]:
    with shared("postgres").fresh() as url:
        yield url


async def _third(deliver: Callable[[int], Awaitable[None]]) -> list[str]:
    for number in range(3):
        with recorded() as lines:
            await deliver(number)
    return lines


async def _application(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})


async def _request(application: Any, number: int) -> None:
    key = f"key-{number}".encode()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/payments",
        "raw_path": b"/payments",
        "query_string": b"",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
        "headers": [
            (b"host", b"127.0.0.1"),
            (b"idempotency-key", key),
            (b"content-type", b"application/json"),
            (b"content-length", b"2"),
        ],
    }
    bodies = iter([{"type": "http.request", "body": b"{}", "more_body": False}])

    async def receive() -> Any:
        for body in bodies:
            return body
        return await asyncio.Event().wait()

    async def send(_: Any) -> None: ...

    await application(scope, receive, send)


WALKS: dict[str, Callable[[], list[str]]] = {
    "function": function_on_sqlite,
    "repeat": repeat_on_sqlite,
    "request": request_on_postgresql,
    "inbox": message_into_a_session,
    "outbox": message_to_kafka,
    "relay": relay_to_kafka,
}


def main() -> None:
    for name, walk in WALKS.items():
        lines = walk()
        (SOURCES / f"{name}.walk").write_text("\n".join(lines) + "\n", "utf-8")
        files = {line.split()[1] for line in lines}
        print(f"{name}: {len(lines)} calls in {len(files)} files")


if __name__ == "__main__":
    main()
