"""``twicesafe follow``: copies until it is stopped; errors say what to do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.line import Line
from tests.polling import until
from tests.regions.test_unreadable_records import damage
from twicesafe import Key, Receiver
from twicesafe._core.protocol import Adopt
from twicesafe._core.regions.epochs import key_of
from twicesafe._core.regions.pausing import announce, pause
from twicesafe.errors import StoreError
from twicesafe.regions._performing import perform
from twicesafe.stores.memory import MemoryStore


@pytest.fixture
def source(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/eu.db"
    with Receiver.open(url) as receiver:
        for number in range(3):
            receiver.process(f"k{number}", lambda: "v")
    return url


def test_once_copies_and_says_what_it_did(line: Line, source: str):
    ran = line("follow", "--from", source, "--to", line.url, "--once", store=False)
    assert ran.status == 0
    assert "3 records examined, 3 copied, 0 newer in the target, 0 skipped" in ran.out
    with Receiver.open(line.url) as receiver:
        assert receiver.process("k1", lambda: "again").replayed


def test_json_is_one_line_for_each_pass(line: Line, source: str):
    words = ("follow", "--from", source, "--to", line.url, "--name", "eu", "--once", "--json")
    line(*words, store=False)
    ran = line(*words, store=False)
    [said] = ran.out.splitlines()
    found = json.loads(said)
    assert (found["examined"], found["copied"], found["failed"]) == (3, 3, [])
    assert found["until"] > 0


def test_a_source_that_is_missing_is_not_created(line: Line, tmp_path: Path):
    url = f"sqlite:///{tmp_path}/nothing.db"
    ran = line("follow", "--from", url, "--to", line.url, "--once", store=False)
    assert ran.status == 3
    assert "there is no store at" in ran.err
    assert not (tmp_path / "nothing.db").exists()


def test_a_source_in_doubt_is_not_copied_and_the_status_says_so(line: Line, source: str):
    with Receiver.open(source) as receiver:
        stores = {"here": receiver.store}
        perform(pause("here", key_of("default", "eu"), 2, 1), stores)
    ran = line("follow", "--from", source, "--to", line.url, "--once", store=False)
    assert ran.status == 1
    assert "is in doubt about the keys of eu" in ran.err
    with Receiver.open(line.url) as receiver:
        assert receiver.record("k1") is None


def test_unfinished_work_that_is_left_out_during_a_move_is_reported(line: Line, source: str):
    with Receiver.open(line.url) as receiver:
        perform(announce("here", key_of("default", "eu"), 2, 1), {"here": receiver.store})
    with Receiver.open(source) as receiver, receiver.claim("slow"):
        ran = line("follow", "--from", source, "--to", line.url, "--once", store=False)
    assert ran.status == 1
    assert "3 copied" in ran.out
    assert "did not copy 1 unfinished record" in ran.err


def test_a_target_that_takes_no_copies_is_refused(line: Line, source: str, etcd_url: str):
    ran = line("follow", "--from", source, "--to", etcd_url, "--once", store=False)
    assert ran.status == 2
    assert "takes no copies of records" in ran.err


def refuse(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Stores in memory take no copy of this key."""
    adopt = MemoryStore.adopt

    def refusing(self: MemoryStore, ask: Adopt) -> object:
        if ask.row.value == value:
            raise StoreError("too large")
        return adopt(self, ask)

    monkeypatch.setattr(MemoryStore, "adopt", refusing)


def test_a_record_that_is_refused_ends_with_status_1(
    line: Line, source: str, monkeypatch: pytest.MonkeyPatch
):
    refuse(monkeypatch, "k1")
    for _ in range(2):  # its progress does not hide it
        ran = line("follow", "--from", source, "--to", "memory://full", "--once", store=False)
        assert ran.status == 1
        assert "refused 1 record" in ran.err


def test_an_unreadable_record_is_reported_and_the_others_are_copied(line: Line, source: str):
    damage(source, "k1")
    for _ in range(2):
        ran = line("follow", "--from", source, "--to", line.url, "--once", store=False)
        assert ran.status == 1
        assert "2 copied" in ran.out
        assert f"1 record ({Key('k1').id.hex()[:8]}" in ran.err
        assert "unreadable" in ran.err
    with Receiver.open(line.url) as receiver:
        assert receiver.process("k2", lambda: "again").replayed


def test_unreadable_and_refused_records_are_both_named(
    line: Line, source: str, monkeypatch: pytest.MonkeyPatch
):
    damage(source, "k1")
    refuse(monkeypatch, "k2")
    ran = line("follow", "--from", source, "--to", "memory://both", "--once", store=False)
    assert ran.status == 1
    assert f"did not copy 1 record ({Key('k1').id.hex()[:8]})" in ran.err
    assert f"refused 1 record ({Key('k2').id.hex()[:8]})" in ran.err


def test_it_runs_until_sigterm(source: str, tmp_path: Path):
    words = [
        "follow",
        "--from",
        source,
        "--to",
        f"sqlite:///{tmp_path}/us.db",
        "--every",
        "0.01",
        "--json",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "twicesafe", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    passes = [json.loads(process.stdout.readline()) for _ in range(2)]
    with Receiver.open(source) as receiver:
        receiver.process("late", lambda: "v")
    until(lambda: json.loads(process.stdout.readline())["copied"] == 4)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert passes[0]["copied"] == 3
