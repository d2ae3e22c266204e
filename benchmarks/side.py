"""A process that runs our part of a case on request: ``python -m benchmarks.side NUMBER``.

Orders and answers are lines of JSON. `Side` is the other end. NUMBER gives the process keys of its own.

    {"open": "memory/blocking/first/1", "folder": …, "engines": {…}, "lap": 0.01}    → {"size": 400}
    {"lap": 400}                        → seconds per key: {"wall": …, "processor": …}
    {"close": true}                     → {}

An answer of {"absent": reason} says that this version of the library cannot do what was asked.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self, TextIO

from .workload import Keys, number_process

ROOT = Path(__file__).parent.parent
_numbers = itertools.count(1)


class Side:
    """A child process that imports twicesafe from ``source``, and its answers."""

    def __init__(self, source: Path = ROOT / "src") -> None:
        settings = {name: value for name, value in os.environ.items() if name[:6] != "PYTHON"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.side", str(next(_numbers))],
            cwd=ROOT,
            # The same order of sets and dicts on both sides, and no search path but ours.
            env={**settings, "PYTHONPATH": str(source), "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.library = Path(self.answer()["library"])
        if not self.library.is_relative_to(source):
            raise RuntimeError(f"asked for twicesafe of {source}, and got {self.library}")

    def order(self, **order: Any) -> None:
        assert self._process.stdin is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, **order: Any) -> dict[str, Any]:
        self.order(**order)
        return self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The end of its orders ends it."""
        self._process.communicate()


def serve(orders: TextIO, answers: TextIO) -> None:
    """Until the orders end."""
    import twicesafe

    from . import engines
    from .cases import calls
    from .measure import Runner, no_collection, one_lap, prepare

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    cases = {case.id: case for case in calls()}
    say({"library": str(Path(str(twicesafe.__file__)).parent)})
    runner, offer = None, None
    with no_collection():
        for line in orders:
            order = json.loads(line)
            try:
                if "open" in order:
                    case, folder = cases[order["open"]], Path(order["folder"])
                    engines.use(order["engines"])
                    folder.mkdir(parents=True, exist_ok=True)
                    offer = case.offer()
                    keys = Keys(fresh=case.fresh, callers=case.callers, settled=case.settled)
                    runner = Runner(case.ours(folder), keys)
                    prepare(runner, offer, 1, order["lap"])
                    answer: dict[str, Any] = {"size": runner.size}
                elif "lap" in order:
                    assert runner is not None
                    assert offer is not None
                    runner.size = order["lap"]
                    answer = one_lap(runner, offer)._asdict()
                    gc.collect()
                else:
                    with contextlib.suppress(Exception):
                        if runner is not None and offer is not None:
                            offer.finish(runner.contestant)
                            offer.close()
                    runner, offer, answer = None, None, {}
            except Exception as error:
                answer = {"absent": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
            say(answer)


if __name__ == "__main__":
    number_process(int(sys.argv[1]))
    # Whatever prints must not speak in our answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers)
