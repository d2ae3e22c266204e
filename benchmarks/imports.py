"""What ``import twicesafe`` costs, in fresh interpreters, beside the neighbours' imports.

Interpreters take turns as contestants do; the time is taken inside them, so that the start of
Python itself is not counted. All bytecode is kept in a folder of its own, whatever the caller's
settings are, and filled by a first round that is thrown away. Counted is processor time: an
import waits for nothing, and others use the machine.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile

from .measure import repeat
from .peers import MODULES, lacks
from .spread import Spread

PROGRAM = """
import time
start = time.process_time()
import {module}
print(time.process_time() - start)
"""


def seconds(module: str, bytecode: str) -> float:
    """One import in one fresh interpreter."""
    settings = {name: value for name, value in os.environ.items() if name[:6] != "PYTHON"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(module=module)],
        capture_output=True,
        check=True,
        env={**settings, "PYTHONPYCACHEPREFIX": bytecode},
    )
    return float(done.stdout.split()[-1])


def measured(rounds: int) -> dict[str, Spread]:
    installed = {name: module for name, module in MODULES.items() if not lacks(name)}
    modules = {"twicesafe": "twicesafe", **installed}
    with tempfile.TemporaryDirectory() as bytecode:
        present = {
            name: functools.partial(seconds, module, bytecode) for name, module in modules.items()
        }
        found = repeat(rounds + 1, present)
    return {name: Spread.of(values[1:]) for name, values in found.items()}
