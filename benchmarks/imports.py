"""What ``import twicesafe`` costs, in fresh interpreters, beside the neighbours' imports.

Each library has an environment of its own, with what pip installs for it and nothing else: some
libraries import more if other packages happen to be there (msgspec imports typing_extensions).
Interpreters take turns as contestants do; the time is taken inside them, so that the start of
Python itself is not counted. All bytecode is kept in a folder of its own, whatever the caller's
settings are, and filled by a first round that is thrown away. Processor time judges: an import
waits for nothing, and others use the machine.
"""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .peers import MODULES, REQUIREMENTS, lacks
from .rows import OURS
from .workload import Lap

OURS_IN_LAMBDA = f"{OURS} in AWS Lambda"
NEEDS = {**REQUIREMENTS, OURS_IN_LAMBDA: (OURS,)}

PROGRAM = """
import time
start = time.perf_counter(), time.process_time()
import {module}
print(time.perf_counter() - start[0], time.process_time() - start[1])
"""


def once(python: Path, module: str, bytecode: str) -> Lap:
    """One import in one fresh interpreter."""
    settings = {name: value for name, value in os.environ.items() if name[:6] != "PYTHON"}
    done = subprocess.run(
        [python, "-c", PROGRAM.format(module=module)],
        capture_output=True,
        check=True,
        env={**settings, "PYTHONPYCACHEPREFIX": bytecode},
    )
    return Lap(*map(float, done.stdout.split()[-2:]))


def environment(folder: Path, requirements: tuple[str, ...]) -> Path:
    """The interpreter of a new environment that holds these distributions and what they require.

    The packages are links to those of this environment.
    """
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    found: dict[str, Distribution] = {}
    for requirement in requirements:
        _add(Requirement(requirement), found)
    for each in found.values():
        for name in {file.parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
            (packages / name).symlink_to(Path(str(each.locate_file(name))))
    return folder / "bin" / "python"


def _add(requirement: Requirement, found: dict[str, Distribution]) -> None:
    """Add the distribution and all that it needs, under their normalized names."""
    name = canonicalize_name(requirement.name)
    if name not in found:
        found[name] = distribution(name)
        for needed in _needs(found[name], requirement.extras):
            _add(needed, found)


def _needs(package: Distribution, extras: set[str]) -> Iterator[Requirement]:
    for needed in map(Requirement, package.requires or ()):
        marker = needed.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield needed


def measured(rounds: int) -> dict[str, list[Lap]]:
    modules = {OURS: OURS, OURS_IN_LAMBDA: "twicesafe.integrations.aws_lambda"}
    modules |= {name: module for name, module in MODULES.items() if not lacks(name)}
    with tempfile.TemporaryDirectory() as scratch:
        runs = {
            name: functools.partial(
                once,
                environment(Path(scratch, module), NEEDS.get(name, (name,))),
                module,
                f"{scratch}/bytecode",
            )
            for name, module in modules.items()
        }
        found: dict[str, list[Lap]] = {name: [] for name in runs}
        for _ in range(rounds + 1):
            for name, run in runs.items():
                found[name].append(run())
    return {name: laps[1:] for name, laps in found.items()}
