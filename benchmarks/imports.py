"""What ``import twicesafe`` costs, in fresh interpreters, beside the neighbours' imports.

Interpreters take turns as contestants do; the time is taken inside them, so that the start of
Python itself is not counted. Bytecode is compiled already: the first round is thrown away.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from .measure import Spread, repeat
from .peers import MODULES

PROGRAM = """
import time
start = time.perf_counter()
import {module}
print(time.perf_counter() - start)
"""


def seconds(module: str) -> float:
    """One import in one fresh interpreter."""
    program = PROGRAM.format(module=module)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return float(done.stdout.split()[-1])


def measured(rounds: int) -> dict[str, Spread]:
    modules = {"twicesafe": "twicesafe", **MODULES}
    present = {
        name: lambda module=module: seconds(module)
        for name, module in modules.items()
        if importlib.util.find_spec(module) is not None
    }
    return {name: Spread.of(values[1:]) for name, values in repeat(rounds + 1, present).items()}
