"""What ``import twicesafe`` costs, in fresh interpreters, beside the neighbours' imports.

Interpreters take turns as contestants do; the time is taken inside them, so that the start of
Python itself is not counted. All bytecode is kept in a folder of its own, whatever the caller's
settings are, and filled by a first round that is thrown away. Processor time judges: an import
waits for nothing, and others use the machine.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile

from .peers import MODULES, lacks
from .workload import Lap

IN_LAMBDA = "twicesafe.integrations.aws_lambda"

PROGRAM = """
import time
start = time.perf_counter(), time.process_time()
import {module}
print(time.perf_counter() - start[0], time.process_time() - start[1])
"""


def once(module: str, bytecode: str) -> Lap:
    """One import in one fresh interpreter."""
    settings = {name: value for name, value in os.environ.items() if name[:6] != "PYTHON"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(module=module)],
        capture_output=True,
        check=True,
        env={**settings, "PYTHONPYCACHEPREFIX": bytecode},
    )
    return Lap(*map(float, done.stdout.split()[-2:]))


def measured(rounds: int) -> dict[str, list[Lap]]:
    installed = {name: module for name, module in MODULES.items() if not lacks(name)}
    modules = {"twicesafe": "twicesafe", "twicesafe in AWS Lambda": IN_LAMBDA, **installed}
    with tempfile.TemporaryDirectory() as bytecode:
        present = {
            name: functools.partial(once, module, bytecode) for name, module in modules.items()
        }
        found: dict[str, list[Lap]] = {name: [] for name in present}
        for _ in range(rounds + 1):
            for name, run in present.items():
                found[name].append(run())
    return {name: laps[1:] for name, laps in found.items()}
