"""Source mutants: one bug each in the shipped SQL, Lua, adapters, publishers and HTTP rules.

The simulation runs the core, so the other mutants break the core. These break everything around it,
and the test suite must notice. A source mutant is a text of a file under ``src/twicesafe``, the wrong
text in its place, and the tests that must then fail:

    break_source(
        "sweep keeps the smallest fence",
        bug="the sweep raises the floor to the smallest fence that it removes, not the largest",
        file="_engines/postgresql/generation_sweep.py",
        old="max(fence)",
        new="min(fence)",
        tests=["tests/stores/test_postgresql_sweep.py::test_fences_grow_after_a_sweep"],
    )

`old` must stand at one place of the file only (take in a neighbouring line to make it so). Name the fastest
test that should fail; it runs on a copy of the package with the bug in it. One file per part of the
library; a new file is entered in the imports below.

    python -m lab sources                 all of them
    python -m lab sources NAME …          these; a part of the name is enough
"""

from __future__ import annotations

from . import (
    clients,
    core,
    edges,
    http_rules,
    migration,
    mysql,
    outbox,
    postgresql,
    proxy,
    publishers,
    redis,
    runs,
    sqlite,
    transactions,
    values,
)
from .registry import SOURCE_MUTANTS, SourceMutant, break_source
from .running import Kill, check_form, kill_all, sample

__all__ = [
    "SOURCE_MUTANTS",
    "Kill",
    "SourceMutant",
    "break_source",
    "check_form",
    "clients",
    "core",
    "edges",
    "http_rules",
    "kill_all",
    "migration",
    "mysql",
    "outbox",
    "postgresql",
    "proxy",
    "publishers",
    "redis",
    "runs",
    "sample",
    "sqlite",
    "transactions",
    "values",
]
