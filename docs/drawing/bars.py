"""Bars from the published benchmark: benchmarks/results/published.json.

Most bars are the median ratio to hand-written code (the floor) of the same round, on a logarithmic
scale: a bar to the right of the line is slower than hand-written code, one to the left is faster.
Bytes per key are on a linear scale that begins at zero.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from .svg import document, text

__all__ = ["PLOTS", "plots"]

OURS: Final = "twicesafe"
NOT_SHOWN: Final = {"floor", "hop per statement"}
BY_HAND: Final = "hand-written code"
PLOTS: Final[dict[str, tuple[str, str, dict[str, str]]]] = {
    "one-caller": (
        "One caller at a time",
        BY_HAND,
        {
            "sqlite-full/blocking/first/1": "SQLite FULL, first",
            "sqlite-full/blocking/duplicate/1": "SQLite FULL, duplicate",
            "postgresql/psycopg/first/1": "PostgreSQL, first",
            "postgresql/psycopg/duplicate/1": "PostgreSQL, duplicate",
            "valkey/blocking/first/1": "Valkey, first",
            "valkey/blocking/duplicate/1": "Valkey, duplicate",
            "mariadb/blocking/first/1": "MariaDB, first",
            "mariadb/blocking/duplicate/1": "MariaDB, duplicate",
        },
    ),
    "many-callers": (
        "50 async callers at once",
        BY_HAND,
        {
            "sqlite-full/async/first/50": "SQLite FULL, first",
            "sqlite-full/async/duplicate/50": "SQLite FULL, duplicate",
            "postgresql/asyncpg/first/50": "PostgreSQL, first",
            "postgresql/asyncpg/duplicate/50": "PostgreSQL, duplicate",
            "valkey/async/first/50": "Valkey, first",
            "valkey/async/duplicate/50": "Valkey, duplicate",
            "mariadb/async/first/50": "MariaDB, first",
            "mariadb/async/duplicate/50": "MariaDB, duplicate",
        },
    ),
    "http": (
        "A FastAPI application with its keys in Valkey",
        "the bare application",
        {
            "http/no-key": "request without a key",
            "http/valkey/first": "first request of a key",
            "http/valkey/replay": "replayed request",
        },
    ),
}
CONCURRENCY: Final = {
    f"{door}/{what}": f"{shown}, {what}"
    for door, shown in {
        "postgresql/asyncpg": "PostgreSQL",
        "valkey/async": "Valkey",
        "mariadb/async": "MariaDB",
    }.items()
    for what in ("first", "duplicate")
}
CALLERS: Final = (1, 50, 500)
SIZES: Final = {
    "size/sqlite": "SQLite",
    "size/postgresql": "PostgreSQL",
    "size/valkey": "Valkey",
    "size/mariadb": "MariaDB",
    "size/memory": "memory",
}
LEFT, ROOM, RIGHT, BAR, GROUP, TOP = 210, 420, 210, 18, 14, 58

Rows = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Bar:
    words: str
    value: float
    ours: bool


Groups = list[tuple[str, list[Bar]]]


def plots(published: str) -> dict[str, str]:
    """Every plot, by its name."""
    rows: Rows = {row["id"]: row for row in json.loads(published)["rows"]}
    made = {
        name: _ratios(title, base, _against_peers(rows, wanted))
        for name, (title, base, wanted) in PLOTS.items()
    }
    made["concurrency"] = _ratios(
        "twicesafe with 1, 50 and 500 async callers", f"{BY_HAND}, call by call", _by_callers(rows)
    )
    made["bytes-per-key"] = _sizes(rows)
    return made


def _against_peers(rows: Rows, wanted: dict[str, str]) -> Groups:
    found = []
    for case, title in wanted.items():
        bars = [
            _ratio_bar(name, each["ratio"]["median"], name == OURS)
            for name, each in rows[case]["raw"].items()
            if name not in NOT_SHOWN and each.get("ratio")
        ]
        found.append((title, bars))
    return found


def _by_callers(rows: Rows) -> Groups:
    found = []
    for door, title in CONCURRENCY.items():
        ratios = {n: rows[f"{door}/{n}"]["raw"][OURS]["ratio"]["median"] for n in CALLERS}
        bars = [
            _ratio_bar(f"{n} caller{'s' * (n > 1)}", ratio, True) for n, ratio in ratios.items()
        ]
        found.append((title, bars))
    return found


def _ratio_bar(name: str, ratio: float, ours: bool) -> Bar:
    return Bar(f"{name} {_number(ratio)}×", ratio, ours)


def _ratios(title: str, base: str, groups: Groups) -> str:
    values = [bar.value for _, bars in groups for bar in bars]
    low, high = min(0.5, *values) * 0.9, max(4.0, *values)

    def at(ratio: float) -> float:
        return LEFT + ROOM * math.log(ratio / low) / math.log(high / low)

    words = f"time per call, as a multiple of {base}; log scale; left is faster"
    spoken = f"{title}: time per call against {base}"
    return _plot(title, words, spoken, groups, at, 1.0, f"1×: {base}")


def _sizes(rows: Rows) -> str:
    groups: Groups = []
    for case, shown in SIZES.items():
        raw = rows[case]["raw"]
        both = {OURS: raw["bytes_per_key"], BY_HAND: raw.get("floor_bytes_per_key")}
        bars = [
            Bar(f"{name} {value:.0f} B", value, name == OURS)
            for name, value in both.items()
            if value is not None
        ]
        groups.append((shown, bars))
    most = max(bar.value for _, bars in groups for bar in bars)

    def at(value: float) -> float:
        return LEFT + ROOM * value / most

    title = "Bytes per key"
    words = "with its index, for a result of 200 bytes; shorter is better"
    return _plot(title, words, f"{title}, {words}", groups, at, 0.0, "")


def _plot(
    title: str,
    words: str,
    spoken: str,
    groups: Groups,
    at: Callable[[float], float],
    base: float,
    base_words: str,
) -> str:
    """Horizontal bars in groups, from the base line to their values."""
    body = [text(20, 26, title, "strong", size=16), text(20, 44, words, "quiet", size=12)]
    y = float(TOP)
    for label, bars in groups:
        body.append(text(LEFT - 22, y + BAR * len(bars) / 2 + 5, label, anchor="end", size=13))
        for bar in bars:
            a, b = sorted((at(base), at(bar.value)))
            body.append(
                f'<rect class="{"bar" if bar.ours else "peer"}" x="{a:.1f}" y="{y + 2:.0f}" '
                f'width="{max(b - a, 1.5):.1f}" height="{BAR - 4}"/>'
            )
            weight = "strong" if bar.ours else "quiet"
            body.append(
                text(max(b, at(base)) + 8, y + BAR - 5, bar.words, f"{weight} halo", size=12)
            )
            y += BAR
        y += GROUP
    line = at(base)
    body.insert(2, f'<path class="edge" d="M{line:.1f},{TOP - 6} V{y - GROUP + 6:.0f}"/>')
    if base_words:
        body.append(text(line, y + 4, base_words, "quiet", "middle", 12))
    return document(LEFT + ROOM + RIGHT, y + 20, spoken, body)


def _number(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.2f}"
