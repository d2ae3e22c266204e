"""One call with its retries: the flow, driven by hand, in its own time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.house.test_import import ALLOWED_THIRD_PARTY, watch
from twicesafe import Backoff, ConfigurationError, InvalidKeyError
from twicesafe._core.driving import drive
from twicesafe.client import Budget, RetryPolicy, Sent, sent_of
from twicesafe.client._final_answers import ResponseSummary, Unanswered
from twicesafe.client._sending import CallEnded, KeyedRequest, SendAttempt, call_of, send
from twicesafe.client._sent import mark
from twicesafe.http import HttpPolicy

FRESH = KeyedRequest("k", "k", fresh=True)
GIVEN = KeyedRequest("k", None, fresh=False)
LOST = Unanswered(ConnectionResetError(), sent=True)
REFUSED = Unanswered(ConnectionRefusedError(), sent=False)
PLAIN = RetryPolicy(backoff=Backoff(first=1, factor=2, most=8, jitter=1))


def status(code: int, **headers: str) -> ResponseSummary:
    return ResponseSummary(code, {name.replace("_", "-"): value for name, value in headers.items()})


@dataclass
class Network:
    """Answers in turn, the last one for ever; each attempt takes a second."""

    replies: list[ResponseSummary | Unanswered]
    chance: float = 0.0
    rewind: Callable[[], bool] = lambda: True
    time: float = 0.0
    waits: list[float] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)

    def run(
        self, policy: RetryPolicy = PLAIN, call: KeyedRequest = FRESH, budget: Budget | None = None
    ) -> CallEnded:
        flow = send(
            call, policy, budget or Budget(), self.rewind,
            now=lambda: self.time, wall=lambda: 0.0, chance=lambda: self.chance,
        )  # fmt: skip
        return drive(flow, self._perform)

    def _perform(self, command: Any) -> Any:
        if isinstance(command, SendAttempt):
            self.time += 1
            self.timeouts.append(command.seconds)
            return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        self.time += command.seconds
        self.waits.append(command.seconds)
        return None


def test_an_answer_is_an_answer():
    network = Network([status(201)])
    assert network.run() == CallEnded(status(201), Sent("k", 1, False, "answered"))
    assert network.waits == []


def test_what_may_help_is_tried_again_with_growing_waits():
    network = Network([LOST, status(503), REFUSED, status(429), status(201)])
    assert network.run().sent == Sent("k", 5, False, "answered")
    assert network.waits == [1, 2, 4, 8]


def test_jitter_is_full():
    network = Network([LOST, status(201)], chance=0.75)
    network.run()
    assert network.waits == [0.25]


def test_retry_after_comes_on_top_of_the_jitter():
    network = Network([status(503, retry_after="5"), status(201)], chance=0.5)
    network.run()
    assert network.waits == [5.5]


def test_the_last_attempt_gives_what_it_got():
    network = Network([status(503)])
    assert network.run(PLAIN.replace(attempts=3)) == CallEnded(
        status(503), Sent("k", 3, False, "attempts")
    )
    network = Network([LOST])
    assert network.run(PLAIN.replace(attempts=1)) == CallEnded(
        LOST, Sent("k", 1, False, "attempts")
    )


def test_no_wait_goes_past_the_deadline():
    network = Network([status(503, retry_after="8"), status(201)])
    assert network.run(PLAIN.replace(deadline=10)).sent.end == "deadline"
    assert network.time == 1
    network = Network([status(503, retry_after="8"), status(201)])
    assert network.run(PLAIN.replace(deadline=10.5)).sent.end == "answered"


def test_an_attempt_knows_how_much_time_is_left():
    network = Network([LOST, LOST, status(201)])
    network.run(PLAIN.replace(deadline=10))
    assert network.timeouts == [10, 8, 5]  # a second each, and waits of one and two


def test_a_first_409_to_a_new_key_is_the_applications_own():
    assert Network([status(409)]).run().sent.attempts == 1
    assert Network([status(409), status(201)]).run(call=GIVEN).sent.attempts == 2


def test_a_409_on_a_retry_means_that_the_first_is_running():
    network = Network([LOST, status(409), status(201, idempotent_replayed="true")])
    assert network.run().sent == Sent("k", 3, True, "answered")


def test_a_replay_is_reported_and_is_final():
    network = Network([status(503, idempotent_replayed="true"), status(201)])
    assert network.run().sent == Sent("k", 1, True, "answered")


@pytest.mark.parametrize("reply", [LOST, status(503)])
def test_a_body_that_is_gone_ends_it(reply: Any):
    network = Network([reply, status(201)], rewind=lambda: False)
    assert network.run().sent == Sent("k", 1, False, "body")


def test_a_body_that_was_not_touched_is_still_there():
    network = Network([REFUSED, status(201)], rewind=lambda: False)
    assert network.run().sent == Sent("k", 2, False, "answered")


def test_an_error_of_this_side_is_final():
    network = Network([Unanswered(ValueError(), sent=False, final=True), status(201)])
    assert network.run().sent == Sent("k", 1, False, "error")


def test_other_exceptions_pass_through():
    def perform(_: Any) -> Any:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        drive(send(FRESH, PLAIN, Budget(), lambda: True), perform)


# --- the budget --------------------------------------------------------------------------------


def test_when_everything_fails_retries_are_a_share_of_the_calls():
    budget, sent = Budget(ratio=0.1, reserve=5), 0
    for _ in range(1000):
        sent += Network([status(503)]).run(budget=budget).sent.attempts
    assert 1000 + 95 <= sent <= 1000 + 106


def test_a_spent_budget_is_reported_and_fills_again():
    budget = Budget(ratio=0.5, reserve=1)
    assert Network([status(503)]).run(budget=budget).sent.attempts == 2
    assert Network([LOST]).run(budget=budget).sent == Sent("k", 1, False, "budget")
    assert Network([LOST, status(201)]).run(budget=budget).sent.end == "answered"


@pytest.mark.parametrize(
    "wrong", [{"ratio": 2}, {"ratio": -1}, {"reserve": True}, {"reserve": "5"}]
)
def test_an_unusable_budget_is_refused(wrong: Any):
    with pytest.raises(ConfigurationError, match="budget"):
        Budget(**wrong)


# --- keys --------------------------------------------------------------------------------------


def headers(value: str, name: str = "idempotency-key") -> list[tuple[str, str]]:
    return [("accept", "*/*"), (name, value)]


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "TRACE"])
def test_safe_methods_are_left_alone(method: str):
    assert call_of(PLAIN, method, "/", []) is None
    assert call_of(PLAIN, method, "/", headers("given")) is None


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_other_methods_are_calls_if_they_have_a_key_or_the_policy_says_so(method: str):
    assert call_of(PLAIN, method, "/", []) is None
    assert call_of(PLAIN, method, "/", headers("given")) == KeyedRequest("given", None, fresh=False)
    policy = PLAIN.replace(http=HttpPolicy(methods={method}))
    assert call_of(policy, method, "/", []) is not None


def test_each_call_has_a_key_of_its_own():
    calls = [call_of(PLAIN, "POST", "/", []) for _ in range(100)]
    assert len({call.key for call in calls if call}) == 100
    assert all(call and call.fresh and call.field == call.key for call in calls)


def test_a_given_key_is_kept_in_any_form():
    for text in ("given", '"given"', '"given";v=1'):
        assert call_of(PLAIN, "POST", "/", headers(text)) == KeyedRequest(
            "given", None, fresh=False
        )
    aliased = PLAIN.replace(http=HttpPolicy(aliases=("X-Key",)))
    assert call_of(aliased, "POST", "/", headers("a", "X-Key")) == KeyedRequest(
        "a", None, fresh=False
    )


@pytest.mark.parametrize("text", ["", '"open', "a,b", "ü", "x" * 256])
def test_a_given_key_that_no_server_would_take_is_refused_before_it_is_sent(text: str):
    with pytest.raises(InvalidKeyError, match="nothing was sent"):
        call_of(PLAIN, "POST", "/", headers(text))


def test_the_profile_says_header_and_form():
    strict = PLAIN.replace(http=HttpPolicy(strict=True), new_key=lambda: "a")
    assert call_of(strict, "POST", "/", []) == KeyedRequest("a", '"a"', fresh=True)
    odd = PLAIN.replace(new_key=lambda: 'a b "c\\')
    assert call_of(odd, "POST", "/", []) == KeyedRequest('a b "c\\', '"a b \\"c\\\\"', fresh=True)
    assert call_of(PLAIN.replace(http=HttpPolicy.stripe()), "PATCH", "/", []) is None


# --- settings and marks --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": True},
        {"deadline": 0},
        {"deadline": "soon"},
        {"backoff": 1},
        {"retry_on": "503"},
        {"retry_on": {200}},
        {"buffer": -1},
        {"new_key": "k"},
        {"propagate": 1},
        {"http": None},
    ],
)
def test_an_unusable_policy_is_refused(wrong: dict[str, Any]):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        RetryPolicy(**wrong)


def test_an_unknown_setting_is_named():
    with pytest.raises(ConfigurationError, match="did you mean 'attempts'"):
        RetryPolicy().replace(attempt=1)


def test_an_error_says_what_may_have_happened():
    error = ConnectionResetError()
    mark(error, Sent("secret-key", 3, False, "attempts"))
    assert sent_of(error) == Sent("secret-key", 3, False, "attempts")
    (note,) = error.__notes__
    assert "3 times" in note
    assert "secret-key" not in note
    assert sent_of(ValueError()) is None


def test_nothing_shows_a_key_in_full():
    assert "secret" not in repr(Sent("secret-key", 3, True, "answered"))
    assert "secret" not in repr(KeyedRequest("secret-key", "secret-key", fresh=True))
    with pytest.raises(InvalidKeyError) as caught:
        call_of(PLAIN, "POST", "/", headers("secret,key"))
    assert "secret" not in str(caught.value)


def test_the_rules_load_no_library():
    loaded = watch("import twicesafe.client, twicesafe.propagation")["third"]
    assert set(loaded) <= ALLOWED_THIRD_PARTY
