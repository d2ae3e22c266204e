"""The Promela model, checked by spin: every interleaving of three workers, not a sample of them.

The simulation runs the real code and meets what its seeds meet. The model is a page of another
language, and spin visits all its states. Broken variants of the same page must be caught, or the
model shows nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

__all__ = ["VARIANTS", "Check", "check", "check_all", "reason_to_skip", "told", "version"]

MODEL = Path(__file__).parent / "claims.pml"

VARIANTS = {
    1: "complete compares neither owner nor fence",
    2: "fail compares neither owner nor fence",
    3: "a takeover keeps the fence of the claim that it replaces",
    4: "an operator's release leaves the owner its claim",
    5: "a live claim can be taken over",
}


class Check(msgspec.Struct):
    variant: int
    """0: the protocol itself."""
    what: str
    workers: int
    claims: int
    """How often each of them may claim."""
    caught: bool
    """Did an assertion fail?"""
    states: int = 0
    seconds: float = 0.0
    skipped: str = ""

    @property
    def as_expected(self) -> bool:
        return bool(self.skipped) or self.caught == bool(self.variant)


def reason_to_skip() -> str:
    """Why there is no check here; empty: there is. With CI=true it must not be skipped."""
    lacking = [name for name in ("spin", "cc") if shutil.which(name) is None]
    if not lacking:
        return ""
    if os.environ.get("CI") == "true":
        raise RuntimeError(f"no {lacking[0]} on this machine, and CI must check the model")
    return f"no {lacking[0]} on this machine (./dev servers installs spin)"


def version() -> str:
    """Which spin there is."""
    if shutil.which("spin") is None:
        return "none"
    found = re.search(r"Version (\S+)", _run(["spin", "-V"], "."))
    return found[1] if found else "unknown"


def check_all(jobs: int) -> list[Check]:
    """The protocol, and each broken variant; so many searches at once."""
    with ThreadPoolExecutor(jobs) as pool:
        whole = [pool.submit(check, 0, 3, 1), pool.submit(check, 0, 2, 2)]
        broken = [pool.submit(check, variant, 2, 2) for variant in VARIANTS]
        return [search.result() for search in (*whole, *broken)]


def check(variant: int, workers: int = 3, claims: int = 1) -> Check:
    """One exhaustive search, or the reason why there was none."""
    what = VARIANTS.get(variant, "the protocol")
    skipped = reason_to_skip()
    if skipped:
        return Check(variant, what, workers, claims, False, skipped=skipped)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="spin-") as folder:
        settings = [f"-DWORKERS={workers}", f"-DCLAIMS={claims}", f"-DBROKEN={variant}"]
        _run(["spin", *settings, "-a", str(MODEL)], folder)
        quick = "-O0" if variant else "-O2"  # a broken one fails within some hundred states
        _run(["cc", quick, "-DSAFETY", "-DCOLLAPSE", "-DNOFAIR", "-o", "pan", "pan.c"], folder)
        said = _run(["./pan", "-m100000", "-E", "-w24"], folder)
    errors = int(re.search(r"errors: (\d+)", said)[1])  # type: ignore[index]
    states = int(float(re.search(r"([\d.e+]+) states, stored", said)[1]))  # type: ignore[index]
    if "max search depth too small" in said or ("Search not completed" in said and not errors):
        raise RuntimeError(f"the search was not exhaustive:\n{said}")
    return Check(variant, what, workers, claims, errors > 0, states, time.monotonic() - began)


def _run(words: list[str], folder: str) -> str:
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode != 0:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def told(checks: list[Check]) -> bool:
    for one in checks:
        if one.skipped:
            print(f"  skipped: {one.what}: {one.skipped}")
            continue
        verdict = "an assertion fails" if one.caught else "no assertion fails"
        mark = "" if one.as_expected else "✗ "
        print(
            f"  {mark}{one.what}, {one.workers} workers × {one.claims}: {verdict}, "
            f"{one.states:,} states, "
            f"{one.seconds:.1f} s"
        )
    return all(one.as_expected for one in checks)
