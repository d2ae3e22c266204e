"""With hidden keys and a key ring nothing is readable anywhere: no key, no scope, no result, failure, step or
signal, in files, write-ahead logs, dumps, logs, metrics, pages (D17).

Each store first gets a canary with readable keys, to prove that the search would find one.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.logged import logged
from twicesafe import (
    AsyncReceiver,
    ConfigurationError,
    HeldError,
    Inbox,
    Policy,
    Receiver,
    RememberedFailureError,
    Steps,
    SuspendedError,
    current_key,
)
from twicesafe.dashboard import Access, dashboard
from twicesafe.encryption import KeyRing
from twicesafe.observers import LogObserver, PrometheusObserver

OPEN = "canary-open-7a0"
CANARIES = (
    "canary-key-7a1", "canary-tenant-7a2", "canary-run-7a3", "canary-result-7a4", "canary-failure-7a5",
    "canary-step-7a6", "canary-signal-7a7",
)  # fmt: skip
KEY, TENANT, RUN, RESULT, FAILURE, STEP, SIGNAL = CANARIES
RING = KeyRing({"a": os.urandom(32)})
POLICY = Policy(encryption=RING, max_attempts=1, takeover="hold")


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The secret, and a look at every log line."""
    for name in ("SECRET", "OTHER"):
        monkeypatch.setenv(name, base64.b64encode(os.urandom(32)).decode())
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.WARNING, "httpx")  # it logs what the dashboard is asked for
    yield
    assert not found_in(logged(caplog))


def hidden(url: str, secret: str = "SECRET") -> str:
    return f"{url}{'&' if '?' in url else '?'}hidden_keys=env:{secret}"


def found_in(heap: bytes) -> set[str]:
    return {canary for canary in CANARIES if canary.encode() in heap}


