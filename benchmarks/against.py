"""This version of the library against another one, in one run: ``make bench ARGS="--against COMMIT [CASE …]"``.

The benchmark of the working tree runs on both: on `src` of the working tree, and on `src` of the commit, which
is unpacked into a temporary folder. Each version lives in a process of its own and has stores of its own on the
same servers. Both run the same number of calls in turn: old new new old. `verdicts` says how that is judged.

A case that is not clear after its blocks is repeated with a fresh pair of processes, up to `PAIRS` pairs, and each of
them runs twice as many blocks as the one before: on a quiet machine the first pairs are enough. Cases use public
names only, so old versions can run them; where one cannot, the table says why.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import engines
from .case import Case
from .rows import duration, number
from .side import ROOT, Side
from .size import place
from .spread import Spread
from .verdicts import CLOCKS, LIMIT, NOT_THERE, SLOWER, Block, Comparison
from .workload import Lap

BLOCKS = 12
"""Blocks of four laps for the first pair of processes; a case that has a share gets its share of them."""
FEWEST_BLOCKS = 6
"""Fewer say nothing about where a median lies."""
PAIRS = 4


class LapFailedError(Exception):
    """A version could open the case, but not run it."""


def run(commit: str, cases: Sequence[Case], *, blocks: int = 0, out: Path | None = None) -> int:
    """Compare, print, keep the numbers where asked. 1 if a case is slower, or does not run any more."""
    with tempfile.TemporaryDirectory(prefix="against-", dir=place()) as folder:
        sources = {"old": unpacked(commit, Path(folder)), "new": ROOT / "src"}
        compared = compare(cases, sources, Path(folder), blocks=blocks or BLOCKS)
    print_table(compared, commit)
    if out is not None:
        data = {"against": commit, "limit": LIMIT, "rows": [each.as_data() for each in compared]}
        out.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    return int(any(each.verdict == SLOWER or each.absent.startswith("new") for each in compared))


def unpacked(commit: str, folder: Path) -> Path:
    """The folder `src` of that commit."""
    folder = folder / "commit"
    folder.mkdir()
    archive = subprocess.run(
        ["git", "archive", "--format=tar", commit, "src"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if archive.returncode:
        sys.exit(f"git knows no src of {commit}: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
    return folder / "src"


def compare(
    cases: Sequence[Case],
    sources: dict[str, Path],
    folder: Path,
    *,
    blocks: int,
    pairs: int = PAIRS,
    lap: float | None = None,
) -> list[Comparison]:
    found = [Comparison(case) for case in cases]
    urls = _urls(found)
    for number_of_pair in range(pairs):
        waiting = [each for each in found if not each.is_decided]
        if not waiting:
            break
        with Side(sources["old"]) as old, Side(sources["new"]) as new:
            sides = {"old": old, "new": new}
            for number_of_case, each in enumerate(waiting):
                _say(
                    f"pair {number_of_pair + 1}: {number_of_case + 1}/{len(waiting)} {each.case.id}"
                )
                where = folder / f"{number_of_pair}-{number_of_case}"
                count = max(FEWEST_BLOCKS, round(blocks * each.case.share)) * 2**number_of_pair
                _one_pair(each, sides, urls, where, count, lap or each.case.lap)
    _say("")
    return found


def _one_pair(
    row: Comparison,
    sides: dict[str, Side],
    urls: dict[str, dict[str, str]],
    folder: Path,
    blocks: int,
    lap: float,
) -> None:
    sizes: list[int] = []
    for version, side in sides.items():
        where = str(folder / version)
        opened = side.ask(open=row.case.id, folder=where, engines=urls[version], lap=lap)
        if "absent" in opened:
            row.absent = row.absent or f"{version}: {opened['absent']}"
        else:
            sizes.append(opened["size"])
    if not row.absent:
        # Both do the same work, as much as the slower one does in a lap.
        try:
            row.pairs.append([_block(sides, min(sizes), turn) for turn in range(blocks)])
        except LapFailedError as error:
            row.absent = str(error)
    for side in sides.values():
        side.ask(close=True)


def _block(sides: dict[str, Side], size: int, turn: int) -> Block:
    """Old new new old, or the other way round: what drifts meets both alike."""
    first, second = ("old", "new") if turn % 2 == 0 else ("new", "old")
    laps: dict[str, list[Lap]] = {"old": [], "new": []}
    for version in (first, second, second, first):
        found = sides[version].ask(lap=size)
        if "absent" in found:
            raise LapFailedError(f"{version}: {found['absent']}")
        laps[version].append(Lap(**found))
    return Block(*(Lap(*map(sum, zip(*laps[version], strict=True))).per(2) for version in laps))


def _urls(found: list[Comparison]) -> dict[str, dict[str, str]]:
    """A database for each version on each server that is needed; a case without its server is absent."""
    urls: dict[str, dict[str, str]] = {"old": {}, "new": {}}
    for each in found:
        engine = each.case.engine
        if not engine or engine in urls["new"]:
            continue
        try:
            for number_of_version, version in enumerate(urls):
                urls[version][engine] = engines.database(engine, number_of_version)
        except engines.NoServerError as reason:
            each.absent = f"no server: {reason}"
    return urls


def print_table(found: list[Comparison], commit: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"working tree against {commit}: new / old", title_justify="left")
    table.add_column("case")
    for column in ("old", "new", "wall time", "processor time", "verdict"):
        table.add_column(column, justify="left" if column == "verdict" else "right")
    for each in found:
        style = {"slower": "bold red", "faster": "green"}.get(each.verdict, "")
        verdict = f"[{style}]{each.verdict}[/]" if style else each.verdict
        table.add_row(each.case.id, *_cells(each), verdict + _remark(each))
    Console(width=None if sys.stdout.isatty() else 170).print(table)
    words = [each.verdict for each in found]
    print(", ".join(f"{words.count(word)} {word}" for word in sorted(set(words))))


def _cells(each: Comparison) -> list[str]:
    if each.absent:
        return [""] * 4
    clock = each.clocks[0]
    times = [duration(each.seconds(version, clock)) for version in ("old", "new")]
    return [*times, *(_ratio(each.ratio(name)) for name in CLOCKS)]


def _ratio(ratio: Spread) -> str:
    return f"{number(ratio.median)}× ({number(ratio.low)}–{number(ratio.high)})"


def _remark(each: Comparison) -> str:
    if each.verdict == NOT_THERE:
        return f" ({each.absent})"
    return "" if each.is_decided else f" (unclear after {len(each.pairs)} pairs of processes)"


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
