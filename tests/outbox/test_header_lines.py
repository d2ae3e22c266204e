"""Text as a header value, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twicesafe.outbox.publishers._header_lines import line_of, text_of


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_what_had_to_be_changed_comes_back(text: str):
    line = line_of(text)
    assert line.isascii()
    assert line == text or text_of(line) == text


@pytest.mark.parametrize("line", ["100%", "100%25", "a%20b", "%zz", "%41", "plain", ""])
def test_what_is_sent_as_it_is_stays_as_it_is(line: str):
    assert line_of(line) == line
    assert text_of(line) == line
