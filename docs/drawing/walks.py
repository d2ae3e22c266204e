"""Walks: which functions one call visits, as a picture of the folders and as a list of functions.

A source is a recording of ``python -m tests.house.walks``: one line per call, in the order of the calls.
"""

from __future__ import annotations

from itertools import groupby
from typing import Final, NamedTuple

from .svg import document, text

__all__ = ["Step", "listing", "steps_of", "walk"]

LEFT, WIDE, HIGH, TOP = 150, 900, 26, 44
ORDER: Final = [
    "asgi", "_edges", "inbox", "outbox", "receiver", "propagation", "events", "_runtime", "_core",
    "_values", "_transactions", "stores", "_engines",
]  # fmt: skip
"""From what users call down to the database."""


class Step(NamedTuple):
    depth: int
    file: str
    function: str
    again: bool

    @property
    def room(self) -> str:
        return self.file.partition("/")[0].removesuffix(".py")


def steps_of(source: str) -> list[Step]:
    steps = []
    for line in source.splitlines():
        depth, file, function, *again = line.split()
        steps.append(Step(int(depth), file, function, bool(again)))
    return steps


def walk(source: str, title: str) -> str:
    """Time goes to the right, one dot per call; the row is the folder that the function is in."""
    steps = steps_of(source)
    found = {step.room for step in steps}
    rows = [room for room in ORDER if room in found] + sorted(found - set(ORDER))
    apart = (WIDE - LEFT - 30) / max(1, len(steps) - 1)
    body = [text(20, 24, title, "strong")]
    for number, room in enumerate(rows):
        y = TOP + number * HIGH + HIGH / 2
        kind = "mono quiet" if room.startswith("_") else "mono"
        body.append(text(20, y + 5, room, kind, size=13))
        body.append(f'<path class="life" d="M{LEFT - 12},{y:.0f} H{WIDE - 12}"/>')
    points = [
        (LEFT + number * apart, TOP + rows.index(step.room) * HIGH + HIGH / 2)
        for number, step in enumerate(steps)
    ]
    way = " ".join(f"{x:.1f},{y:.0f}" for x, y in points)
    body.append(f'<polyline class="edge" points="{way}"/>')
    for step, (x, y) in zip(steps, points, strict=True):
        kind = "faint" if step.again else "bar"
        body.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.0f}" r="3"/>')
    return document(WIDE, TOP + len(rows) * HIGH + 14, title, body)


def listing(source: str) -> str:
    """One line per function; its file stands above it where it changes."""
    lines, file = [], ""
    for (depth, now, function), calls in groupby(
        (step for step in steps_of(source) if not step.again), key=lambda step: step[:3]
    ):
        if now != file:
            file = now
            lines.append(f"{file}")
        times = len(list(calls))
        lines.append(f"    {'· ' * depth}{function}{f'  ×{times}' if times > 1 else ''}")
    return "\n".join(lines)
