"""How ``twicesafe plan`` shows a plan: answers, curves, and tables of stores and keys."""

from __future__ import annotations

import math
from dataclasses import asdict

from rich.text import Text

from .. import planning
from .._values.quantities import bytes_text, duration_text, percent_text, share_text
from ..planning._charts import Chart, charts
from .output import Screen, table
from .plot import plotted

__all__ = ["measured_data", "print_plan"]


_UNPRICED = "left out: add --duplicate-price and --storage-price, and --fixed-price for the server"


def print_plan(screen: Screen, found: planning.Plan, measured: planning.Measured | None) -> None:
    if measured is not None:
        _print_measured(screen, measured)
    _print_answers(screen, found)
    for chart in charts(found):
        _print_chart(screen, chart)
    _print_storage(screen, found)
    _print_collisions(screen, found)


def _print_measured(screen: Screen, measured: planning.Measured) -> None:
    rate = "" if measured.new_keys is None else f", {measured.new_keys:,.3g} new keys per second"
    screen.say(
        Text(
            f"measured: {measured.records:,} newest records{rate}, results of {measured.result:,.0f} bytes",
            "dim",
        )
    )
    if measured.late:
        screen.say(
            Text(
                f"! {measured.late:,} of them are duplicates that came after the window and ran again",
                "yellow",
            )
        )


def _print_answers(screen: Screen, found: planning.Plan) -> None:
    load = found.workload
    made = table("", "", header=False)
    made.columns[0].style = "dim"
    made.add_row(
        "deliveries",
        f"{load.deliveries:,.4g} per second, {percent_text(load.duplicate_share)} duplicates",
    )
    made.add_row("window", duration_text(found.window))
    bound = found.outside_at_most
    more = "" if bound is None else f"; at most {percent_text(bound)} with 95 % confidence"
    made.add_row("covers", f"{percent_text(1 - found.outside)} of the duplicates{more}")
    made.add_row(
        "run twice", f"{_few(found.late_per_day)} per day, {_few(found.late_per_year)} per year"
    )
    needed = found.window_for_risk
    made.add_row(
        f"for {percent_text(found.risk)} risk",
        "no window is long enough"
        if math.isinf(needed)
        else f"a window of {duration_text(needed, up=True)}",
    )
    if found.cost is None:
        made.add_row("cost", Text(_UNPRICED, "dim"))
    if found.cost is not None and found.best is not None and found.returns is not None:
        best, returns = found.best, found.returns
        made.add_row("cost", f"{_cost(found.cost)}")
        made.add_row("best window", f"{duration_text(best.window)}: {_cost(best)}")
        ratio = "∞" if math.isinf(returns.ratio) else f"{returns.ratio:,.3g}"
        made.add_row(
            "return",
            f"{returns.saved:,.2f} per month saved of {returns.unprotected:,.2f}, {ratio} for each 1 spent",
        )
    screen.out.print(made)


def _cost(cost: planning.Cost) -> str:
    return (
        f"{cost.total:,.2f} per month ({cost.storage:,.2f} storage, {cost.fixed:,.2f} fixed, "
        f"{cost.late_duplicates:,.2f} late duplicates)"
    )


def _print_chart(screen: Screen, chart: Chart) -> None:
    screen.say()
    words = ", ".join(words for _, words in chart.marks)
    screen.say(Text(f"{chart.title} (┊ {words})", "bold"))
    wide = max(20, min(60, screen.out.width - 14))
    shown = share_text if chart.percent else (lambda value: f"{value:,.3g}")
    for line in plotted(chart.points, chart.marks[0][0], duration_text, shown, wide):
        screen.say(line)


def _print_storage(screen: Screen, found: planning.Plan) -> None:
    screen.say()
    made = table(
        "store",
        "bytes per key",
        "records",
        "size",
        "growth per day",
        "sweeping",
        "memory while saving",
    )
    for column in made.columns[1:]:
        column.justify = "right"
    for each in found.storage:
        saving, sweep = each.memory_while_saving, each.sweep_share
        made.add_row(
            Text(f"{each.store} ←" if each.store == found.store else each.store,
                 "bold" if each.store == found.store else ""),
            f"{each.bytes_per_key:,.0f}",
            f"{each.records:,.0f}",
            bytes_text(each.bytes),
            bytes_text(each.growth_per_day),
            "–" if sweep is None else f"{percent_text(sweep)} of the time",
            "–" if saving is None else bytes_text(saving),
        )  # fmt: skip
    screen.out.print(made)
    screen.say(
        Text(
            f"it grows for {duration_text(found.chosen.full_after)}, then stays at this size",
            "dim",
        )
    )


def _print_collisions(screen: Screen, found: planning.Plan) -> None:
    screen.say()
    made = table("keys", "random bits", "two operations with one key, in a year")
    for each in found.collisions:
        bits = f"{each.bits} per ms" if each.per_millisecond else str(each.bits)
        made.add_row(each.keys, bits, f"{each.probability:.2g}")
    screen.out.print(made)


def _few(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 or number == 0 else f"{number:.2g}"


def measured_data(measured: planning.Measured) -> dict[str, float | int | None]:
    return asdict(measured)
