"""The ordinary run: which rows there are, and how each of them is measured.

Most rows are cases, which all run in the same way. What measures itself (sizes, imports, processes, the relay) is a
function that returns rows.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from lab.parts import ROOT, Parts, our_version

from . import consumers, engines, growth, imports, inbox, outbox, processes, size, size_servers
from .cases import Case, all_cases
from .rows import Row, in_sections, row_of
from .size_rows import import_row, server_size_rows, size_rows
from .web import WebCase

Measurement = Callable[["Run"], list[Row]]

FOLDER = ROOT / ".dev" / "bench-rows"


def selected(only: list[str], huge: bool = False) -> dict[str, Measurement]:
    """What is measured, by its id, in the order of the report."""
    sizes = growth.SIZES + growth.HUGE if huge else growth.SIZES
    found: dict[str, Measurement] = {c.id: functools.partial(_case, c) for c in all_cases()}
    found |= {name: functools.partial(_processes, name) for name in processes.names()}
    found |= {name: functools.partial(_consumers, name) for name in consumers.names()}
    found |= {
        "inbox": _inbox,
        "outbox": _outbox,
        "import": _import,
        "size": _size,
    }
    found |= {f"size/{name}": functools.partial(_server_size, name) for name in engines.ENGINES}
    # Last: it leaves millions of records in the servers, and a consumer's start reads them all on Valkey.
    found |= {case.id: functools.partial(_case, case) for case in growth.growth(sizes)}
    return {
        name: work for name, work in found.items() if not only or any(text in name for text in only)
    }


@dataclass
class Run:
    rounds: int
    keys: int
    """How many keys are weighed in each store."""
    quick: bool = False
    named: bool = False
    """Its cases were named one by one, so it leaves none out."""
    resume: bool = False
    """Rows that a broken-off run has measured, of the same code, are not measured again."""
    folder: Path = FOLDER
    missing: dict[str, str] = field(default_factory=dict)
    """What could not be measured here, and why."""

    def rows(self, chosen: dict[str, Measurement]) -> list[Row]:
        rows: list[Row] = []
        kept = Parts(resume=self.resume, folder=self.folder)
        asked = f"{self.rounds} rounds, {self.keys} keys{', quick' * self.quick}"
        for number, (name, work) in enumerate(chosen.items()):
            _say(f"{number + 1}/{len(chosen)} {name}")
            try:
                rows += kept.get(
                    name.replace("/", "-"),
                    asked,
                    list[Row],
                    ("benchmarks",),
                    functools.partial(self._measured, name, work),
                )
            except engines.NoServerError as reason:
                self.missing.setdefault(_server_of(name), str(reason))
        _say("")
        return in_sections(rows)

    def _measured(self, name: str, work: Measurement) -> list[Row]:
        return [replace(row, source=name, version=our_version()) for row in work(self)]

    def passes_over(self, is_quick: bool) -> bool:
        return self.quick and not self.named and not is_quick


def _case(case: Case | WebCase, run: Run) -> list[Row]:
    if run.passes_over(case.quick):
        return []
    if case.engine:
        engines.server(case.engine)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=size.place()) as folder:
        return [row_of(case, case.run(Path(folder) / "case", run.rounds))]


def _processes(name: str, run: Run) -> list[Row]:
    return [] if run.passes_over(False) else processes.measured(name, run.rounds)


def _inbox(run: Run) -> list[Row]:
    return [] if run.passes_over(False) else inbox.measured()


def _outbox(run: Run) -> list[Row]:
    return [] if run.passes_over(False) else outbox.measured()


def _consumers(name: str, run: Run) -> list[Row]:
    if run.quick:
        return [] if run.passes_over(False) else consumers.measured(name, 500, 2, 20_000)
    return consumers.measured(name)


def _import(run: Run) -> list[Row]:
    return [import_row(imports.measured(3 if run.quick else 9))]


def _size(run: Run) -> list[Row]:
    return size_rows(*size.both(run.keys), run.keys)


def _server_size(name: str, run: Run) -> list[Row]:
    found = size_servers.measured(name, run.keys, engines.server(name).url)
    return server_size_rows(name, found, run.keys)


def _server_of(name: str) -> str:
    return next((engine for engine in engines.ENGINES | engines.EMULATED if engine in name), name)


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
