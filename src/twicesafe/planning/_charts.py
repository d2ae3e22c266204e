"""Charts: the risk and the cost of windows as SVG, on logarithmic axes, for light and dark pages.

The terminal shows the same points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from .._values.quantities import duration_text, share_text
from ._costs import cost_curve
from ._plan import Plan

__all__ = ["Chart", "charts", "cost_chart", "risk_chart", "svg"]

LEFT, TOP, WIDE, HIGH, GAP = 76, 58, 520, 220, 78
LEAST_RISK: Final = 1e-9
"""A risk below this is drawn at the bottom."""
POINTS: Final = 97
_TICKS: Final = (
    (1, "1s"), (10, "10s"), (60, "1m"), (600, "10m"), (3600, "1h"), (6 * 3600, "6h"), (86400, "1d"),
    (7 * 86400, "7d"), (30 * 86400, "30d"), (365 * 86400, "1y"),
)  # fmt: skip
_STYLE: Final = (
    "svg{--paper:#fff;--ink:#1f2933;--quiet:#52606d;--line:#cbd5e0;--curve:#00796b;--mark:#c62828}"
    "@media (prefers-color-scheme:dark){svg{--paper:#1b222b;--ink:#e6edf3;--quiet:#a9b4c0;"
    "--line:#3b4754;--curve:#4db6ac;--mark:#ff8a80}}"
    ".paper{fill:var(--paper)}text{fill:var(--ink)}.quiet{fill:var(--quiet)}.strong{font-weight:600}"
    ".grid{stroke:var(--line);fill:none}.curve{stroke:var(--curve);stroke-width:2.5;fill:none}"
    ".mark{stroke:var(--mark);stroke-width:1.5;stroke-dasharray:5 4;fill:none}.marked{fill:var(--mark)}"
)


class Chart(NamedTuple):
    """One curve over windows: points, and windows that are marked with words."""

    title: str
    words: str
    points: Sequence[tuple[float, float]]
    marks: Sequence[tuple[float, str]]
    percent: bool


def charts(plan: Plan) -> list[Chart]:
    """All charts of a plan."""
    return [risk_chart(plan), *([] if plan.prices is None else [cost_chart(plan)])]


def risk_chart(plan: Plan) -> Chart:
    delays = plan.workload.delays
    points = [(w, max(delays.outside(w), LEAST_RISK)) for w in _windows(plan)]
    return Chart(
        "Duplicates that come after the window",
        "share of duplicates, by window; both axes are logarithmic",
        points,
        [(plan.window, f"window {duration_text(plan.window)}")],
        percent=True,
    )


def cost_chart(plan: Plan) -> Chart:
    assert plan.prices is not None
    assert plan.best is not None
    found = cost_curve(plan.workload, plan.store, plan.prices, _windows(plan))
    least = max(max(each.total for each in found) * LEAST_RISK, 1e-300)
    return Chart(
        f"Cost per month on {plan.store}",
        "storage, fixed price and late duplicates, by window; both axes are logarithmic",
        [(each.window, max(each.total, least)) for each in found],
        [(plan.best.window, f"best {duration_text(plan.best.window)}")],
        percent=False,
    )


def _windows(plan: Plan) -> list[float]:
    """Windows at equal distances on a logarithmic axis, around those that matter."""
    best = plan.best.window if plan.best else 0.0
    of_interest = (plan.window, plan.window_for_risk, best, plan.workload.delays.window(1e-6))
    shown = [w for w in of_interest if 0 < w < math.inf]
    high = 3 * max([*shown, 60.0])
    low = min(60.0, high / 1000)
    even = [low * (high / low) ** (n / (POINTS - 1)) for n in range(POINTS)]
    # A step or a bend of the curve is drawn where it is, not at the next point.
    bends = plan.workload.delays.knots
    exact = [*shown, *(bends if len(bends) < POINTS else ())]
    return sorted({*even, *(w for w in exact if low <= w <= high)})


def svg(plan: Plan) -> str:
    """One document with all charts of a plan."""
    found = charts(plan)
    high = TOP + len(found) * (HIGH + GAP)
    body = [part for n, chart in enumerate(found) for part in _panel(chart, TOP + n * (HIGH + GAP))]
    words = "; ".join(chart.title for chart in found)
    wide = LEFT + WIDE + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" '
        f'height="{high}" role="img" font-family="system-ui,sans-serif" font-size="13">\n'
        f"<title>{escape(words)}</title>\n<style>{_STYLE}</style>\n"
        f'<rect class="paper" width="{wide}" height="{high}" rx="8"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _panel(chart: Chart, top: float) -> list[str]:
    xs, ys = [x for x, _ in chart.points], [y for _, y in chart.points]
    x_low, x_high = min(xs), max(xs)
    y_low, y_high = 10 ** math.floor(math.log10(min(ys))), 10 ** math.ceil(math.log10(max(ys)))
    y_high = max(y_high, y_low * 10)

    def across(x: float) -> float:
        return LEFT + WIDE * math.log(x / x_low) / math.log(x_high / x_low)

    def up(y: float) -> float:
        return top + HIGH * (1 - math.log(y / y_low) / math.log(y_high / y_low))

    parts = [
        _text(LEFT, top - 28, chart.title, "strong", size=15),
        _text(LEFT, top - 11, chart.words, "quiet", size=12),
    ]
    for second, name in _TICKS:
        if x_low <= second <= x_high:
            x = across(second)
            parts.append(f'<path class="grid" d="M{x:.1f},{top} V{top + HIGH}"/>')
            parts.append(_text(x, top + HIGH + 18, name, "quiet", "middle"))
    decades = round(math.log10(y_high / y_low))
    for decade in range(0, decades + 1, max(1, -(-decades // 6))):
        value = y_low * 10**decade
        parts.append(f'<path class="grid" d="M{LEFT},{up(value):.1f} H{LEFT + WIDE}"/>')
        shown = share_text(value) if chart.percent else f"{value:,g}"
        parts.append(_text(LEFT - 8, up(value) + 4, shown, "quiet", "end"))
    line = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in chart.points)
    parts.append(f'<polyline class="curve" points="{line}"/>')
    for window, words in chart.marks:
        if x_low <= window <= x_high:
            x = across(window)
            parts.append(f'<path class="mark" d="M{x:.1f},{top} V{top + HIGH}"/>')
            end = x > LEFT + WIDE * 0.7
            parts.append(
                _text(x + (-6 if end else 6), top + 14, words, "marked", "end" if end else "start")
            )
    return parts


def _text(
    x: float, y: float, words: str, kind: str, anchor: str = "start", size: float = 12
) -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" '
        f'font-size="{size:g}">{escape(words)}</text>'
    )
