"""``relay``, ``outbox …`` and ``migrate --outbox``: what they print, do, and leave with."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.line import Line
from tests.outbox.stage import Broker
from twicesafe.outbox import Outbox, OutboxRelay
from twicesafe.outbox.publishers._function import CallablePublisher
from twicesafe.stores import Heartbeat


def put(line: Line, *bodies: str, topic: str = "orders", key: str | None = "k") -> None:
    with Outbox.open(line.url) as outbox:
        connection = sqlite3.connect(line.url.removeprefix("sqlite:///"))
        with connection:
            for body in bodies:
                outbox.add(connection, topic=topic, body=body, key=key)
        connection.close()


@pytest.fixture
def parked(line: Line) -> str:
    """A lane that is parked, with one message behind the bad one."""
    return park(line)


def park(line: Line, topic: str = "orders", key: str = "k") -> str:
    put(line, "bad", "behind", topic=topic, key=key)
    broker = Broker()
    broker.refuses = {"bad"}
    with Outbox.open(line.url) as outbox:
        OutboxRelay(outbox.store, broker, max_attempts=1).drain()
        return outbox.parked()[0].lane


def test_status(line: Line, parked: str):
    put(line, "1", key=None)
    ran = line("outbox", "status", "--json")
    assert ran.status == 1
    assert (ran.data["pending"], ran.data["parked"], ran.data["parked_lanes"]) == (1, 2, 1)
    assert ran.data["oldest_age"] >= 0
    assert "2 in 1 lane" in line("outbox", "status").out


def test_status_without_trouble(line: Line):
    put(line)
    assert line("outbox", "status").status == 0


def test_parked(line: Line, parked: str):
    (lane,) = line("outbox", "parked", "--json").data["lanes"]
    assert (lane["lane"], lane["key"], lane["waiting"]) == (parked, "k", 2)
    assert parked in line("outbox", "parked").out, "all of it, as retry and skip want it"


def test_relays(line: Line):
    put(line, "1", key=None)
    assert "no relay ran in the last day" in line("outbox", "relays").out
    assert "no relay publishes" in line("outbox", "relays").out
    with Outbox.open(line.url) as outbox:
        outbox.store.outbox.perform(Heartbeat(b"a" * 16, 60_000))
    data = line("outbox", "relays", "--json").data
    assert [(one["id"][:2], one["is_alive"], one["slots"]) for one in data["relays"]] == [
        ("61", True, 64)
    ]
    assert data["unserved"] == 0
    assert "61616161 active renewed 64" in " ".join(line("outbox", "relays").out.split())


def test_topics_and_keys_are_no_markup(line: Line):
    park(line, topic="[/b]", key="[link=http://evil]")
    ran = line("outbox", "parked")
    assert ran.status == 0
    assert "[/b]" in ran.out
    assert "[link" in ran.out


def test_retry_and_skip(line: Line, parked: str):
    assert line("outbox", "skip", parked, "--by", "ana", "--why", "bad").status == 0
    assert line("outbox", "parked").out.strip() == "no lane is parked"
    again = line("outbox", "retry", parked, "--by", "ana", "--why", "x", "--json")
    assert again.status == 1
    assert "not parked" in again.fault["message"]
    (act,) = line("audit", "--json").data["actions"]
    assert (act["lane"], act["action"], act["by"], act["why"]) == (parked, "skip", "ana", "bad")


def test_what_was_resumed_before_a_lane_that_is_refused_is_said(line: Line, parked: str):
    ran = line("outbox", "retry", parked, "f" * 32, "--by", "ana", "--why", "fixed")
    assert (ran.status, "not parked" in ran.err, f"{parked} resumed" in ran.out) == (1, True, True)


def test_retry_all(line: Line, parked: str):
    ran = line("outbox", "retry", "--all", "--by", "ana", "--why", "fixed", "--json")
    assert ran.data["lanes"] == [parked]
    assert line("outbox", "status", "--json").data["pending"] == 2
    (act,) = line("audit", "--json").data["actions"]
    assert (act["lane"], act["action"], act["by"], act["why"]) == (parked, "retry", "ana", "fixed")
    assert f"retry  {parked[:8]}  lane" in line("audit").out
    assert line("outbox", "retry", "--by", "a", "--why", "b", "--json").status == 2


def test_retry_all_ends_although_lanes_are_parked_again_at_once(
    line: Line, parked: str, monkeypatch: pytest.MonkeyPatch
):
    """The broker still refuses their messages."""
    monkeypatch.setattr(Outbox, "retry", lambda *_, **__: None)
    ran = line("outbox", "retry", "--all", "--by", "ana", "--why", "fixed", "--json")
    assert ran.data["lanes"] == [parked]


def test_relay_once(line: Line, valkey_url: str):
    put(line, "1", "2")
    broker, _, prefix = valkey_url.partition("?prefix=")
    ran = line("relay", "--to", f"{broker}?prefix={prefix}", "--once", "--json")
    assert ran.data["published"] == 2
    assert line("outbox", "status", "--json").data["pending"] == 0


@pytest.mark.parametrize(
    "bodies, says", [("1", "1 message published"), ("12", "2 messages published")]
)
def test_relay_says_how_many(line: Line, valkey_url: str, bodies: str, says: str):
    put(line, *bodies)
    broker, _, prefix = valkey_url.partition("?prefix=")
    ran = line("relay", "--to", f"{broker}?prefix={prefix}", "--once")
    assert says in ran.out + ran.err


def test_relay_without_its_driver_touches_no_lane(line: Line, monkeypatch: pytest.MonkeyPatch):
    """It parked lanes, counted attempts, and ended with status 0."""
    put(line, "1")
    monkeypatch.setitem(sys.modules, "nats", None)
    ran = line("relay", "--to", "nats://127.0.0.1:1", "--once", "--max-attempts", "1", "--json")
    assert (ran.status, ran.fault["type"]) == (2, "ConfigurationError")
    assert "pip install 'twicesafe[nats]'" in ran.fault["message"]
    status = line("outbox", "status", "--json").data
    assert (status["pending"], status["parked"], status["resting_lanes"]) == (1, 0, 0)


def test_relay_once_ends_when_the_broker_is_away(line: Line):
    put(line, "1")
    ran = line("relay", "--to", "redis://127.0.0.1:1", "--once", "--json")
    assert (ran.status, ran.fault["type"]) == (3, "BrokerUnavailableError")
    assert ran.fault["retryable"]
    assert line("outbox", "status", "--json").data["pending"] == 1


def test_relay_once_finds_no_store(line: Line, tmp_path: Path):
    """A wrong path made an empty database, and ended with status 0 and no message published."""
    missing = tmp_path / "missing.db"
    url = f"sqlite:///{missing}"
    ran = line("relay", "--store", url, "--to", "redis://127.0.0.1:1", "--once", store=False)
    assert ran.status == 3
    assert "there is no store at" in ran.err
    assert not missing.exists()


def test_relay_once_ends_on_a_signal(line: Line, monkeypatch: pytest.MonkeyPatch):
    """It ends what is under way, and leaves the rest."""

    def taking(message: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    put(line, "1", "2", "3")
    monkeypatch.setattr(
        "twicesafe.outbox.publishers._urls.open_publisher", lambda _: CallablePublisher(taking)
    )
    ran = line("relay", "--to", "nowhere:", "--once", "--batch", "1", "--json")
    assert (ran.status, ran.data["published"]) == (0, 1)
    assert line("outbox", "status", "--json").data["pending"] == 2


def test_relay_to_nowhere(line: Line):
    assert line("relay", "--to", "ftp://x", "--json").fault["type"] == "ConfigurationError"


def test_a_running_relay_ends_well_on_sigterm(line: Line, valkey_url: str):
    put(line, "1")
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "twicesafe",
            "relay",
            "--to",
            valkey_url,
            "--store",
            line.url,
            "--json",
        ],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    with Outbox.open(line.url) as outbox:
        while outbox.depth().pending:
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert b'"published": 1' in out
        assert outbox.depth().relays == 0


def test_migrate_makes_the_outbox_when_asked(line: Line, tmp_path: Path):
    url = f"{line.url}?migrate=false"
    done = line("migrate", "--outbox", "--store", url, "--json", store=False).data["done"]
    names = ["twicesafe", "twicesafe_runs", "twicesafe_outbox"]
    assert [step.partition(":")[0] for step in done] == names
    with Outbox.open(url) as outbox:
        assert outbox.depth().pending == 0


def test_migrate_prints_the_outbox_too(line: Line, tmp_path: Path):
    script = line("migrate", "--sql", "--outbox").out
    with sqlite3.connect(tmp_path / "keys.db") as connection:
        connection.executescript(script)
    connection.close()
    with Outbox.open(f"{line.url}?migrate=false") as outbox:
        assert outbox.depth().pending == 0
    for url in ("postgresql://u@nowhere.invalid/db?schema=app", "mysql://u@nowhere.invalid/db"):
        ran = line("migrate", "--sql", "--outbox", "--json", "--store", url, store=False)
        assert "twicesafe_outbox_parked" in ran.data["sql"]
