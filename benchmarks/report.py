"""The report: one row per case, as a table on the terminal, as Markdown and as JSON.

A cell is the ratio to the floor of the same round, with the middle half of what was seen. A missed
target is marked as missed; `remarks.toml` says why, and the page prints it.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import sqlite3
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from .case import COLUMNS, FLOOR, Case
from .engines import ENGINES
from .engines import about as servers
from .measure import Measured, Spread
from .peers import PACKAGES
from .size_servers import AIMS

OURS = "twicesafe"
REMARKS = Path(__file__).with_name("remarks.toml")


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

    @property
    def verdict(self) -> str:
        return {None: "", True: "met", False: "MISSED"}[self.met]


def row_of(case: Case, found: list[Measured]) -> Row:
    by_name = {measured.name: measured for measured in found}
    met = None if case.target is None else case.target.is_met(by_name[OURS])
    return Row(
        case.id,
        case.section,
        case.title,
        {name: _cell(each, case.gains) for name, each in by_name.items()},
        "" if case.target is None else str(case.target),
        met,
        {name: each.absent for name, each in by_name.items() if each.absent},
        {name: asdict(each) for name, each in by_name.items() if not each.absent},
    )


def _cell(found: Measured, gains: bool) -> str:
    if found.seconds is None or found.ratio is None:
        return "–"
    if found.name == FLOOR:
        return duration(found.seconds.median)
    ratio = found.ratio
    if gains:
        ratio = Spread(1 / ratio.high, 1 / ratio.median, 1 / ratio.low)
    shown = f"{number(ratio.median)}× ({number(ratio.low)}–{number(ratio.high)})"
    return f"{shown}, {duration(found.seconds.median)}" if found.name == OURS else shown


def number(value: float) -> str:
    if value >= 99.5:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"


def duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{number(seconds * 1e6)} µs"
    return f"{number(seconds * 1e3)} ms"


def size_rows(disk: dict[str, float], memory: dict[str, float], count: int) -> list[Row]:
    section = _size_section(count)
    per_key, sweep = disk["bytes_per_key"], disk["sweep_seconds"]
    ratio = sweep / disk["floor_sweep_seconds"]
    return [
        Row(
            "size/sqlite",
            section,
            "SQLite file, bytes per key",
            {FLOOR: f"{disk['floor_bytes_per_key']:.0f} B", OURS: f"{per_key:.0f} B"},
            "≤ 345 B",
            per_key <= 345,
            raw=disk,
        ),
        Row(
            "size/memory",
            section,
            "memory store, bytes per key and peak of the process",
            {OURS: f"{memory['bytes_per_key']:.0f} B, {memory['peak_bytes'] / 2**20:.0f} MiB"},
            raw=memory,
        ),
        Row(
            "sweep/sqlite",
            section,
            "SQLite sweep, per removed key",
            {
                FLOOR: duration(disk["floor_sweep_seconds"]),
                OURS: f"{number(ratio)}×, {duration(sweep)}",
            },
            "≤ 30 µs",
            sweep <= 30e-6,
        ),
    ]


def server_size_rows(found: dict[str, dict[str, float]], count: int) -> list[Row]:
    section = _size_section(count)
    rows: list[Row] = []
    for name, figures in found.items():
        shown = ENGINES[name].shown
        most, longest = AIMS[name]
        per_key, sweep = figures["bytes_per_key"], figures.get("sweep_seconds")
        rows.append(
            Row(
                f"size/{name}",
                section,
                f"{shown}, bytes per key with its index",
                {OURS: f"{per_key:.0f} B"},
                "" if most is None else f"≤ {most:g} B",
                None if most is None else per_key <= most,
                raw=figures,
            )
        )
        if sweep is not None:
            rows.append(
                Row(
                    f"sweep/{name}",
                    section,
                    f"{shown} sweep, per removed key",
                    {OURS: duration(sweep)},
                    "" if longest is None else f"≤ {longest * 1e6:g} µs",
                    None if longest is None else sweep <= longest,
                )
            )
    return rows


def _size_section(count: int) -> str:
    keys = f"{count // 1_000_000} M" if count >= 1_000_000 else f"{count:,}"
    return f"Size and upkeep at {keys} keys, results of 200 bytes"


def import_row(found: dict[str, Spread]) -> Row:
    return Row(
        "import",
        "Import",
        "import in a fresh interpreter",
        {
            name: f"{duration(s.median)} ({number(s.low * 1e3)}–{number(s.high * 1e3)})"
            for name, s in found.items()
        },
        "≤ 60 ms",
        found[OURS].median <= 0.060,
        raw={name: asdict(spread) for name, spread in found.items()},
    )


# --- shapes ---------------------------------------------------------------------------------------


def print_table(rows: Iterable[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 170)
    for section, group in itertools.groupby(rows, key=lambda row: row.section):
        listed = list(group)
        table = Table(title=section, title_justify="left", title_style="bold")
        table.add_column("case")
        columns = _columns(listed)
        for column in columns:
            table.add_column(column, justify="right")
        table.add_column("target")
        for row in listed:
            style = {"met": "green", "MISSED": "bold red"}.get(row.verdict, "")
            verdict = f"{row.target} {row.verdict}".strip()
            cells = [row.cells.get(column, "") for column in columns]
            table.add_row(row.title, *cells, f"[{style}]{verdict}[/]" if style else verdict)
        console.print(table)
    missed = [row for row in rows if row.met is False]
    console.print(f"{sum(row.met is True for row in rows)} targets met, {len(missed)} missed")


def _columns(rows: list[Row]) -> list[str]:
    return [column for column in COLUMNS if any(column in row.cells for row in rows)]


def machine() -> dict[str, str]:
    drivers = ("psycopg", "asyncpg", "redis", "hiredis", "PyMySQL", "asyncmy")
    versions = {name: _version(name) for name in (*drivers, OURS, *PACKAGES)}
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **servers(),
        "system": platform.system(),
        "processors": str(os.cpu_count()),
        **{name: version for name, version in versions.items() if version},
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def as_json(rows: list[Row], about: dict[str, str]) -> str:
    return json.dumps({"about": about, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"


def as_markdown(rows: list[Row], about: dict[str, str]) -> str:
    remarks: dict[str, str] = tomllib.loads(REMARKS.read_text("utf-8"))
    parts = [remarks["page"].strip(), "", "Measured with " + _sentence(about), ""]
    for section, group in itertools.groupby(rows, key=lambda row: row.section):
        listed = list(group)
        columns = _columns(listed)
        parts += [f"## {section}", ""]
        parts += [f"| case | {' | '.join(columns)} | target |", "|---" * (len(columns) + 2) + "|"]
        for row in listed:
            verdict = f"{row.target} **missed**" if row.met is False else row.target
            cells = " | ".join(row.cells.get(column, "") for column in columns)
            parts.append(f"| {row.title} | {cells} | {verdict} |")
        parts.append("")
        reasons = {f"{name}: {why}" for row in listed for name, why in row.absent.items() if why}
        if reasons:
            parts += ["A dash: " + "; ".join(sorted(reasons)) + ".", ""]
        known = [row for row in listed if row.met is False and row.id in remarks]
        parts += [f"- **{row.title}**, missed: {_line(remarks[row.id])}" for row in known]
        parts += [""] if known else []
    return "\n".join([*parts, remarks["closing"].strip(), ""])


def _line(text: str) -> str:
    return " ".join(text.split())


def _sentence(about: dict[str, str]) -> str:
    words = ", ".join(f"{name} {value}" for name, value in about.items() if name != "processors")
    return f"{words}, on {about['processors']} processors."
