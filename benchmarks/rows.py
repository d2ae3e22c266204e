"""One row of the report per case: what was measured, in words that fit into a cell.

A cell is the ratio to the floor of the same round, with the middle half of what was seen. Ours has two
cells more: the same ratio by the other clock, and what single calls took.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from . import ours
from .case import FLOOR, OTHER_CLOCK, TAIL, Case
from .measure import Measured
from .spread import Spread, Tail
from .web import WebCase

OURS = ours.NAME


@dataclass
class Row:
    id: str
    section: str
    title: str
    cells: dict[str, str]
    target: str = ""
    met: bool | None = None
    absent: dict[str, str] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    """The measurement that it is of, as ``--list`` names it."""
    version: str = ""
    """Of twicesafe, when it was measured."""

    @property
    def verdict(self) -> str:
        return {None: "", True: "met", False: "MISSED"}[self.met]


def row_of(case: Case | WebCase, found: list[Measured]) -> Row:
    by_name = {measured.name: measured for measured in found}
    mine = by_name[OURS]
    cells = {name: _cell(each, case.gains) for name, each in by_name.items()}
    if mine.wall is not None:
        cells[OTHER_CLOCK] = _other_clock(mine, case.gains)
    if mine.tail is not None:
        cells[TAIL] = _tail(mine.tail)
    return Row(
        case.id,
        case.section,
        case.title,
        cells,
        "" if case.target is None else str(case.target),
        None if case.target is None else case.target.is_met(mine),
        {name: each.absent for name, each in by_name.items() if each.absent},
        {name: asdict(each) for name, each in by_name.items() if not each.absent},
    )


def _cell(found: Measured, gains: bool) -> str:
    if found.seconds is None or found.ratio is None:
        return "–"
    if found.name == FLOOR:
        return duration(found.seconds.median)
    ratio = _shown(found.ratio, gains)
    shown = f"{number(ratio.median)}× ({number(ratio.low)}–{number(ratio.high)})"
    return f"{shown}, {duration(found.seconds.median)}" if found.name == OURS else shown


def _shown(ratio: Spread, gains: bool) -> Spread:
    return Spread(1 / ratio.high, 1 / ratio.median, 1 / ratio.low) if gains else ratio


def _other_clock(mine: Measured, gains: bool) -> str:
    """Processor time where wall time judges, and the other way round."""
    name, timing = ("processor", mine.processor) if mine.clock == "wall" else ("wall", mine.wall)
    assert timing is not None
    if not timing.seconds.median:  # it is another process that works
        return ""
    ratio = _shown(timing.ratio, gains).median
    return f"{name} {number(ratio)}×, {duration(timing.seconds.median)}"


def _tail(tail: Tail) -> str:
    seen = (tail.p50, tail.p99, tail.p999)
    return " / ".join("–" if each is None else duration(each) for each in seen)


def number(value: float) -> str:
    if value >= 99.5:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"


def duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{number(seconds * 1e6)} µs"
    return f"{number(seconds * 1e3)} ms"


def in_sections(rows: list[Row]) -> list[Row]:
    """One table per section, also where the rows of a section are measured apart."""
    sections = {row.section: number for number, row in reversed(list(enumerate(rows)))}
    return sorted(rows, key=lambda row: sections[row.section])
