"""Blocking and async strategies have the same methods with the same parameters."""

from __future__ import annotations

import inspect

import pytest

from twicesafe import strategies


@pytest.mark.parametrize("name", ["Table", "HighWaterMarks", "EventLog", "Projection"])
def test_both_modes_have_the_same_methods(name: str):
    plain, awaited = getattr(strategies, name), getattr(strategies, f"Async{name}")
    methods = {
        each for each, value in vars(plain).items() if callable(value) and not each.startswith("_")
    }
    assert methods
    for method in methods:
        one, other = getattr(plain, method), getattr(awaited, method)
        assert inspect.signature(one) == inspect.signature(other)
        assert inspect.iscoroutinefunction(other)
        assert not inspect.iscoroutinefunction(one)
        assert inspect.getdoc(one) == inspect.getdoc(other)
