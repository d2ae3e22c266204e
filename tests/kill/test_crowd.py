"""Many processes on one store: one run per key, the same answer for all, no error for any."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kill.gathering import crowd, runs

ROUNDS = 4


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_thousand_callers_of_one_key(kind: str, store_url: str, tmp_path: Path):
    ledger = tmp_path / "ledger"
    with crowd(store_url, ledger, kind, processes=5, callers=200) as everyone:
        for number in range(ROUNDS):
            values, errors = everyone.round(f"key-{number}")
            assert not errors
            assert list(values.values()) == [1000], values  # one value, the same for all
    assert runs(ledger) == {f"key-{number}": 1 for number in range(ROUNDS)}


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_two_hundred_writers_of_different_keys_meet_no_error(
    kind: str, store_url: str, tmp_path: Path
):
    keys, ledger = [f"{number}-*" for number in range(10)], tmp_path / "ledger"
    with crowd(store_url, ledger, kind, processes=4, callers=50) as everyone:
        values, errors = everyone.round(*keys)
    assert not errors
    assert len(values) == values.total() == 4 * 50 * 10
    assert set(runs(ledger).values()) == {1}
