"""Equal keys of one batch meet in this process's table of flights too: none may stay in it."""

from __future__ import annotations

import time

import pytest

from tests.receiver.bench import AT_ONCE, Bench
from twicesafe import Policy


def fail(message: str) -> None:
    raise RuntimeError(message)


def test_equal_keys_that_fail_do_not_wait_for_their_own_batch(bench: Bench) -> None:
    bench.receiver = bench.new_receiver(policy=Policy(backoff=AT_ONCE, wait=120, max_attempts=9))
    began = time.monotonic()
    outcomes = bench.process_many(["a", "a", "a"], fail, key=str, concurrency=1)
    assert [type(one.error) for one in outcomes] == [RuntimeError] * 3
    assert time.monotonic() - began < 60  # less than its time limit: it never waited


@pytest.mark.parametrize("again", ["a", "b"])
def test_a_key_can_be_run_after_a_batch_in_which_it_failed(bench: Bench, again: str) -> None:
    bench.receiver = bench.new_receiver(policy=Policy(backoff=AT_ONCE, wait=0, max_attempts=9))
    bench.process_many(["a", "b", "a", "b"], fail, key=str, concurrency=1)
    assert bench.process(again, lambda: "done").value == "done"
