"""Ctrl-C at any moment, on every engine: real signals into the thread of a worker that lives on.

An interrupt is not a crash: the worker records what it did, and gives back what it did not begin.
Between two lines of Python nobody can promise that, so a few claims are left to end by their
leases. Nothing is lost for it: neither a record, nor a connection, nor a lock.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from twicesafe import Policy, Receiver, State

ROUNDS = 200


@pytest.fixture(autouse=True)
def _alarms_interrupt() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_ctrl_c_at_any_moment(store_url: str, seed: int) -> None:
    rng = random.Random(seed)
    effects: Counter[str] = Counter()
    done: set[str] = set()
    met = 0

    def handle(key: str) -> str:
        effects[key] += 1
        return key

    keys = [f"k-{number}" for number in range(ROUNDS)]
    with Receiver.open(store_url, policy=Policy(lease=2, wait=20)) as receiver:
        receiver.process("warm", handle, "warm")
        for key in keys:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.00001, 0.004))
            try:
                receiver.process(key, handle, key)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                met += 1
            record = receiver.record(key)
            assert effects[key] <= 1
            if record is not None and record.state is State.COMPLETED:
                done.add(key)
        for key in keys:  # delivered again: what was done is not done again, the rest is
            assert receiver.process(key, handle, key).value == key
    assert met
    assert {key for key in done if effects[key] != 1} == set()
    assert {key for key in keys if not effects[key]} == set()