def files(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def fail() -> None:
    raise ZeroDivisionError(FAILURE)


def use(url: str) -> None:
    """Everything that makes a record: results, failures, held keys, operators, durable runs, signals; and then,
    with readable keys and no ring, one that must be found."""
    metrics = CollectorRegistry()
    observers = [LogObserver(), PrometheusObserver(metrics)]
    with Receiver.open(
        hidden(url), policy=POLICY, scope=(TENANT,), observers=observers
    ) as receiver:
        for _ in range(2):
            assert RESULT in receiver.process(KEY, lambda: f"{RESULT} {current_key()}").value
        remembering = receiver.options(policy=POLICY.replace(remember=(ZeroDivisionError,)))
        for error in (ZeroDivisionError, RememberedFailureError):
            with pytest.raises(error, match=FAILURE):
                remembering.process(f"{KEY} remembered", fail)
        with pytest.raises(ZeroDivisionError):
            receiver.process(f"{KEY} failed", fail)
        receiver.release(f"{KEY} failed", by="ann", why="looked")
        with pytest.raises(KeyboardInterrupt):
            receiver.process(f"{KEY} held", interrupt)
        with pytest.raises(HeldError) as raised:
            receiver.process(f"{KEY} held", fail)
        assert not found_in(str(raised.value).encode())
        receiver.forget(f"{KEY} held", by="ann")
        if receiver.store.capabilities.steps:
            flow = checkout(receiver)
            flow.submit(RUN)
            with pytest.raises(SuspendedError):
                flow(RUN)
            receiver.signal(flow.key(RUN), "approval", SIGNAL)
            receiver.complete_abandoned()
            assert flow(RUN) == RESULT
        assert receiver.count(value=KEY) == 1
        assert not found_in(repr((receiver, [*receiver.records()], receiver.stats())).encode())
        asyncio.run(look_at_pages(receiver))
    assert not found_in(generate_latest(metrics))
    asyncio.run(use_async(url))
    with Receiver.open(hidden(url, "OTHER")) as other:
        with pytest.raises(ConfigurationError, match="another secret"):
            other.process(KEY, fail)
        assert "another secret" in refused_by_doctor(other)
    with Receiver.open(url) as plain:
        assert "no hidden_keys" in refused_by_doctor(plain)
        plain.process(OPEN, lambda: OPEN)


def refused_by_doctor(receiver: Receiver) -> str:
    return "\n".join(found.what for found in receiver.doctor() if found.level == "refuse")


async def use_async(url: str) -> None:
    """The async receiver has the same identities, and leaves as little behind."""
    async with AsyncReceiver.open(hidden(url), scope=(TENANT,), policy=POLICY) as receiver:
        assert (await receiver.process(KEY, never)).replayed
        assert await receiver.count(value=KEY) == 1
        await receiver.process(f"{KEY} async", nothing)


async def nothing() -> None:
    pass


async def never() -> None:
    raise AssertionError("it ran again")


async def look_at_pages(receiver: Receiver) -> None:
    """The dashboard finds a key by what was sent, and shows none."""
    key = receiver.key(KEY)
    access = Access(level="all", show_keys=True)
    pages = dashboard(receiver, resolve_access=lambda _: access)
    transport = httpx.ASGITransport(pages, client=("127.0.0.1", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for path in ("/", "/keys", f"/keys/{key.id.hex()}", "/audit"):
            reply = await client.get(path)
            assert reply.status_code == 200, path
            assert not found_in(reply.content)
            assert path in ("/", "/audit") or key.short in reply.text
        for asked in ({"value": KEY}, {"scope": key.scope[0]}):
            assert key.short in (await client.get("/keys", params=asked)).text


def interrupt() -> None:
    raise KeyboardInterrupt


def checkout(receiver: Receiver) -> Any:
    @receiver.durable(key="order", scope=(f"{TENANT} flow",), name="checkout")
    def run(steps: Steps, order: str) -> str:
        steps.run("charge", lambda: STEP)
        assert steps.wait("approval", timeout=3600) == SIGNAL
        return RESULT

    return run


@pytest.mark.attack("D17")
def test_the_files_of_sqlite(tmp_path: Path):
    use(f"sqlite:///{tmp_path}/keys.db")
    heap = files(tmp_path)
    assert OPEN.encode() in heap
    assert not found_in(heap)


@pytest.mark.attack("D17")
def test_the_files_logs_and_dumps_of_postgresql(own_server: Callable[..., Any]):
    import psycopg

    server = own_server("postgres", log_statement="all", log_parameter_max_length="-1")
    use(server.url)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        dump = repr(
            [connection.execute(f"TABLE {name}").fetchall() for (name,) in names.fetchall()]
        )
    assert OPEN in dump
    assert not found_in(dump.encode())
    heap = files(server.folder)
    assert OPEN.encode() in heap
    assert not found_in(heap)


@pytest.mark.attack("D17")
def test_the_files_of_valkey(own_server: Callable[..., Any]):
    server = own_server("valkey", appendonly="yes", rdbcompression="no")
    use(server.url)
    client = server.client()
    client.save()
    client.close()
    heap = files(server.folder)
    assert OPEN.encode() in heap
    assert not found_in(heap)


@pytest.mark.attack("D17")
def test_the_files_of_mariadb(own_server: Callable[..., Any]):
    server = own_server("mariadb")
    with server.fresh() as url:
        use(url)
        server.stop()
        heap = files(server.folder)
    assert OPEN.encode() in heap
    assert not found_in(heap)


@pytest.mark.attack("D17")
def test_the_files_and_logs_of_etcd(own_server: Callable[..., Any]):
    server = own_server("etcd", log_level="debug")
    use(server.url)
    server.stop()
    heap = files(server.folder)
    assert OPEN.encode() in heap
    assert not found_in(heap)


@pytest.mark.attack("D17")
def test_a_dump_of_dynamodb(own_server: Callable[..., Any]):
    """The emulator keeps no files; the log of boto3 has every request and every answer."""
    server = own_server("dynamodb")
    with server.fresh() as url:
        use(url)
        client = server.client()
        dump = repr([client.scan(TableName=name) for name in client.list_tables()["TableNames"]])
    assert OPEN in dump
    assert not found_in(dump.encode() + files(server.folder))


@pytest.mark.attack("D17")
def test_the_files_and_logs_of_mongodb(own_server: Callable[..., Any]):
    server = own_server("mongodb", log_level="DEBUG")
    use(server.url)
    server.stop()
    heap = files(server.folder)
    assert OPEN.encode() in heap
    assert not found_in(heap)


@pytest.mark.attack("D17")
def test_an_inbox(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/keys.db"
    policy = Policy(encryption=RING)
    with (
        Inbox.open(hidden(url), consumer=TENANT, policy=policy) as inbox,
        closing(sqlite3.connect(tmp_path / "keys.db", isolation_level=None)) as db,
    ):
        for _ in range(2):
            db.execute("BEGIN IMMEDIATE")
            inbox.accept(db, KEY)
            assert inbox.process(db, RUN, lambda: 7).value == 7
            db.execute("COMMIT")
    with Inbox.open(url) as plain, closing(sqlite3.connect(tmp_path / "keys.db")) as db, db:
        plain.accept(db, OPEN)
    heap = files(tmp_path)
    assert OPEN.encode() in heap
    assert not found_in(heap)
