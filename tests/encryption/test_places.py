"""Everything that obeys a receiver's encryption: edges, inbox, consumers, outbox, the command line."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.line import Line, line  # noqa: F401 - a fixture
from twicesafe import AsyncReceiver, BrokerUnavailableError, Inbox, Key, Policy, Receiver
from twicesafe._core.outbox.requests import Message
from twicesafe._edges.http_guard import HttpGuard
from twicesafe._proxy.settings import load
from twicesafe._proxy.worker import Worker
from twicesafe.asgi import IdempotencyMiddleware
from twicesafe.encryption import KeyRing
from twicesafe.outbox import Outbox, OutboxRelay

RING = KeyRing({"a": os.urandom(32)})
SECRET = "canary-4111-1111"


def readable(folder: Path) -> bool:
    """Whether the secret is in any file: database, journal, write-ahead log."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return any(SECRET.encode() in path.read_bytes() for path in files)


async def shop(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    head = [(b"content-type", b"text/plain"), (b"location", f"/cards/{SECRET}".encode())]
    await send({"type": "http.response.start", "status": 201, "headers": head})
    await send({"type": "http.response.body", "body": SECRET.encode()})


SIGNED = ("--by", "ana", "--why", "new key")


@pytest.mark.parametrize("encrypted", [True, False])
async def test_responses_are_encrypted_by_the_receivers_ring(tmp_path: Path, encrypted: bool):
    policy = Policy(encryption=RING if encrypted else None)
    receiver = AsyncReceiver.open(f"sqlite:///{tmp_path}/keys.db", policy=policy)
    app = IdempotencyMiddleware(shop, receiver=receiver)
    async with (
        receiver,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client,
    ):
        first, again = [
            await client.post("/charges", headers={"Idempotency-Key": "k"}) for _ in range(2)
        ]
        assert (again.text, again.headers["location"]) == (first.text, first.headers["location"])
        assert again.headers["idempotent-replayed"] == "true"
        assert readable(tmp_path) is not encrypted


@pytest.mark.attack("D9")
async def test_a_tampered_response_is_500_and_runs_nothing(tmp_path: Path):
    policy = Policy(encryption=RING)
    receiver = AsyncReceiver.open(f"sqlite:///{tmp_path}/keys.db", policy=policy)
    app = IdempotencyMiddleware(shop, receiver=receiver)
    async with (
        receiver,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client,
    ):
        for key in ("a", "b"):
            await client.post("/charges", headers={"Idempotency-Key": key})
        with closing(sqlite3.connect(tmp_path / "keys.db")) as db, db:
            rows = db.execute("SELECT n, result FROM twicesafe_keys ORDER BY n").fetchall()
            db.execute("UPDATE twicesafe_keys SET result = ? WHERE n = ?", (rows[0][1], rows[1][0]))
        reply = await client.post("/charges", headers={"Idempotency-Key": "b"})
    assert reply.status_code == 500
    assert SECRET not in reply.text


def test_a_guard_warns_of_nothing(caplog: pytest.LogCaptureFixture):
    with Receiver.open("memory://", policy=Policy(encryption=RING)) as receiver:
        HttpGuard(receiver, None, is_test=True)
    assert caplog.text == ""


def test_results_of_an_inbox(tmp_path: Path):
    path = tmp_path / "shop.db"

    def work(connection: sqlite3.Connection) -> str:
        return SECRET

    with Inbox.open(f"sqlite:///{path}", policy=Policy(encryption=RING)) as inbox:
        for turn in range(2):
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute("BEGIN IMMEDIATE")
                outcome = inbox.process(connection, "m", work, connection)
                assert (outcome.value, outcome.replayed) == (SECRET, bool(turn))
        assert not readable(tmp_path)


# --- the outbox ----------------------------------------------------------------------------------


def put(outbox: Outbox, path: Path, *bodies: str, key: str | None = "k") -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("BEGIN IMMEDIATE")
        for body in bodies:
            outbox.add(connection, topic="cards", body=body, key=key)


def test_bodies_of_an_outbox_are_published_readable(tmp_path: Path):
    url, path = f"sqlite:///{tmp_path}/shop.db", tmp_path / "shop.db"
    sent: list[Message] = []
    with Outbox.open(url, encryption=RING) as outbox:
        put(outbox, path, SECRET, f"{SECRET} 2")
        assert not readable(tmp_path)
        with closing(OutboxRelay.open(url, sent.append, encryption=RING)) as relay:
            assert relay.drain() == 2
    assert [message.body.decode() for message in sent] == [SECRET, f"{SECRET} 2"]
    assert sent[0].headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.attack("D10")
@pytest.mark.parametrize("ring", [None, KeyRing({"b": os.urandom(32)})])
def test_a_relay_without_the_key_publishes_nothing_and_parks_nothing(tmp_path: Path, ring: Any):
    url, path = f"sqlite:///{tmp_path}/shop.db", tmp_path / "shop.db"
    sent: list[Message] = []
    with Outbox.open(url, encryption=RING) as outbox:
        put(outbox, path, SECRET)
        made = OutboxRelay.open(url, sent.append, encryption=ring, max_attempts=1)
        with closing(made) as relay, pytest.raises(BrokerUnavailableError, match="key ring"):
            relay.drain()
        assert (sent, outbox.depth().parked, outbox.depth().pending) == ([], 0, 1)


@pytest.mark.attack("D9")
def test_a_planted_message_is_parked_and_the_rest_goes_on(tmp_path: Path):
    url, path = f"sqlite:///{tmp_path}/shop.db", tmp_path / "shop.db"
    sent: list[Message] = []
    with Outbox.open(url, encryption=RING) as outbox:
        put(outbox, path, "one", key="a")
        put(outbox, path, "two", key="b")
        put(Outbox.open(url), path, "planted", key="c")
        with closing(sqlite3.connect(path)) as db, db:  # the body of one message in another
            db.execute(
                "UPDATE twicesafe_outbox SET payload = (SELECT payload FROM twicesafe_outbox WHERE "
                "aggregateid = 'a') WHERE aggregateid = 'b'"
            )
        with closing(OutboxRelay.open(url, sent.append, encryption=RING, max_attempts=1)) as relay:
            assert relay.drain() == 1
        assert [message.body for message in sent] == [b"one"]
        assert sorted(lane.key or "" for lane in outbox.parked()) == ["b", "c"]
        assert all("CorruptRecordError" in lane.error for lane in outbox.parked())


# --- the command line and the proxy --------------------------------------------------------------


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.txt"
    path.write_text(KeyRing.new_key("old"))
    return path


def test_the_commands_use_the_ring_of_the_settings(
    line: Line,  # noqa: F811
    tmp_path: Path,
    keys: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    store = line.url
    monkeypatch.setenv("TWICESAFE_POLICY_ENCRYPTION", f"file:{keys}")
    with Receiver.open(store, policy=Policy(encryption=KeyRing.load(f"file:{keys}"))) as receiver:
        receiver.process("k", lambda: SECRET)
    keys.write_text(f"{KeyRing.new_key('new')}\n{keys.read_text()}")
    assert line("keys", "reencrypt").status == 2  # who, and why?
    report = line("keys", "reencrypt", "--json", *SIGNED).data
    assert (report["examined"], report["rewritten"], report["after"]) == (1, 1, "")
    assert "0 answers of 3 records" in line("keys", "reencrypt", *SIGNED).out
    wrong = line("keys", "reencrypt", "--after", "?", *SIGNED)
    assert (wrong.status, "--after is not valid" in wrong.err) == (2, True)
    assert "encryption" not in wrong.err
    entries = line("audit", "--json").data["actions"]
    assert [(entry["by"], entry["why"]) for entry in entries] == [
        ("ana", "new key (1 answer of 1 record)"),
        ("ana", "new key (started)"),
    ]
    ring = KeyRing.load(f"file:{keys}")
    with Receiver.open(store, policy=Policy(encryption=ring)) as receiver:
        assert receiver.process("k", lambda: "other").value == SECRET
    assert not readable(tmp_path)


def test_reencrypting_without_a_ring(line: Line):  # noqa: F811
    Receiver.open(line.url).close()
    said = line("keys", "reencrypt", *SIGNED)
    assert said.status == 2
    assert "[policy] encryption" in said.err


def test_the_proxy_takes_the_ring_of_the_settings(tmp_path: Path, keys: Path):
    environ = {
        "TWICESAFE_POLICY_ENCRYPTION": f"file:{keys}",
        "TWICESAFE_PROXY_UPSTREAM": "http://127.0.0.1:9",
        "TWICESAFE_STORE_URL": f"sqlite:///{tmp_path}/keys.db",
    }
    settings = load(environ=environ)
    assert settings.encryption == f"file:{keys}"
    worker = Worker(settings)
    assert isinstance(worker.receiver.policy.encryption, KeyRing)
    assert Key("k").id  # the guard of the proxy is the one of every edge: see above
