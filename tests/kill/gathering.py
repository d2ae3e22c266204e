"""A crowd of processes that wait for a word, all start at it, and tell what they got."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("crowd.py")


class Crowd:
    def __init__(self, url: str, ledger: Path, kind: str, processes: int, callers: int) -> None:
        command = [sys.executable, str(SCRIPT), url, str(ledger), kind, str(callers)]
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
            process.communicate(timeout=60)


@contextmanager
def crowd(url: str, ledger: Path, kind: str, processes: int, callers: int) -> Iterator[Crowd]:
    gathered = Crowd(url, ledger, kind, processes, callers)
    try:
        yield gathered
    finally:
        gathered.end()


def runs(ledger: Path) -> Counter[str]:
    """How often the handler ran, per key."""
    return Counter(ledger.read_text().split())
