"""One receiver, one HTTP policy: what of the receiver's own policy counts for requests, and which settings are reported."""

from __future__ import annotations

from typing import Any

import pytest

from twicesafe import Policy, Receiver
from twicesafe._edges.http_guard import HttpGuard
from twicesafe.errors import ConfigurationError
from twicesafe.http import HttpPolicy


class Encrypting:
    def encode(self, value: object, declared: object = None) -> bytes:
        return b""

    def decode(self, payload: bytes, declared: object = None) -> object:
        return None


def guarded(given: Policy, policy: HttpPolicy | None = None) -> HttpPolicy:
    return HttpGuard(Receiver.open("memory://", policy=given), policy).policy


def test_without_an_http_policy_the_receivers_own_decides_what_both_know(caplog: Any):
    given = Policy(lease=5, max_lease=50, retention=7 * 86400, max_waiters=7)
    policy = guarded(given)
    assert (policy.lease, policy.max_lease, policy.retention) == (5, 50, 7 * 86400)
    assert policy.max_waiters == 7
    assert "not used" not in caplog.text
    assert guarded(Policy()) == HttpPolicy()


@pytest.mark.parametrize(
    "given, policy, told",
    [
        (Policy(), HttpPolicy(retention=5), ""),
        (Policy(retention=9), HttpPolicy(retention=9), ""),
        (Policy(retention=9), HttpPolicy(), "retention (say HttpPolicy(retention=…))"),
        (Policy(outage="run"), None, "outage (say HttpPolicy(outage=…))"),
        (Policy(outage="run"), HttpPolicy(outage="run"), ""),
        (Policy(in_flight="reject"), None, ""),
        (Policy(wait=5), None, "wait (say HttpPolicy(wait=…))"),
        (Policy(wait=5), HttpPolicy(wait=5), ""),
        (Policy(takeover="hold"), None, ""),
        (Policy(takeover="hold"), HttpPolicy(takeover="retry"), "takeover (say HttpPolicy(takeover=…))"),
        (Policy(timeout=3, max_attempts=2), None, "max_attempts, timeout"),
    ],
)  # fmt: skip
def test_settings_of_the_receiver_that_have_no_effect_are_reported(
    given: Policy, policy: HttpPolicy | None, told: str, caplog: Any
):
    guarded(given, policy)
    said = [line.partition("requests: ")[2] for line in caplog.messages if "not used" in line]
    assert said == ([told] if told else [])


def test_a_codec_that_would_be_left_out_is_an_error():
    with pytest.raises(ConfigurationError, match=r"HttpPolicy\(codec="):
        guarded(Policy(codec=Encrypting()))
    guarded(Policy(codec=Encrypting()), HttpPolicy(codec=Encrypting()))
