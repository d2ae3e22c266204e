"""A curve as text, on logarithmic axes, for a terminal or a log file."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

__all__ = ["plotted"]


def plotted(
    points: Sequence[tuple[float, float]],
    marked: float,
    x_label: Callable[[float], str],
    y_label: Callable[[float], str],
    wide: int = 60,
    high: int = 10,
) -> list[str]:
    """The lines of a plot. ``marked`` is a value of x, shown as a vertical line."""
    left, right = math.log(points[0][0]), math.log(points[-1][0])
    heights = [math.log(y) for _, y in points]
    low, top = min(heights), max(heights)
    top = max(top, low + 1e-9)
    cells = [[" "] * wide for _ in range(high)]

    def column(x: float) -> int:
        return round((math.log(x) - left) / (right - left) * (wide - 1))

    if points[0][0] <= marked <= points[-1][0]:
        for row in cells:
            row[column(marked)] = "┊"
    before: int | None = None
    for x, height in zip((x for x, _ in points), heights, strict=True):
        line = high - 1 - round((height - low) / (top - low) * (high - 1))
        # A steep part of the curve would leave holes between its points.
        for each in range(min(line, line if before is None else before + 1), line + 1):
            cells[each][column(x)] = "•"
        before = line
    labels = {0: y_label(math.exp(top)), high - 1: y_label(math.exp(low))}
    margin = max(map(len, labels.values()))
    lines = [
        f"{labels.get(n, ''):>{margin}} ┤{''.join(row).rstrip()}" for n, row in enumerate(cells)
    ]
    first, last = x_label(points[0][0]), x_label(points[-1][0])
    lines.append(" " * margin + " └" + "─" * wide)
    lines.append(" " * (margin + 2) + first + last.rjust(wide - len(first)))
    return lines
