"""SIGTERM: a program that turns it into an exit gives its claim back at once; one that does not dies
like any other, and its lease ends by itself."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from twicesafe import Policy, Receiver
from twicesafe._values.records import State

WORKER = """
import signal, sys, time
from twicesafe import Policy, Receiver

url, polite = sys.argv[1], sys.argv[2] == "polite"
if polite:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

def work():
    print("at it", flush=True)
    time.sleep(60)

with Receiver.open(url, policy=Policy(lease=float(sys.argv[3]))) as receiver:
    receiver.process("tx-1", work)
"""


def terminated(url: str, manner: str, lease: float) -> tuple[int, float]:
    """The status of a worker that was terminated in mid-work, and the seconds it took."""
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, url, manner, str(lease)], stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    with worker:
        assert worker.stdout.readline() == "at it\n"
        began = time.monotonic()
        worker.send_signal(signal.SIGTERM)
        status = worker.wait(240)
        return status, time.monotonic() - began


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/keys.db"


def test_a_program_that_exits_on_sigterm_gives_its_claim_back(url: str):
    status, took = terminated(url, "polite", lease=600)
    assert status == 0
    assert took < 120  # and not its lease
    with Receiver.open(url, policy=Policy(in_flight="reject")) as receiver:
        assert receiver.record("tx-1").state is State.RELEASED
        assert receiver.process("tx-1", lambda: "done").attempt == 2


def test_one_that_says_nothing_leaves_its_lease(url: str):
    status, _ = terminated(url, "mute", lease=0.5)
    assert status == -signal.SIGTERM
    with Receiver.open(url, policy=Policy(lease=0.5, wait=60)) as receiver:
        assert receiver.record("tx-1").state is State.IN_PROGRESS
        outcome = receiver.process("tx-1", lambda: "done")
        assert (outcome.value, outcome.attempt) == ("done", 2)
