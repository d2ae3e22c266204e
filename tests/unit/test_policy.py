"""Policies: nonsense is refused when it is made, naming the field and the fix."""

from __future__ import annotations

import math
import pickle
from datetime import timedelta
from typing import Any

import pytest

from twicesafe import Backoff, ConfigurationError, Policy
from twicesafe._core.resolved_policy import ResolvedPolicy

NONSENSE: list[tuple[dict[str, Any], str]] = [
    ({"lease": -1}, "at least 0.05"),
    ({"lease": 0}, "at least 0.05"),
    ({"lease": "soon"}, "is not a duration: use seconds"),
    ({"lease": True}, "seconds, a timedelta or text"),
    ({"lease": math.nan}, "seconds, a timedelta or text"),
    ({"lease": math.inf}, "100 years"),
    ({"lease": timedelta(seconds=-1)}, "at least 0.05"),
    ({"lease": 60, "max_lease": 30}, "below lease=60"),
    ({"max_lease": math.inf}, "100 years"),
    ({"retention": 0}, "positive"),
    ({"retention": -5}, "positive"),
    ({"retention": math.inf}, "100 years"),
    ({"retention": timedelta.max}, "100 years"),
    ({"retention": None}, "seconds, a timedelta or text"),
    ({"retention": 60, "retry_horizon": 61}, "raise retention or lower retry_horizon"),
    ({"in_flight": "queue"}, "wait, reject"),
    ({"wait": -1}, "0 or more"),
    ({"wait": math.inf}, "100 years"),
    ({"max_waiters": -1}, "whole number"),
    ({"max_waiters": 1.5}, "whole number"),
    ({"takeover": "maybe"}, "retry, hold"),
    ({"max_attempts": 0}, "1 or more"),
    ({"max_attempts": True}, "whole number"),
    ({"backoff": 5}, "Backoff"),
    ({"remember": ValueError}, "tuple of exception types"),
    ({"remember": (5,)}, "tuple of exception types"),
    ({"remember": ("ValueError",)}, "tuple of exception types"),
    ({"timeout": 0}, "more than 0"),
    ({"timeout": -1}, "more than 0"),
    ({"outage": "ignore"}, "refuse, run"),
    ({"max_result_bytes": 0}, "1 or more"),
    ({"max_result_bytes": "1k"}, "whole number"),
    ({"codec": "json"}, "encode and decode"),
]


@pytest.mark.parametrize("settings, remedy", NONSENSE, ids=lambda item: str(item)[:50])
def test_nonsense_names_the_field_and_the_fix(settings: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Policy(**settings)
    text = str(caught.value)
    assert any(name in text for name in settings)
    assert remedy in text
    with pytest.raises(ConfigurationError):
        Policy().replace(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"first": -1},
        {"first": math.inf},
        {"most": -1},
        {"factor": 0.5},
        {"factor": math.inf},
        {"factor": "2"},
        {"jitter": 1.5},
        {"jitter": -0.1},
        {"jitter": None},
    ],
    ids=str,
)
def test_nonsense_back_off(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(ConfigurationError, match=f"backoff.{name}"):
        Backoff(**settings)


def test_unknown_settings_are_suggested() -> None:
    with pytest.raises(ConfigurationError, match=r"'leese'.*did you mean 'lease'"):
        Policy(leese=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=r"'max_atempts'.*'max_attempts'"):
        Policy().replace(max_atempts=3)
    with pytest.raises(ConfigurationError, match=r"known: lease, max_lease"):
        Policy(zzz=1)  # type: ignore[call-arg]


def test_durations_are_seconds_or_timedeltas() -> None:
    policy = Policy(lease=timedelta(seconds=10), retention=timedelta(days=1), wait=2)
    assert (policy.lease, policy.retention, policy.wait) == (10.0, 86400.0, 2.0)
    assert policy == Policy(lease=10, wait=2)
    assert Backoff(first=timedelta(milliseconds=5)).first == 0.005


def test_defaults_are_those_of_the_design() -> None:
    policy = Policy()
    assert (policy.lease, policy.max_lease, policy.retention) == (30, 3600, 86400)
    assert (policy.in_flight, policy.wait, policy.max_waiters) == ("wait", 30, 100)
    assert (policy.takeover, policy.max_attempts, policy.remember) == ("retry", 5, ())
    assert (policy.timeout, policy.outage, policy.max_result_bytes) == (None, "refuse", 262_144)
    assert policy.retry_horizon is None


def test_immutable_pickles_and_varies() -> None:
    policy = Policy(lease=10)
    with pytest.raises(AttributeError):
        policy.lease = 5  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(policy)) == policy
    other = policy.replace(wait=1)
    assert (other.lease, other.wait, policy.wait) == (10, 1, 30)


def test_back_off_grows_to_its_cap_with_jitter() -> None:
    backoff = Backoff(first=1, factor=2, most=10, jitter=0.5)
    assert [backoff.delay(attempt, 0) for attempt in (1, 2, 3, 4, 5)] == [1, 2, 4, 8, 10]
    assert backoff.delay(3, 1.0) == 2
    assert backoff.delay(10**6, 0) == 10
    assert Backoff(first=0).delay(5, 0.3) == 0
    assert Backoff(first=1, factor=1000, most=5).delay(10**6, 0) == 5


def test_every_accepted_policy_can_be_worked_out() -> None:
    century = timedelta(days=36500)
    ResolvedPolicy(Policy(lease=century, max_lease=century, retention=century, wait=century))
    policy = ResolvedPolicy(Policy(lease=0.05, retention=0.0001))
    assert (policy.lease_ms, policy.retention_ms) == (50, 1)
