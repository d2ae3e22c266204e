"""The circuit of a breaker, with injected time: closed, open, half open."""

from __future__ import annotations

from typing import Any

import pytest

from twicesafe import Breaker, ConfigurationError
from twicesafe._core.breaker import Circuit, CircuitState

CLOSED, OPEN, HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN


def opened() -> Circuit:
    circuit = Circuit(3, 1.0, 4.0)
    assert [circuit.failed(10.0) for _ in range(3)] == [False, False, True]
    assert circuit.state is OPEN
    return circuit


def test_failures_in_a_row_open_it():
    circuit = Circuit(3, 1.0, 4.0)
    for _ in range(5):
        assert not circuit.failed(0.0)
        assert not circuit.failed(0.0)
        assert circuit.may_claim(0.0)
        assert not circuit.answered()  # not in a row
    assert circuit.state is CLOSED


def test_one_claim_tries_when_the_rest_is_over():
    circuit = opened()
    assert not circuit.may_claim(10.9)
    assert circuit.is_resting(10.9)
    assert circuit.may_claim(11.0)
    assert circuit.state is HALF_OPEN
    assert not circuit.may_claim(11.0), "only one"
    assert circuit.answered()
    assert circuit.may_claim(11.0)
    assert circuit.state is CLOSED


def test_each_try_that_fails_doubles_the_rest():
    circuit, now, rests = opened(), 10.0, []
    for _ in range(5):
        rests.append(circuit.resting_until - now)
        now = circuit.resting_until
        assert circuit.may_claim(now)
        assert circuit.failed(now)
    assert rests == [1.0, 2.0, 4.0, 4.0, 4.0]


def test_a_try_that_never_comes_back_does_not_keep_it_open():
    circuit = opened()
    assert circuit.may_claim(11.0)
    assert not circuit.may_claim(11.9)
    assert circuit.may_claim(12.0)


def test_a_late_failure_does_not_prolong_the_rest():
    circuit = opened()
    assert not circuit.failed(10.5)
    assert circuit.may_claim(11.0)


def test_after_it_has_closed_the_rest_is_short_again():
    circuit = opened()
    circuit.may_claim(11.0)
    circuit.failed(11.0)
    circuit.answered()
    for _ in range(3):
        circuit.failed(20.0)
    assert circuit.resting_until == 21.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"failures": 0},
        {"failures": True},
        {"failures": 1.5},
        {"rest": 0},
        {"rest": -1},
        {"rest": 60},
        {"longest_rest": "soon"},
    ],
)
def test_settings_are_checked(wrong: dict[str, Any]):
    with pytest.raises(
        ConfigurationError, match=next(iter(wrong)) if "rest" not in wrong else "rest"
    ):
        Breaker(**wrong)


def test_durations_may_be_text():
    assert Breaker(rest="2s", longest_rest="1m").longest_rest == 60
