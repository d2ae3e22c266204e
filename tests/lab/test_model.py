"""The Promela model: sound as it is, and caught when it is broken."""

from __future__ import annotations

import pytest

from lab import model


@pytest.fixture(autouse=True)
def spin() -> None:
    if reason := model.reason_to_skip():
        pytest.skip(reason)


def test_no_interleaving_breaks_the_protocol():
    check = model.check(0, workers=2, claims=1)
    assert not check.caught
    assert check.states > 1_000


@pytest.mark.parametrize("variant", model.VARIANTS)
def test_a_broken_variant_is_caught(variant: int):
    assert model.check(variant, workers=2, claims=2).caught
