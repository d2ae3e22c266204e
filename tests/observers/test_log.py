"""LogObserver: a line per decision; duplicates never page anyone; no keys, no payloads."""

from __future__ import annotations

import json
import logging

import pytest

from twicesafe import FingerprintMismatchError, Key, Receiver
from twicesafe import events as ev
from twicesafe.observers import LogObserver

SECRET = "4111-1111"


def test_one_line_per_decision(caplog: pytest.LogCaptureFixture):
    with (
        caplog.at_level(logging.INFO, "twicesafe"),
        Receiver.open("memory://", observers=[LogObserver()], fingerprint=True) as receiver,
    ):
        receiver.process(SECRET, str, SECRET)
        receiver.process(SECRET, str, SECRET)
        with pytest.raises(FingerprintMismatchError):
            receiver.process(SECRET, str, "other")
    words = [(record.levelname, record.message.split()[0]) for record in caplog.records]
    assert words == [("INFO", "completed"), ("INFO", "replayed"), ("WARNING", "refused")]
    assert SECRET not in caplog.text
    short = receiver.key(SECRET).short
    assert all(f"key={short}" in record.message for record in caplog.records)
    assert caplog.records[1].twicesafe["cached"] is False


def test_a_warning_is_logged_once(caplog: pytest.LogCaptureFixture):
    ev.notifier([LogObserver()])(ev.Held(Key("k"), "its worker stopped without an answer"))
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert 'reason="its worker stopped' in caplog.text


def test_json_lines(caplog: pytest.LogCaptureFixture):
    LogObserver("shop.keys", json=True)(ev.StoreFailed(Key("k"), "claim", "OSError"))
    (record,) = caplog.records
    assert record.name == "shop.keys"
    assert json.loads(record.message) == {
        "event": "store_failed",
        "key": Key("k").short,
        "operation": "claim",
        "error": "OSError",
    }


def test_what_is_below_the_level_is_not_even_formatted(caplog: pytest.LogCaptureFixture):
    class Never(str):
        __slots__ = ()

        def isprintable(self) -> bool:
            raise AssertionError("formatted")

    with caplog.at_level(logging.ERROR, "twicesafe"):
        LogObserver()(ev.Failed(Key("k"), Never("x"), 1, False))
    assert caplog.text == ""


@pytest.mark.parametrize("text", ["two words", 'a "quote"', "line\nbreak", "a=b", "\x1b[31m"])
def test_a_line_stays_one_line_that_can_be_split(text: str, caplog: pytest.LogCaptureFixture):
    LogObserver()(ev.StoreFailed(None, "sweep", text))
    (record,) = caplog.records
    assert "\n" not in record.message
    assert "\x1b" not in record.message
    assert json.loads(record.message.partition("error=")[2]) == text


@pytest.mark.attack("D19")
@pytest.mark.parametrize(
    "character", ["\x1b[31m", "\x9b31m", "\u202e", "\r\n", "\u2028", "\x7f", "\udcff"]
)
@pytest.mark.parametrize("observers", [[], [LogObserver()], [LogObserver(json=True)]])
def test_what_a_terminal_interprets_is_escaped(
    character: str, observers: list[LogObserver], caplog: pytest.LogCaptureFixture
):
    ev.notifier(observers)(ev.Held(Key("k"), f"said {character} and left"))
    (record,) = caplog.records
    assert record.message.isprintable()
    assert "and left" in record.message
