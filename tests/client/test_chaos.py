"""Many calls at once through a network that fails at random: one effect each, and its own answer.

`TWICESAFE_CALLS` scales it up; a failure names its seed (`TWICESAFE_SEED`).
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.client.flaky import Flaky
from tests.client.libraries import LIBRARIES, QUICK, Library
from tests.http.stage import Answer, Seen, Stage
from twicesafe.client import Budget

CALLS = int(os.environ.get("TWICESAFE_CALLS", "40"))
SEED = int(os.environ.get("TWICESAFE_SEED", "7"))
DEEDS = ["pass", "pass", "pass", "refuse", "lose", "drop", "cut"]


@pytest.mark.parametrize("name", LIBRARIES)
def test_each_call_has_one_effect_and_its_own_answer(
    stage: Stage, flaky: Callable[..., Flaky], name: str
):
    def echo(seen: Seen) -> Answer:
        length = str(len(seen.body)).encode()
        return Answer(headers=[(b"content-length", length)], body=[seen.body])

    stage.handler = echo
    chance = random.Random(SEED)
    server = flaky(*chance.choices(DEEDS, k=4 * CALLS), "pass", behind=stage.server.port)
    policy, budget = QUICK.replace(attempts=50), Budget(ratio=1, reserve=1000)

    def call(number: int) -> tuple[int, int, bool]:
        body = b'{"order":%d}' % number
        got = Library(name, budget).send(server.url, body, policy=policy)
        assert got.sent is not None
        assert (got.status, got.body, got.sent.end) == (201, body, "answered"), f"seed {SEED}"
        return number, got.sent.attempts, got.sent.replayed

    with ThreadPoolExecutor(8) as pool:
        ended = list(pool.map(call, range(CALLS)))
    effects = Counter(seen.body for seen in stage.seen)
    assert len(effects) == CALLS
    assert set(effects.values()) == {1}, f"seed {SEED}"
    attempts = sum(tries for _, tries, _ in ended)
    replays = sum(replayed for *_, replayed in ended)
    assert attempts > CALLS
    assert 0 < replays < CALLS
    print(
        f"{name} on {stage.edge}: {CALLS} calls, {attempts} attempts, {replays} replays, 0 doubled"
    )
