"""Measure the contestants, print the table, and publish it if asked."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.house.repository import ROOT

from ..report import machine
from .contestants import CONTESTANTS, Contestant, MissingError, python_of
from .effects import STEPS, effects_of

RESULTS = ROOT / "benchmarks" / "results" / "flows.json"
WORKERS = Path(__file__).parent / "workers"
LIMIT = 300.0


@dataclass
class Row:
    """What one contestant did."""

    name: str
    version: str
    needs: str
    settings: str
    milliseconds: float
    """Median of one flow, one after the other."""
    finished: float
    """Seconds from the kill to the effect of the last step; the next worker is started at once."""
    effects: list[int]
    """How often each step of that flow had its effect."""
    server_mb: int
    """Memory of the server, without a database of the user's; 0: there is none."""


class Trial:
    """One contestant with what it needs, in a folder of its own."""

    def __init__(self, contestant: Contestant, folder: Path, held: contextlib.ExitStack) -> None:
        self.contestant, self.folder = contestant, folder
        self.python = python_of(contestant)
        self.place, self.pid = held.enter_context(contestant.place(folder))
        self.took: list[float] = []

    def worker(self, count: int) -> tuple[int, list[float]]:
        words = [
            self.python,
            str(WORKERS / self.contestant.worker),
            *(str(self.folder), self.place, str(count)),
        ]
        with (self.folder / "worker.log").open("ab") as log:
            done = subprocess.run(
                words, stdout=subprocess.PIPE, stderr=log, timeout=LIMIT, check=False
            )
        lines = done.stdout.decode().strip().splitlines()
        return done.returncode, json.loads(lines[-1]) if lines else []

    def measure(self, flows: int) -> None:
        status, took = self.worker(flows)
        if status or not took:
            raise MissingError(f"its worker ended with status {status}")
        self.took += took

    def kill_and_finish(self) -> Row:
        status, _ = self.worker(0)
        if status != -signal.SIGKILL:
            raise MissingError(f"its worker was not killed: status {status}")
        status, _ = self.worker(-1)
        found, about = effects_of(self.folder, "dying"), self.contestant
        if status or not found[STEPS]:
            raise MissingError(f"the killed flow did not go on: status {status}")
        killed, ended = ((self.folder / name).stat().st_mtime for name in ("killed", "effects"))
        return Row(
            about.name,
            about.version,
            about.needs,
            about.settings,
            round(statistics.median(self.took) * 1000, 2),
            round(ended - killed, 2),
            [found[step] for step in range(1, STEPS + 1)],
            _memory(self.pid),
        )


def _memory(pid: int) -> int:
    """Resident megabytes of a process and its children."""
    if not pid:
        return 0
    total, left = 0, [pid]
    while left:
        one = left.pop()
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{one}/status").read_text()
            total += int(status.partition("VmRSS:")[2].split()[0])
            children = Path(f"/proc/{one}/task/{one}/children").read_text()
            left += map(int, children.split())
    return total // 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flows")
    parser.add_argument("--flows", type=int, default=50, help="flows per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--publish", action="store_true", help="keep the numbers for the docs")
    asked = parser.parse_args()
    rows, missing = measured(asked.flows, asked.rounds)
    for row in rows:
        print(f"{row.name:24} {row.milliseconds:8.2f} ms  {row.finished:6.2f} s  {row.effects}")
    for name, why in missing.items():
        print(f"not measured: {name} ({why})")
    if asked.publish:
        about = {"machine": machine(), "load": round(os.getloadavg()[1], 1)}
        made = {
            **about,
            "at": time.strftime("%Y-%m-%d"),
            "flows": asked.flows * asked.rounds,
            "rows": [asdict(row) for row in rows],
            "missing": missing,
        }
        RESULTS.write_text(json.dumps(made, indent=1) + "\n", "utf-8")
    return 0


def measured(flows: int, rounds: int) -> tuple[list[Row], dict[str, str]]:
    """The contestants take turns, so that what else the machine does is shared."""
    rows: list[Row] = []
    missing: dict[str, str] = {}
    trials: list[Trial] = []
    with contextlib.ExitStack() as held:
        for contestant in CONTESTANTS:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="flows-")))
            with _leaving_out(contestant.name, missing):
                trials.append(Trial(contestant, folder, held))
        for _ in range(rounds):
            for trial in trials:
                if trial.contestant.name not in missing:
                    with _leaving_out(trial.contestant.name, missing):
                        trial.measure(flows)
        for trial in trials:
            if trial.contestant.name not in missing:
                with _leaving_out(trial.contestant.name, missing):
                    rows.append(trial.kill_and_finish())
    return rows, missing


@contextlib.contextmanager
def _leaving_out(name: str, missing: dict[str, str]):  # type: ignore[no-untyped-def]
    try:
        yield
    except (MissingError, subprocess.TimeoutExpired) as error:
        missing[name] = str(error)
        print(f"{name} is left out: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
