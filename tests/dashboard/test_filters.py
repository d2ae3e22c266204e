"""Filters live in the URL: what they read they write again, and what they cannot read matches nothing."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twicesafe import Cause, State
from twicesafe.dashboard._filters import Filters

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
filters = st.builds(
    Filters,
    states=st.lists(st.sampled_from(State), unique=True).map(tuple),
    scope=st.lists(texts, max_size=3).map(tuple),
    value=st.just("") | texts,
    error=st.sampled_from(["", "TimeoutError", "a&b=c"]),
    since=st.sampled_from(["", "15m", "7d"]),
    older_than=st.sampled_from(["", "1h30m"]),
    stuck=st.booleans(),
    cause=st.none() | st.sampled_from(Cause),
    id=st.sampled_from(["", "3f0c1a9e"]),
)


@given(filters)
def test_a_url_says_all_of_them(made: Filters):
    query = parse_qsl(made.url().removeprefix("?"), keep_blank_values=True)
    assert Filters.read(query) == made
    assert Filters.read(made.fields()) == made


@given(filters, st.sampled_from(State))
def test_a_state_is_toggled_and_nothing_else_changes(made: Filters, state: State):
    once = Filters.read(parse_qsl(made.toggled(state).removeprefix("?")))
    assert (state in once.states) is not (state in made.states)
    assert set(once.states) ^ set(made.states) == {state}
    assert once.url(states=()) == made.url(states=())


@pytest.mark.parametrize(
    "query, problem",
    [
        ([("state", "heldd")], "there is no state heldd"),
        ([("state", "\x1b[31m")], r"there is no state \x1b[31m"),
        ([("since", "7x")], "7x is not a duration"),
        ([("older_than", "yesterday")], "yesterday is not a duration"),
        ([("value", "v" * 2000)], "value is longer"),
        ([("cause", "gremlins")], "there is no cause gremlins"),
        ([("id", "xyz")], "hex digits only"),
        ([("stuck", "true")], "stuck is yes or nothing"),
        ([("value", "tx-1"), ("value", "tx-2")], "value is given twice"),
    ],
)
def test_what_cannot_be_read_is_said(query: list[tuple[str, str]], problem: str):
    assert problem in Filters.read(query).problem


def test_other_fields_are_not_filters():
    assert Filters.read([("token", "x"), ("after", "12"), ("by", "ana")]).is_empty


def test_filters_as_words_name_no_key():
    made = Filters(states=(State.HELD,), value="secret", scope=("tenant",), error="E", since="1h")
    assert made.words() == "held, error E, changed within 1h, in one scope, one value"
    assert Filters().words() == "every key"
