"""The charts of the overview: deliveries, ages of duplicates against the window, new keys, states. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from .._values.quantities import counted, duration_text, percent_text
from .._values.records import Record, State, Stats
from ..observers._history import Ages, Slice
from ..planning import Measured
from ._charts import Bar, Drawing, Figure, Part, draw, share_bar

__all__ = ["ages", "deliveries", "new_keys", "shares"]

HOUR: Final = 3700.0
"""Seconds of the chart of deliveries, if that much is known in fine slices."""
BINS: Final = 36
"""Bars of the chart of new keys, at most."""
_WIDTHS: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000),
)
"""Seconds of one bar."""
_OUTCOMES: Final = (
    ("first", ("first", "unprotected"), "first deliveries"),
    ("replayed", ("replayed",), "duplicates that got the recorded answer"),
    ("rerun", ("rerun",), "re-runs"),
    ("refused", ("in_progress", "mismatch", "held", "parked", "not_kept", "refused"), "refused"),
)
"""Class, outcomes of the table of metrics, words."""
_GROUPS: Final = (
    ("done", (State.COMPLETED, State.FORGOTTEN), "done"),
    ("running", (State.IN_PROGRESS, State.RELEASED, State.SUSPENDED), "in progress or free"),
    ("bad", (State.FAILED, State.HELD, State.PARKED), "failed, held or parked"),
)


def deliveries(course: list[Slice], origin: str) -> Figure:
    """Deliveries by outcome over the last hour. ``origin``: whose they are."""
    title = "Deliveries per second"
    course = [each for each in course if each.seconds > 0]
    if not any(each.outcomes for each in course):
        return Figure(title=title, note=origin, empty="No delivery has come yet.")
    lately = [each for each in course if each.ago <= HOUR]
    if len(lately) > 1:
        course = lately  # older slices are long: they would leave no room for the fine ones
    whole = max(course[0].ago, 1.0)
    bars = []
    for each in course:
        parts = tuple(
            Part(kind, sum(each.outcomes.get(name, 0) for name in names) / each.seconds)
            for kind, names, _ in _OUTCOMES
        )
        said = ", ".join(
            f"{sum(each.outcomes.get(name, 0) for name in names):,} {words}"
            for _, names, words in _OUTCOMES
            if any(name in each.outcomes for name in names)
        )
        words = (
            f"{duration_text(each.ago)} ago, for {duration_text(each.seconds)}: {said or 'none'}"
        )
        bars.append(Bar(1 - each.ago / whole, each.seconds / whole, parts, words))
    ticks = [(n / 4, f"−{_short(whole * (1 - n / 4))}") for n in range(4)]
    drawing = Drawing(bars=bars, ticks=[*ticks, (1.0, "now")])
    return Figure(
        title=title,
        note=origin,
        svgs=draw(drawing, title),
        legend=tuple((kind, words) for kind, _, words in _OUTCOMES),
    )


def ages(seen: Ages, window: float) -> Figure:
    """The age of duplicates against the window."""
    title = "Age of duplicates against the window"
    spoken = duration_text(window)
    bounds, counts, late = seen
    total = sum(counts) + late
    if not total:
        return Figure(title=title, note=f"window {spoken}", empty="No duplicate has come yet.")
    columns = [*counts[: len(bounds)], counts[-1] + late]
    edges = [0.0, *(bound * window for bound in bounds)]
    bars, ticks, each = [], [], 1 / len(columns)
    for n, count in enumerate(columns):
        inside = n < len(bounds)
        words = (
            f"{counted(count, 'duplicate')} aged {_short(edges[n])} to {_short(edges[n + 1])}"
            if inside
            else f"{counted(count, 'duplicate')} after the window"
        )
        shown = f"{count:,}" if count else ""
        bars.append(Bar(n * each, each, (Part("age" if inside else "bad", count),), words, shown))
        ticks.append((n * each, _short(edges[n])))
    covered = percent_text(1 - columns[-1] / total)
    drawing = Drawing(
        bars=bars,
        ticks=[*ticks[:-1], (len(bounds) * each, spoken)],
        logarithmic=True,
        limit=len(bounds) * each,
        limit_words=f"window {spoken}",
    )
    return Figure(
        title=title,
        note=f"the window covers {covered} of the {counted(total, 'duplicate')} seen; heights are logarithmic",
        svgs=draw(drawing, f"{title}: the window of {spoken} covers {covered}"),
        legend=(("age", "got the recorded answer"), ("bad", "came too late, ran again")),
    )


def new_keys(newest: Sequence[Record], now: datetime, measured: Measured) -> Figure:
    """The newest records over time, by what became of them."""
    title = "New keys"
    if measured.records < 2 or not measured.span:
        return Figure(title=title, empty="There are too few records to draw.")
    width = next((w for w in _WIDTHS if measured.span / w <= BINS - 2), _WIDTHS[-1])
    last = int(max(r.created_at.timestamp() for r in newest) // width)
    first = int(min(r.created_at.timestamp() for r in newest) // width)
    bins = min(last - first + 1, 10 * BINS)
    tally: dict[int, dict[str, int]] = {}
    for record in newest:
        kind = next(kind for kind, states, _ in _GROUPS if record.state in states)
        one = tally.setdefault(int(record.created_at.timestamp() // width) - first, {})
        one[kind] = one.get(kind, 0) + 1
    bars = []
    for n in range(bins):
        one = tally.get(n, {})
        parts = tuple(Part(kind, one.get(kind, 0)) for kind, _, _ in _GROUPS)
        at = datetime.fromtimestamp((first + n) * width, now.tzinfo)
        said = ", ".join(f"{one[kind]:,} {words}" for kind, _, words in _GROUPS if kind in one)
        bars.append(Bar(n / bins, 1 / bins, parts, f"{at:%Y-%m-%d %H:%M:%S} UTC: {said or 'none'}"))
    form = (
        "%d %b"
        if width >= 86400
        else "%d %b %H:%M"
        if bins * width > 86400
        else "%H:%M:%S"
        if width < 60
        else "%H:%M"
    )
    marks = [round(bins * n / 5) for n in range(5)]
    ticks = [
        (n / bins, f"{datetime.fromtimestamp((first + n) * width, now.tzinfo):{form}}")
        for n in marks
    ]
    note = (
        f"per {duration_text(width)}, by what became of them; the newest {measured.records:,}, UTC"
    )
    return Figure(
        title=title,
        note=note,
        svgs=draw(Drawing(bars=bars, ticks=ticks), title),
        legend=tuple((kind, words) for kind, _, words in _GROUPS),
    )


def shares(stats: Stats | None) -> str:
    if stats is None or not stats.total:
        return ""
    parts = [Part(f"s-{state.value}", stats.by_state.get(state, 0)) for state in State]
    return share_bar(parts, "Records by state")


def _short(seconds: float) -> str:
    """In one unit, for the axis."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= length:
            return f"{seconds / length:.2g}{unit}"
    return "0" if not seconds else f"{seconds * 1000:.0f}ms"
