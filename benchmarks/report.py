"""The report: rows as a table on the terminal, as Markdown and as JSON.

A missed target is marked as missed; `remarks.toml` says why, and the page prints it.
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
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from .case import COLUMNS, OTHER_CLOCK
from .engines import about as servers
from .peers import PACKAGES
from .rows import OURS, Row

REMARKS = Path(__file__).with_name("remarks.toml")
UNTIL = {
    "a network between client and server": "delayed/",
    "several processes at once": "processes/",
    "tables of millions of keys": "growth/",
}
"""What a run does not show unless it has rows whose ids begin so."""


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
    drivers = ("psycopg", "asyncpg", "redis", "hiredis", "PyMySQL", "asyncmy", "grpcio")
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
    parts = [remarks["page"].strip(), ""]
    if any(OTHER_CLOCK in row.cells for row in rows):
        parts += [remarks["both_clocks"].strip(), ""]
    parts += ["Measured with " + _sentence(about), ""]
    if several := len({row.version for row in rows}) > 1:
        parts += [
            "The rows come from several runs. The last column names the version of twicesafe.",
            "",
        ]
    for section, group in itertools.groupby(rows, key=lambda row: row.section):
        listed = list(group)
        columns = _columns(listed)
        parts += [f"## {section}", ""]
        names = ["case", *columns, "target", *["version"] * several]
        parts += [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
        for row in listed:
            verdict = f"{row.target} **missed**" if row.met is False else row.target
            cells = [row.cells.get(column, "") for column in columns]
            words = [row.title, *cells, verdict, *[row.version] * several]
            parts.append(f"| {' | '.join(words)} |")
        parts.append("")
        reasons = {f"{name}: {why}" for row in listed for name, why in row.absent.items() if why}
        if reasons:
            parts += ["A dash means *not measured*. " + "; ".join(sorted(reasons)) + ".", ""]
        known = [row for row in listed if row.met is False and row.id in remarks]
        parts += [f"- **{row.title}**, missed: {_line(remarks[row.id])}" for row in known]
        parts += [""] if known else []
    closing = remarks["closing"].strip().format(not_measured=_not_measured(rows))
    return "\n".join([*parts, closing, ""])


def _not_measured(rows: list[Row]) -> str:
    left = [
        words for words, ids in UNTIL.items() if not any(row.id.startswith(ids) for row in rows)
    ]
    words = ", ".join([*left, "several servers (Cluster, replicas), and other operating systems."])
    return words[0].upper() + words[1:]


def _line(text: str) -> str:
    return " ".join(text.split())


def _sentence(about: dict[str, str]) -> str:
    words = ", ".join(f"{name} {value}" for name, value in about.items() if name != "processors")
    return f"{words}, on {about['processors']} processors."
