"""Text that cannot bite, and ages that people read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import typer

from twicesafe._cli.exits import report_error
from twicesafe._cli.output import STATES, Screen, ago, as_json, shortened, visible
from twicesafe._values.records import State

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    "raw, shown",
    [
        ("tx-1 é 名 🙂", "tx-1 é 名 🙂"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x1b]8;;http://x\x1b\\", "\\x1b]8;;http://x\\x1b\\\\"),
        ("a\x00\x07\x08\x7f\x9b", "a\\x00\\x07\\x08\\x7f\\x9b"),
        ("a\r\nb\tc", "a\\r\\nb\\tc"),
        ("\u202eabc\u2066\u200f", "\\u202eabc\\u2066\\u200f"),
        ("\u2028\ufeff\u200d", "\\u2028\\ufeff\\u200d"),
        ("\U000e0041", "\\U000e0041"),
        ("a\\x1b", "a\\\\x1b"),  # an escape that was typed is not one that was made
    ],
)
def test_visible(raw: str, shown: str):
    assert visible(raw) == shown


def test_different_texts_never_look_the_same():
    texts = [chr(n) for n in range(0x3000)] + ["\\x1b", "\\n", "\\\\"]
    assert len({visible(text) for text in texts}) == len(texts)


def test_shortened_keeps_both_ends_and_the_limit():
    assert shortened("abc", 3) == "abc"
    cut = shortened("a" * 50 + "z", 20)
    assert len(cut) == 20
    assert (cut[0], cut[-1]) == ("a", "z")
    assert len(shortened("\x1b" * 10, 12)) == 12


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "now"),
        (0.9, "now"),
        (1, "1 s ago"),
        (59.9, "59 s ago"),
        (60, "1 min ago"),
        (3 * 3600 + 5, "3 h ago"),
        (86400, "1 day ago"),
        (86400 * 12, "12 days ago"),
        (-27, "in 27 s"),
        (-7200, "in 2 h"),
    ],
)
def test_ago(seconds: float, text: str):
    assert ago(NOW - timedelta(seconds=seconds), NOW) == text


def test_json_is_ascii_without_controls():
    text = as_json({"key": "\x1b\x7f\x9b\u202e名"}, indent=None)
    assert all(" " <= character <= "~" for character in text)


def test_every_state_has_its_words():
    assert set(STATES) == set(State)


def test_an_error_of_a_newer_typer_has_no_words_of_pydantic(capsys: pytest.CaptureFixture[str]):
    error = typer.BadParameter("Value error, 'praked' is not one of 'held'.", param_hint="--state")
    assert report_error(Screen(False), error) == 2
    assert (
        capsys.readouterr().err == "✗ Invalid value for --state: 'praked' is not one of 'held'.\n"
    )
