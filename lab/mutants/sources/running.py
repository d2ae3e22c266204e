"""Run source mutants: a copy of the package with one bug, and the tests that must fail on it.

A mutant counts as killed only if tests *failed* (pytest's status 1), and the same tests pass on the
package as it is. A test that cannot be found or collected kills nothing.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from .registry import PACKAGE, ROOT, SOURCE_MUTANTS, SourceMutant

__all__ = ["Kill", "check_form", "kill_all", "sample"]

TIME_LIMIT: Final = 300
"""Seconds for the tests of one mutant; a mutant that makes them hang for longer is killed by that."""
FAILED: Final = 1
"""pytest's status when tests ran and some failed."""


class Kill(msgspec.Struct):
    """One source mutant: the first test that failed on it; empty: it survived, and `why` says how."""

    mutant: str
    file: str
    bug: str
    killed_by: str
    why: str = ""


def check_form() -> list[str]:
    """What is wrong with the list itself; a stale mutant is no mutant."""
    return [wrong for mutant in SOURCE_MUTANTS.values() for wrong in mutant.complaints()]


def sample(how_many: int, seed: int) -> list[str]:
    """Some of them, by chance."""
    names = sorted(SOURCE_MUTANTS)
    return sorted(random.Random(seed).sample(names, min(how_many, len(names))))


def kill_all(names: Sequence[str], jobs: int) -> Iterator[Kill]:
    """Each of these; first their tests on the package as it is, which must pass."""
    mutants = [SOURCE_MUTANTS[name] for name in names]
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    healthy, told = _pytest(tests, PACKAGE.parent, time_limit=TIME_LIMIT + 60 * len(tests))
    if healthy != 0:
        why = f"its tests do not pass on the package as it is: {_last_line(told)}"
        yield from (Kill(one.name, one.file, one.bug, "", why) for one in mutants)
        return
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(_kill, mutants)


def _kill(mutant: SourceMutant) -> Kill:
    wrong = mutant.complaints()
    if wrong:
        return Kill(mutant.name, mutant.file, mutant.bug, "", "; ".join(wrong))
    with tempfile.TemporaryDirectory(prefix="twicesafe-mutant-") as folder:
        copy = Path(folder) / PACKAGE.name
        shutil.copytree(PACKAGE, copy)  # compiled files too: times are kept, so they stay valid
        (copy / mutant.file).write_text(mutant.source(), "utf-8")
        for compiled in copy.glob(f"**/__pycache__/{Path(mutant.file).stem}.*"):
            compiled.unlink()
        status, told = _pytest(mutant.tests, Path(folder), time_limit=TIME_LIMIT)
    killer = _first_failure(told) if status == FAILED else ""
    if status is None:
        killer = "hangs"
    if killer:
        return Kill(mutant.name, mutant.file, mutant.bug, killer)
    why = f"pytest ended with {status}: {_last_line(told)}"
    if status == 0:
        why = "its tests pass" if " passed" in told else "its tests are skipped"
    return Kill(mutant.name, mutant.file, mutant.bug, "", why)


def _pytest(tests: Sequence[str], package: Path, time_limit: float) -> tuple[int | None, str]:
    """Status and output; the package is imported from this folder. None: it took too long."""
    outside = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    cache = f"cache_dir={package / '.pytest' if package != PACKAGE.parent else '.dev/pytest'}"
    words = ["-x", "-q", "--no-header", "--timeout=120", "-o", cache, "-rfE"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words, *tests],
            cwd=ROOT,
            env=outside | {"PYTHONPATH": str(package)},
            check=False,
            capture_output=True,
            text=True,
            timeout=time_limit,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout + done.stderr


def _first_failure(told: str) -> str:
    """Empty: no test failed, whatever the status was (a missing pytest ends with 1 as well)."""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", told, re.MULTILINE)
    return found.group(1) if found else ""


def _last_line(told: str) -> str:
    lines = told.strip().splitlines()
    return lines[-1] if lines else "no output"
