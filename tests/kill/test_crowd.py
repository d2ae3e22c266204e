"""Many processes on one SQLite file: one run per key, the same answer for all, no error for any."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("crowd.py")
ROUNDS = 20


class Crowd:
    """Processes that wait for a word, all start at it, and tell what they got."""

    def __init__(self, database: Path, kind: str, processes: int, callers: int) -> None:
        command = [sys.executable, str(SCRIPT), str(database), kind, str(callers)]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def round(self, *keys: str) -> tuple[Counter[str], Counter[str]]:
        """(value → how many got it, error → how many met it), over all processes."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(" ".join(keys) + "\n")
            process.stdin.flush()
        values: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        for process in self._processes:
            assert process.stdout is not None
            told: dict[str, Any] = json.loads(process.stdout.readline())
            values.update(told["values"])
            errors.update(told["errors"])
        return values, errors

    def end(self) -> None:
        for process in self._processes:
            process.communicate(timeout=30)


@contextmanager
def crowd(database: Path, kind: str, processes: int, callers: int) -> Iterator[Crowd]:
    gathered = Crowd(database, kind, processes, callers)
    try:
        yield gathered
    finally:
        gathered.end()


def runs(folder: Path) -> Counter[str]:
    return Counter((folder / "ledger").read_text().split())


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_thousand_callers_of_one_key(kind: str, tmp_path: Path):
    with crowd(tmp_path / "keys.db", kind, processes=10, callers=100) as everyone:
        for number in range(ROUNDS):
            values, errors = everyone.round(f"key-{number}")
            assert not errors
            assert list(values.values()) == [1000], values  # one value, the same for all
    assert runs(tmp_path) == {f"key-{number}": 1 for number in range(ROUNDS)}


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_two_hundred_writers_meet_no_locked_database(kind: str, tmp_path: Path):
    keys = [f"{number}-*" for number in range(10)]
    with crowd(tmp_path / "keys.db", kind, processes=4, callers=50) as everyone:
        values, errors = everyone.round(*keys)
    assert not errors
    assert len(values) == values.total() == 4 * 50 * 10
    assert set(runs(tmp_path).values()) == {1}
