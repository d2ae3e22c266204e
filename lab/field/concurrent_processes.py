"""Crowds of real processes: killed by the hundred (C3), or all on one key at once (C9).

The scripts and the judge are those of `tests/kill`; here they run at sizes that a test suite cannot
afford, and their numbers are published.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kill import aftermath as judge
from tests.kill import gathering
from twicesafe import State

from .running import ROOT
from .trial import KEYED, SERVERS, Trial, trial
from .zombies import fresh_url

__all__ = ["folder_for", "kills", "run_storm", "storms"]

STORM = ROOT / "tests" / "kill" / "storm.py"


def run_storm(script: Path, folder: Path, **options: object) -> dict[str, Any]:
    """What one of the scripts of `tests/kill` printed."""
    words = [f"--{name}={value}" for name, value in options.items()]
    done = subprocess.run(
        [sys.executable, str(script), str(folder), *words],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    if done.returncode:
        failed = [line for line in done.stderr.splitlines() if line.startswith("AssertionError")]
        why = failed[0] if failed else done.stderr[-600:]  # its workers complain later
        raise AssertionError(f"the storm ended with {done.returncode}: {why}")
    notes: dict[str, Any] = json.loads(done.stdout)
    return notes


@contextmanager
def folder_for() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="twicesafe-lab-") as name:
        yield Path(name)


def _plain(t: Trial, after: judge.Aftermath, folder: Path) -> None:
    t.count("effects done again, each with its cause", len(after.doubled))
    t.expect(not after.lost, f"lost: {after.lost[:5]}")
    t.expect(not after.unexplained, f"done again without a cause: {after.unexplained[:5]}")
    ended = len(after.of(State.COMPLETED))
    t.expect(ended == len(after.records), f"{len(after.records) - ended} keys without an end")


def _hold(t: Trial, after: judge.Aftermath, folder: Path) -> None:
    t.count("held", len(after.of(State.HELD)))
    t.expect(not after.lost, f"lost: {after.lost[:5]}")
    t.expect(not after.doubled, f"done twice under hold: {after.doubled[:5]}")


def _fenced(t: Trial, after: judge.Aftermath, folder: Path) -> None:
    connection = sqlite3.connect(folder / "resource.db")
    (balance,) = connection.execute("SELECT balance FROM account").fetchone()
    connection.close()
    keys = len(after.records)
    t.expect(
        balance == keys, f"a resource that knows fences was charged {balance} times, not {keys}"
    )


KINDS: dict[str, tuple[dict[str, object], Any]] = {
    "retry": ({}, _plain),
    "hold": ({"takeover": "hold"}, _hold),
    "fenced": ({"effect": "fenced"}, _fenced),
}


@trial("kill -9", "C3", "kills", ("sqlite", *SERVERS, *KEYED))
def kills(t: Trial) -> None:
    """Workers are killed at random moments while the broker delivers everything several times. Is a key
    lost, or an effect repeated without a recorded cause? With hold, or on a resource that checks fences,
    is an effect repeated at all?"""
    for number, (kind, (options, check)) in enumerate(KINDS.items()):
        for turn in range(t.size(1, 18 if kind == "retry" else 1)):
            with folder_for() as folder, fresh_url(t.engine) as url:
                seed = t.seed * 1000 + 10 * turn + number
                kills = t.size(40, 500)
                notes = run_storm(STORM, folder, store=url, seed=seed, kills=kills, **options)
                after = judge.Aftermath(folder, url, notes)
                t.tried += after.kills
                t.count("keys", len(after.records))
                t.expect(not after.two_faced, f"two results: {after.two_faced[:5]}")
                check(t, after, folder)


@trial("storms on one key", "C9", "storms", ("sqlite", *SERVERS, *KEYED))
def storms(t: Trial) -> None:
    """A thousand callers in five processes want one key at the same moment. Does exactly one run, and do
    all get the same bytes?"""
    for kind in ("threads", "tasks"):
        with folder_for() as folder, fresh_url(t.engine) as url:
            ledger = folder / "ledger"
            with gathering.crowd(url, ledger, kind, processes=5, callers=200) as everyone:
                for number in range(t.size(2, 50)):
                    values, errors = everyone.round(f"{kind}-{number}")
                    t.tried += 1
                    t.count("callers", values.total() + errors.total())
                    t.expect(not errors, f"callers got {dict(errors)}")
                    t.expect(list(values.values()) == [1000], f"{len(values)} different answers")
            runs = gathering.runs(ledger)
            t.expect(set(runs.values()) == {1}, f"{kind}: a key ran {max(runs.values())} times")
