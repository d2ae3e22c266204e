"""The report as one self-contained HTML file: bars as inline SVG, and a table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final

from .scenarios import BenchPlan, BenchResult

__all__ = ["as_data", "as_html", "duration", "rate", "round_trips"]

ROW, BAR, LABEL, WIDTH = 26, 16, 300, 860
FILLS: Final = {"sync": "#2563a8", "async": "#1f8a5b"}

STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 56rem; padding: 0 1rem;
  color: #1c2430; background: #fff }
table { border-collapse: collapse; width: 100% } td, th { padding: .3rem .6rem; text-align: right }
td:first-child, th:first-child { text-align: left } tr + tr { border-top: 1px solid #d8dee6 }
svg text { font: 13px system-ui, sans-serif; fill: currentColor } .note { color: #5a6675 }
@media (prefers-color-scheme: dark) { body { color: #e4e9f0; background: #14181f }
  tr + tr { border-color: #333c49 } .note { color: #98a4b3 } }
"""


def duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"


def rate(result: BenchResult) -> str:
    return f"{result.throughput:,.0f}/s"


def round_trips(result: BenchResult) -> str:
    if result.round_trips is None:
        return "–"
    return f"{result.round_trips:.2f}".rstrip("0").rstrip(".")


def as_data(
    url: str, plan: BenchPlan, results: Sequence[BenchResult], version: str
) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "store": url,
        "version": version,
        "seconds": plan.seconds,
        "results": [
            {
                "scenario": each.scenario.name,
                "mode": each.scenario.mode,
                "callers": each.scenario.callers,
                "batch": each.scenario.batch or None,
                "messages": each.messages,
                "seconds": round(each.seconds, 6),
                "per_second": round(each.throughput, 1),
                "p50_ms": round(each.p50 * 1e3, 4),
                "p99_ms": round(each.p99 * 1e3, 4),
                "round_trips_per_call": None
                if each.round_trips is None
                else round(each.round_trips, 3),
            }
            for each in results
        ],
    }


def as_html(url: str, plan: BenchPlan, results: Sequence[BenchResult], version: str) -> str:
    rows = "".join(
        f"<tr><td>{escape(each.scenario.title)}</td><td>{rate(each)}</td>"
        f"<td>{duration(each.p50)}</td><td>{duration(each.p99)}</td><td>{round_trips(each)}</td></tr>\n"
        for each in results
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>twicesafe bench</title><style>{STYLE}</style></head><body>
<h1>twicesafe bench</h1>
<p class="note">{escape(url)} · twicesafe {escape(version)} · {plan.seconds:g} s per scenario · a handler
that does nothing</p>
<h2>Messages per second</h2>
{_chart(results)}
<h2>Figures</h2>
<table><tr><th>scenario</th><th>messages</th><th>p50</th><th>p99</th><th>round trips</th></tr>
{rows}</table>
<p class="note">p50 and p99 are of one call, or of one whole batch. Round trips are commands sent to the store
per call or batch; calls in the same batch share them.</p>
</body></html>
"""


def _chart(results: Sequence[BenchResult]) -> str:
    shown = [each for each in results if each.scenario.name != "herd"]
    most = max((each.throughput for each in shown), default=1.0)
    bars = "".join(_bar(number, each, most) for number, each in enumerate(shown))
    height = ROW * len(shown)
    return (
        f'<svg role="img" aria-label="messages per second" viewBox="0 0 {WIDTH} {height}"'
        f' width="100%">\n{bars}</svg>'
    )


def _bar(number: int, result: BenchResult, most: float) -> str:
    top, room = number * ROW, WIDTH - LABEL - 110
    width = max(1.0, room * result.throughput / most)
    middle = top + BAR - 2
    return (
        f'<text x="0" y="{middle}">{escape(result.scenario.title)}</text>'
        f'<rect x="{LABEL}" y="{top + 2}" width="{width:.1f}" height="{BAR}" rx="2"'
        f' fill="{FILLS[result.scenario.mode]}"/>'
        f'<text x="{LABEL + width + 6:.1f}" y="{middle}">{rate(result)}</text>\n'
    )
