"""Which answers are final: the table of `judging`, row by row, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twicesafe._core.http.problems import CASES
from twicesafe.client import RetryPolicy
from twicesafe.client._final_answers import ResponseSummary, is_final, read_ahead, retry_after
from twicesafe.http import HttpPolicy

POLICY = RetryPolicy()


def answer(status: int, *, problem: Any = None, **headers: str) -> ResponseSummary:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    if problem is None:
        return ResponseSummary(status, fields)
    fields["content-type"] = "application/problem+json; charset=utf-8"
    return ResponseSummary(
        status, fields, problem if isinstance(problem, bytes) else json.dumps(problem).encode()
    )


FINAL = [
    answer(200),
    answer(201),
    answer(303),
    answer(400),
    answer(404),
    answer(422),
    answer(500),
    answer(501),
    answer(503, idempotent_replayed="true"),
    answer(429, idempotent_replayed="true", retry_after="1"),
    answer(503, stripe_should_retry="false"),
    answer(502, problem={"type": "urn:twicesafe:problem:outcome-unknown", "retryable": False}),
    answer(504, problem={"type": "https://api.example/problems/outcome-unknown"}),
    answer(422, problem={"type": "urn:twicesafe:problem:key-reused"}),
    answer(409, problem={"type": "urn:twicesafe:problem:key-reused"}, retry_after="1"),
]

AGAIN = [
    *(answer(status) for status in (408, 425, 429, 502, 503, 504)),
    answer(500, stripe_should_retry="true"),
    answer(409, retry_after="1"),
    answer(409, problem={"type": "urn:twicesafe:problem:in-progress"}),
    answer(409, problem={"type": "https://docs.example/errors#in-progress"}),
    answer(423, problem={"retryable": True}),
    answer(503, problem=b"{not json"),
    answer(503, problem=b"[]"),
    answer(503, problem={"type": "about:blank"}),
    answer(503, problem=b"[" * 100_000),
]  # fmt: skip


@pytest.mark.parametrize("given", FINAL, ids=repr)
@pytest.mark.parametrize("running", [False, True])
def test_final(given: ResponseSummary, *, running: bool):
    assert is_final(given, POLICY, may_be_running=running)


@pytest.mark.parametrize("given", AGAIN, ids=lambda given: repr(given)[:90])
@pytest.mark.parametrize("running", [False, True])
def test_again(given: ResponseSummary, *, running: bool):
    assert not is_final(given, POLICY, may_be_running=running)


def test_a_bare_409_means_wait_only_if_the_first_may_be_running():
    assert is_final(answer(409), POLICY, may_be_running=False)
    assert not is_final(answer(409), POLICY, may_be_running=True)


@pytest.mark.parametrize("name, case", CASES.items())
def test_the_layers_own_answers_are_taken_at_their_word(name: str, case: Any):
    told = answer(case.status, problem={"type": f"urn:twicesafe:problem:{name}"})
    assert is_final(told, POLICY, may_be_running=True) is not case.retryable


def test_the_servers_policy_names_the_marker_and_the_status():
    policy = RetryPolicy(http=HttpPolicy(replay_header="X-Replay", in_flight_status=423))
    assert is_final(answer(503, x_replay="true"), policy, may_be_running=True)
    assert not is_final(answer(423), policy, may_be_running=True)
    assert is_final(answer(409), policy, may_be_running=True)
    unmarked = RetryPolicy(http=HttpPolicy(replay_header=None))
    assert not is_final(answer(503, idempotent_replayed="true"), unmarked, may_be_running=True)


NOON = 784_108_800.0  # Sun, 06 Nov 1994 08:00:00 GMT


@pytest.mark.parametrize(
    "headers, wait",
    [
        ({}, 0),
        ({"retry-after": "7"}, 7),
        ({"retry-after": " 0 "}, 0),
        ({"retry-after": "9" * 400}, 999_999_999),
        ({"retry-after": "-1"}, 0),
        ({"retry-after": "1.5"}, 0),
        ({"retry-after": "soon"}, 0),
        ({"retry-after": "٣"}, 0),
        ({"retry-after": "Sun, 06 Nov 1994 08:00:30 GMT"}, 30),
        ({"retry-after": "Sun, 06 Nov 1994 07:00:00 GMT"}, 0),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT", "date": "Sun, 06 Nov 1994 08:49:30 GMT"}, 7),
        ({"retry-after": "Sun, 06 Nov 1994 08:00:30 GMT", "date": "nonsense"}, 30),
        ({"retry-after": "Sun, 99 Nov 1994 08:00:30 GMT"}, 0),
    ],
)  # fmt: skip
def test_retry_after_in_both_forms(headers: dict[str, str], wait: float):
    assert retry_after(headers, NOON) == wait


@pytest.mark.parametrize(
    "status, headers, room",
    [
        (200, {"content-length": "10"}, 10),
        (200, {"content-length": "11"}, 0),
        (200, {"content-length": "1" * 5000}, 0),
        (200, {"content-length": "x"}, 10),
        (200, {}, 10),
        (200, {"content-type": "text/event-stream; charset=utf-8"}, 0),
        (200, {"content-type": "application/problem+json"}, 10),
        (409, {"content-type": "application/problem+json"}, 65536),
    ],
)
def test_what_is_read_before_it_is_handed_over(status: int, headers: dict[str, str], room: int):
    assert read_ahead(status, headers, RetryPolicy(buffer=10)) == room


@given(
    st.integers(100, 599),
    st.dictionaries(
        st.sampled_from(["retry-after", "date", "content-length", "stripe-should-retry"]),
        st.text(max_size=40) | st.from_regex(r"\A[A-Z][a-z]{2}, [0-9 A-Za-z:+-]{0,40}\Z"),
    ),
    st.binary(max_size=60) | st.from_regex(rb'\A\{"(type|retryable)":.{0,30}\}\Z'),
    st.booleans(),
)
def test_no_answer_is_too_odd_to_be_judged(
    status: int, headers: dict[str, str], body: bytes, problem: bool
):
    fields = headers | ({"content-type": "application/problem+json"} if problem else {})
    assert is_final(ResponseSummary(status, fields, body), POLICY, may_be_running=True) in (
        True,
        False,
    )
    assert retry_after(fields, NOON) >= 0
    assert read_ahead(status, fields, POLICY) >= 0
