"""A batch on SQLite is written by one call of the driver, and has the answers of single requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twicesafe import Key
from twicesafe._core.protocol import Abandon, Ack, ClaimRequest, Complete, Verdict
from twicesafe._engines.sqlite import SqliteStore
from twicesafe._values.owner_token import new_owner


def claim(name: str) -> ClaimRequest:
    return ClaimRequest(Key(name), new_owner(), 60_000, 5, False, None)


def completed(asks: list[ClaimRequest], answers: list[Any]) -> list[Complete]:
    return [
        Complete(ask.key.id, ask.owner, answer.fence, 60_000, b"j1")
        for ask, answer in zip(asks, answers, strict=True)
    ]


def test_a_batch_is_one_call_of_the_driver(tmp_path: Path):
    store = SqliteStore.open(f"sqlite:///{tmp_path}/keys.db")
    store.perform_many([claim("first")])
    seen: list[str] = []
    store._tap = lambda when, command: seen.append(f"{when} {type(command).__name__}")
    asks = [claim(f"k{number}") for number in range(30)]
    answers = store.perform_many(asks)
    assert [answer.verdict for answer in answers] == [Verdict.WON] * 30
    assert seen.count("before ChangeEach") == 1
    assert seen.count("before Change") == 2  # BEGIN and COMMIT
    assert store.perform_many(completed(asks, answers)) == [Ack.OK] * 30
    store.close()


def test_one_request_in_a_batch_that_is_not_usual_changes_no_other_answer(tmp_path: Path):
    store = SqliteStore.open(f"sqlite:///{tmp_path}/keys.db")
    given_back = claim("given back")
    store.perform(given_back)
    store.perform(Abandon(given_back.key.id, given_back.owner, 60_000))
    asks = [claim("a"), claim("b"), claim("given back"), claim("a"), claim("c")]
    answers = store.perform_many(asks)
    won = Verdict.WON
    assert [answer.verdict for answer in answers] == [won, won, won, Verdict.BUSY, won]
    assert [answer.fence for answer in answers] == [1, 1, 2, 0, 1]
    assert [answer.attempt for answer in answers] == [1, 1, 1, 0, 1]
    ends = completed(asks, answers)
    ends[3].fence = 1  # of another owner
    assert store.perform_many(ends) == [Ack.OK, Ack.OK, Ack.OK, Ack.LOST, Ack.OK]
    assert store.perform_many(ends[:3]) == [Ack.OK] * 3  # recorded once, and answered again
    store.close()
