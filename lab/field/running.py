"""All trials of all engines: each engine in its own process, two or more at a time.

A process per engine keeps servers, threads and crashes apart, and the command that it runs is the one
that repeats a failure.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from ..parts import Parts
from .trial import TRIALS, Trial, new_trial, run_trial

__all__ = ["ENGINES", "a_seed", "in_processes", "run_here", "told", "totals", "written"]

ENGINES: Final = (
    "dynamodb", "mongodb", "etcd", "mariadb", "postgres", "valkey", "kafka", "rabbitmq", "nats", "ministack",
    "sqlite",
)  # fmt: skip
"""The slowest first: what is started last should end soon."""

ROOT: Final = Path(__file__).parent.parent.parent


def a_seed() -> int:
    return random.SystemRandom().randrange(10**6)


def in_processes(seed: int, full: bool, jobs: int, resume: bool) -> list[Trial]:
    """Everything, told line by line as it ends."""
    telling = threading.Lock()

    def one(engine: str) -> list[Trial]:
        with tempfile.NamedTemporaryFile(suffix=".json") as into:
            words = ["-m", "lab", "field", "--engine", engine, "--seed", str(seed)]
            words += ["--full"] * full + ["--resume"] * resume + ["--into", into.name]
            with subprocess.Popen(
                [sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
            ) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    with telling:
                        print(line, end="", flush=True)
            written = Path(into.name).read_bytes()
        found = msgspec.json.decode(written, type=list[Trial]) if written else []
        if process.returncode and not any(done.broken for done in found):
            lost = Trial("all", "", engine, seed, full, broken=[])
            lost.broke(f"the trials of {engine} ended with status {process.returncode}")
            found.append(lost)
        return found

    # Much of it is waiting: one more than there are cores.
    with ThreadPoolExecutor(jobs + 1) as pool:
        return [done for some in pool.map(one, ENGINES) for done in some]


def run_here(
    names: Iterable[str],
    engines: Iterable[str],
    seed: int,
    full: bool,
    parts: Parts,
    into: Path | None = None,
    portions: Sequence[int] = (),
) -> list[Trial]:
    """One after the other; what was found so far is kept in a file. `portions`: only these, of trials that
    have several."""
    done: list[Trial] = []
    for engine in engines:
        for name in names or TRIALS:
            entry = TRIALS[name]
            if engine not in entry.engines:
                continue
            if full and entry.portions > 1:
                some = portions or range(1, entry.portions + 1)
                done.append(_in_portions(name, engine, seed, parts, some))
            else:
                done.append(_kept(name, engine, seed, full, parts))
            if into is not None:
                into.write_bytes(msgspec.json.encode(done))
    return done


def _in_portions(name: str, engine: str, seed: int, parts: Parts, portions: Iterable[int]) -> Trial:
    """The sum of the portions, told one by one; a part that does not apply here ends it."""
    whole = new_trial(name, engine, seed, True)
    for portion in portions:
        one = _kept(name, engine, seed, True, parts, portion)
        whole.add(one)
        whole.seconds += one.seconds
        if one.skipped:
            whole.skipped = one.skipped
            return whole
        whole.count("portions")
    print(f"    {engine} {name}: {whole.tried:,} {whole.unit} in all", flush=True)
    return whole


def _kept(name: str, engine: str, seed: int, full: bool, parts: Parts, portion: int = 0) -> Trial:
    place = f"field-{engine}-{name.replace(' ', '-')}" + (f"-{portion}" if portion else "")
    found = parts.get(
        *(place, "full" if full else "small", Trial, ("lab/field",)),
        partial(run_trial, name, engine, seed, full, portion),
        good=lambda trial: not trial.broken and not trial.skipped,
    )
    told(found)
    return found


def written(files: Iterable[Path]) -> list[Trial]:
    """What `run_here` has written into these files."""
    return [
        done for file in files for done in msgspec.json.decode(file.read_bytes(), type=list[Trial])
    ]


def told(done: Trial) -> bool:
    """One line; more when something broke."""
    counts = ", ".join(f"{what} {count:,}" for what, count in done.counts.items() if count)
    mark = "·" if done.skipped else "✗" if done.broken else "✓"
    text = f"skipped: {done.skipped}" if done.skipped else f"{done.tried:,} {done.unit}; {counts}"
    lines = [f"  {mark} {done.engine:9} {done.name:24} {done.seconds:5.0f} s  {text}"]
    lines += [f"      {how}" for how in done.broken[:10]]
    if done.broken:
        lines.append(f"      again: {done.words}")
    print("\n".join(lines), flush=True)
    return not done.broken


def totals(trials: Sequence[Trial]) -> str:
    broken = sum(bool(done.broken) for done in trials)
    skipped = sum(bool(done.skipped) for done in trials)
    return f"{len(trials)} trials, {broken} of them broken, {skipped} skipped"
