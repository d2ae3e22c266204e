"""``consume`` and ``dead-letters …``: what they print, do, and leave with."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.line import Line
from tests.polling import until

_numbers = itertools.count(1)

SHOP = """
import os

async def charge(message):
    with open("charged.txt", "a") as file:
        print(message.id, file=file)
    if message.id == "bad":
        raise ValueError("no such customer")

def publish(transaction, message):
    transaction.publish("invoices", message.body)

def say(message):
    with open("charged.txt", "a") as file:
        print(message.id, file=file)
"""


class Stream:
    def __init__(self, server: Any) -> None:
        self.name = f"cli{next(_numbers)}_{os.getpid()}"
        self.client = server.client()
        base = f"redis://127.0.0.1:{server.port}/0"
        self.url = f"{base}?stream={self.name}&group=billing"
        self.dead = f"{base}?stream={self.name}.dead&group=operators"

    def send(self, id_: str, key: str = "") -> None:
        fields = {"id": id_, "topic": "orders", "headers": "{}", "body": '{"cents": 5}'}
        self.client.xadd(self.name, fields | ({"key": key} if key else {}))


@pytest.fixture
def stream(valkey: Any, line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stream:
    module = f"shop_{next(_numbers)}_{os.getpid()}"
    (tmp_path / f"{module}.py").write_text(SHOP)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "twicesafe.toml").write_text(
        "[policy]\nmax_attempts = 2\n[policy.backoff]\nfirst = 0\n"
    )
    stream = Stream(valkey)
    stream.module = module  # type: ignore[attr-defined]
    return stream


def consumed(line: Line, stream: Any, handler: str, *more: str) -> Any:
    words = (
        "consume",
        f"{stream.module}:{handler}",
        "--from",
        stream.url,
        "--drain",
        "--idle",
        "0.1",
    )
    return line(*words, *more)


@pytest.mark.parametrize("handler", ["charge", "say"])
def test_consume_runs_each_message_once(line: Line, stream: Stream, handler: str) -> None:
    for id_ in ("a", "b", "a"):
        stream.send(id_)
    ran = consumed(line, stream, handler, "--json")
    assert ran.status == 0
    assert (ran.data["received"], ran.data["ran"], ran.data["replayed"]) == (3, 2, 1)
    assert sorted(Path("charged.txt").read_text().split()) == ["a", "b"]
    assert "0 messages received" in consumed(line, stream, handler).out


def test_dead_letters_are_listed_shown_replayed_and_discarded(line: Line, stream: Stream) -> None:
    stream.send("bad", key="ann")
    assert consumed(line, stream, "charge", "--json").data["dead"] == 1
    look = ("--from", stream.dead)
    listed = line("dead-letters", "list", *look, "--json", store=False).data["letters"]
    assert [(one["id"], one["key"], one["error"]) for one in listed] == [
        ("bad", "ann", "ValueError")
    ]
    text = line("dead-letters", "list", *look, store=False)
    assert "no such customer" in " ".join(text.out.split())
    assert "1 dead letter" in text.out
    none = line("dead-letters", "list", *look, "--reason", "other", store=False).out
    assert "no dead letter matches" in none
    assert "stopped after" not in none
    few = line("dead-letters", "list", *look, "--limit", "1", store=False).out
    assert "stopped after the oldest 1 letter: --limit 10 reads more" in " ".join(few.split())
    shown = line("dead-letters", "show", "bad", *look, "--json", store=False).data["letters"][0]
    assert shown["headers"]["twicesafe-dead-consumer"] == "billing"
    assert '{"cents": 5}' in line("dead-letters", "show", "bad", *look, store=False).out
    assert line("dead-letters", "show", "other", *look, store=False).status == 1
    why = ("--by", "ana", "--why", "fixed")
    assert line("dead-letters", "replay", *look, *why).status == 2, "name them, or --all"
    assert line("dead-letters", "replay", "--all", "--reason", "x", *look, *why).status == 1
    replay = ("dead-letters", "replay", "bad", "typo", *look, *why)
    counted = line(*replay, "--dry-run", "--json").data
    assert (counted["matched"], counted["missing"]) == (1, ["typo"])
    done = line(*replay, "--json")
    assert (done.status, done.data["replayed"], done.data["missing"]) == (1, 1, ["typo"])
    assert consumed(line, stream, "say", "--json").data["ran"] == 1
    assert line("dead-letters", "list", *look, store=False).out.strip().endswith("no dead letters")


@pytest.mark.parametrize("verb", ["replay", "discard"])
def test_all_dead_letters_are_counted_first_and_changed_only_if_told(
    line: Line, stream: Stream, verb: str
) -> None:
    stream.send("bad")
    consumed(line, stream, "charge")
    all_ = ("dead-letters", verb, "--all", "--from", stream.dead, "--by", "ana", "--why", "a test")
    refused = line(*all_)
    assert refused.status == 2
    assert "--dry-run" in refused.err
    assert line(*all_, "--dry-run", "--json").data["matched"] == 1
    counted = line(*all_, "--dry-run")
    assert "1 dead letter would be" in counted.out
    assert "no such customer" in counted.out
    look = ("list", "--from", stream.dead, "--json")
    assert len(line("dead-letters", *look, store=False).data["letters"]) == 1
    assert line(*all_, "--yes").status == 0
    assert line("dead-letters", *look, store=False).data["letters"] == []


def test_discard_removes_for_good(line: Line, stream: Stream) -> None:
    stream.send("bad")
    consumed(line, stream, "charge")
    why = ("--by", "ana", "--why", "a test")
    ran = line("dead-letters", "discard", "--all", "--from", stream.dead, *why, "--yes", "--json")
    assert ran.data == {"discarded": 1, "unaudited": [], "missing": []}
    (entry,) = line("audit", "--json").data["actions"]
    assert (entry["action"], entry["by"], entry["why"]) == ("discard", "ana", "a test")
    stream.send("bad")  # its key stays parked: a repeat does not run
    Path("charged.txt").unlink()
    assert consumed(line, stream, "charge", "--json").data["dead"] == 1
    assert not Path("charged.txt").exists()


def test_mistakes_are_usage_errors(line: Line, stream: Stream) -> None:
    assert line("consume", "nowhere:f", "--from", stream.url).status == 2
    assert line("consume", "os:nothing", "--from", stream.url).status == 2
    assert consumed(line, stream, "say", "--order", "sideways").status == 2
    wrong = line("consume", f"{stream.module}:say", "--from", "nowhere://x")  # type: ignore[attr-defined]
    assert wrong.status == 2
    assert "scheme" in wrong.err or "source" in wrong.err


def test_a_signal_ends_it_in_good_order(stream: Stream, line: Line) -> None:
    stream.send("a")
    words = [sys.executable, "-m", "twicesafe", "consume", f"{stream.module}:say"]  # type: ignore[attr-defined]
    command = [*words, "--from", stream.url, "--store", line.url, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            until(lambda: Path("charged.txt").exists())
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0
    assert b'"ran": 1' in out


def test_a_transactional_id_needs_no_store(line: Line, stream: Stream) -> None:
    """The broker is away: what matters is that no store is opened, and which handler is asked for."""
    kafka = "kafka://127.0.0.1:1?topics=a&group=b&transactional_id=c"
    words = ("consume", f"{stream.module}:publish", "--from", kafka, "--drain")  # type: ignore[attr-defined]
    ran = line(*words, "--store", "redis://127.0.0.1:1/0", store=False)
    assert "Kafka transactions" in ran.out + ran.err
    assert "Kafka cannot be reached" in ran.err
    wrong = line("consume", f"{stream.module}:say", "--from", kafka, "--drain")  # type: ignore[attr-defined]
    assert "handle(transaction, message)" in wrong.err
