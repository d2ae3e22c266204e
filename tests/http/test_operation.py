"""O: retention, several processes, metrics."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from tests.http.stage import Answer, Play, Stage
from twicesafe import AsyncReceiver, Receiver, asgi, wsgi
from twicesafe.errors import ConfigurationError
from twicesafe.testing._clock import FakeClock


@pytest.mark.item("O1")
def test_after_its_retention_a_key_is_new(play: Play):
    clock = FakeClock()
    stage = play(now=clock, retention=3600)
    assert stage.send("k").status == 201
    clock.advance(3599)
    assert stage.send("k").replayed
    clock.advance(2)
    assert not stage.send("k").replayed
    assert stage.send("k").replayed
    assert len(stage.seen) == 2


@pytest.mark.item("O1")
def test_retention_is_a_day_by_default(play: Play):
    clock = FakeClock()
    stage = play(now=clock)
    stage.send("k")
    clock.advance(86_399)
    assert stage.send("k").replayed
    clock.advance(2)
    assert not stage.send("k").replayed


@pytest.mark.item("O2")
def test_a_store_of_one_process_says_so(edge: str, tmp_path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING, "twicesafe")
    kind, layer = (AsyncReceiver, asgi) if edge == "asgi" else (Receiver, wsgi)
    layer.IdempotencyMiddleware(None, receiver=kind.open(f"sqlite:///{tmp_path}/k.db"))
    assert caplog.text == ""
    layer.IdempotencyMiddleware(None, receiver=kind.open("memory://"))
    assert "not shared between processes" in caplog.text


@pytest.mark.item("O3")
def test_every_outcome_is_reported_to_observers(play: Play):
    seen: Counter[str] = Counter()

    def count(event: object) -> None:
        seen[getattr(event, "reason", "") or type(event).__name__] += 1

    stage = play(observers=[count])
    stage.send("first")
    stage.send("first")
    stage.send("first", b"other")
    stage.handler = lambda _: 1 / 0  # type: ignore[return-value]
    stage.send("unknown")
    stage.send("unknown")
    stage.handler = lambda _: Answer(200, [], [b"x" * 2_000_000])
    stage.send("large")
    stage.send("large")
    assert seen["Started"] == 3
    assert seen["Replayed"] == 2
    assert seen["FingerprintMismatchError"] == 1
    assert seen["HeldError"] == 1
    assert seen["TooLargeError"] == 1


@pytest.mark.item("O5")
def test_early_data_is_left_to_the_handler(stage: Stage):
    early = ("Early-Data", "1")
    stage.handler = lambda seen: Answer(425 if "early-data" in seen.headers else 201)
    assert stage.send("k", b"{}", "POST", "/", early).status == 425
    assert stage.send("k", b"{}", "POST", "/").status == 201  # released: the retry ran


def test_the_wrong_kind_of_receiver_is_refused_when_it_is_put_together(edge: str):
    wrong, layer = (Receiver, asgi) if edge == "asgi" else (AsyncReceiver, wsgi)
    with pytest.raises(ConfigurationError, match=r"needs an? (Async)?Receiver"):
        layer.IdempotencyMiddleware(None, receiver=wrong.open("memory://"))
    right = (AsyncReceiver if edge == "asgi" else Receiver).open("memory://")
    with pytest.raises(ConfigurationError, match="policy"):
        layer.IdempotencyMiddleware(None, receiver=right, policy="stripe")
