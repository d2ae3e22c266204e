"""A real process dies in the middle of a batch, again and again: only its killer is parked.

Every worker is a process of its own, killed by SIGKILL from inside the handler of one message. The
messages behind that one are claimed and never started; they must not be counted for its sake.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.polling import until
from twicesafe import Backoff, Policy, Receiver, Record, State

IDS = "abcdefghij"
POISON = "e"
MOST = 3
WORKER = """
import os, signal, sys
from tests.receiver.test_batch_deaths import POISON, opened

url, starts, concurrency = sys.argv[1:4]
file = os.open(starts, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def handle(id_):
    os.write(file, id_.encode())
    if id_ == POISON:
        os.kill(os.getpid(), signal.SIGKILL)

with opened(url) as receiver:
    receiver.process_many(sys.argv[4], handle, key=str, concurrency=int(concurrency))
"""


def opened(url: str) -> Receiver:
    policy = Policy(lease=1.5, max_attempts=MOST, backoff=Backoff(first=0), in_flight="reject")
    return Receiver.open(url, policy=policy)


def records(receiver: Receiver) -> dict[str, Record]:
    found = {id_: receiver.record(id_) for id_ in IDS}
    return {id_: one for id_, one in found.items() if one is not None}


def is_live(record: Record) -> bool:
    """Whether a dead worker's claim still keeps others out."""
    return record.lease_until is not None and record.lease_until > datetime.now(UTC)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_only_the_killer_is_parked(tmp_path: Path, concurrency: int) -> None:
    url, starts = f"sqlite:///{tmp_path}/keys.db", tmp_path / "starts"
    with opened(url) as receiver:
        deaths = 0
        while deaths <= MOST + 2:
            until(lambda: not any(map(is_live, records(receiver).values())))
            arguments = [url, str(starts), str(concurrency), IDS]
            ended = subprocess.run([sys.executable, "-c", WORKER, *arguments], check=False)
            if ended.returncode == 0:
                break
            deaths += 1
        known = records(receiver)
    counted = Counter(starts.read_text())
    assert known.pop(POISON).state is State.PARKED
    assert MOST <= counted.pop(POISON) == deaths <= MOST + 1
    assert {one.state for one in known.values()} == {State.COMPLETED}
    most = 2 if concurrency == 1 else 3
    assert max(one.attempt for one in known.values()) <= most, known
    behind = [known[id_].attempt for id_ in "fghij"]
    assert concurrency > 1 or behind == [1] * 5, "they were claimed, and never started"
