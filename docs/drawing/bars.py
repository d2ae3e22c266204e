"""Bars from the published benchmark: benchmarks/results/published.json.

Each bar is the median ratio to hand-written code (the floor) of the same round, on a logarithmic
scale: a bar to the right of the line is slower than hand-written code, one to the left is faster.
"""

from __future__ import annotations

import json
import math
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
LEFT, ROOM, RIGHT, BAR, GROUP, TOP = 210, 420, 210, 18, 14, 58


def plots(published: str) -> dict[str, str]:
    """Every plot, by its name."""
    rows = {row["id"]: row for row in json.loads(published)["rows"]}
    return {
        name: _plot(title, base, _groups(rows, wanted))
        for name, (title, base, wanted) in PLOTS.items()
    }


def _groups(
    rows: dict[str, dict[str, Any]], wanted: dict[str, str]
) -> list[tuple[str, list[tuple[str, float]]]]:
    found = []
    for case, title in wanted.items():
        raw = rows[case]["raw"]
        bars = [
            (name, each["ratio"]["median"])
            for name, each in raw.items()
            if name not in NOT_SHOWN and each.get("ratio")
        ]
        found.append((title, bars))
    return found


def _plot(title: str, base: str, groups: list[tuple[str, list[tuple[str, float]]]]) -> str:
    ratios = [ratio for _, bars in groups for _, ratio in bars]
    low, high = min(0.5, *ratios) * 0.9, max(4.0, *ratios)

    def at(ratio: float) -> float:
        return LEFT + ROOM * math.log(ratio / low) / math.log(high / low)

    body = [
        text(20, 26, title, "strong", size=16),
        text(
            20,
            44,
            f"time per call, as a multiple of {base}; log scale; left is faster",
            "quiet",
            size=12,
        ),
    ]
    y = float(TOP)
    for label, bars in groups:
        body.append(text(LEFT - 22, y + BAR * len(bars) / 2 + 5, label, anchor="end", size=13))
        for name, ratio in bars:
            a, b = sorted((at(1), at(ratio)))
            kind = "bar" if name == OURS else "peer"
            body.append(
                f'<rect class="{kind}" x="{a:.1f}" y="{y + 2:.0f}" '
                f'width="{max(b - a, 1.5):.1f}" height="{BAR - 4}"/>'
            )
            weight = "strong" if name == OURS else "quiet"
            words = f"{name} {_number(ratio)}×"
            body.append(text(max(b, at(1)) + 8, y + BAR - 5, words, f"{weight} halo", size=12))
            y += BAR
        y += GROUP
    line = at(1)
    body.insert(2, f'<path class="edge" d="M{line:.1f},{TOP - 6} V{y - GROUP + 6:.0f}"/>')
    body.append(text(line, y + 4, f"1×: {base}", "quiet", "middle", 12))
    return document(LEFT + ROOM + RIGHT, y + 20, f"{title}: time per call against {base}", body)


def _number(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.2f}"
