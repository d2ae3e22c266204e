"""``twicesafe bench``: throughput, latency and round trips on your own store."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from .. import __version__
from .._bench.page import as_data, as_html, duration, rate, round_trips
from .._bench.place import own_place
from .._bench.scenarios import SCENARIOS, BenchPlan, BenchResult, Scenario, run
from ..errors import UsageError
from ..stores._urls import mask
from .options import JsonOption
from .output import Screen, table

__all__ = ["bench"]

BAR: Final = 14
BARS: Final = 92
"""Columns of a terminal that shows bars beside whole numbers."""


def bench(
    store: Annotated[
        str,
        typer.Option(
            "--store",
            metavar="URL",
            help="The store to measure. The bench ignores twicesafe.toml and TWICESAFE_STORE_URL: it "
            "never puts load on your configured store.",
            show_default=False,
        ),
    ],
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", metavar="N", min=0.05, max=600, help="How long each scenario runs."
        ),
    ] = 1.0,
    callers: Annotated[
        list[int] | None,
        typer.Option(
            "--callers",
            metavar="N",
            min=1,
            max=2000,
            help="Concurrent threads or tasks; repeat for several.",
            show_default="1 and 50",
        ),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(
            "--batch",
            metavar="N",
            min=1,
            max=100_000,
            help="Messages per batch; repeat for several.",
            show_default="100",
        ),
    ] = None,
    scenarios: Annotated[
        str,
        typer.Option(
            "--scenarios", metavar="LIST", help="Comma-separated: first, duplicate, batch, herd."
        ),
    ] = ",".join(SCENARIOS),
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Also write the report to this file, with a chart.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Measure your own store: throughput, p50, p99, round trips.

    It uses a separate table, prefix or file next to yours, and removes it at the end.
    Example: [cyan]twicesafe bench --store postgresql:///shop --html bench.html[/]
    """
    screen = Screen(json)
    plan = BenchPlan(seconds, tuple(callers or (1, 50)), tuple(batch or (100,)), _chosen(scenarios))
    if html is not None:
        _check_writable(html)
    with _ended_by_signals(), own_place(store) as place, _progress(screen, plan) as watch:
        results = list(run(place, plan, watch))
    url = mask(store)
    if html is not None:
        html.write_text(as_html(url, plan, results, __version__), "utf-8")
    if json:
        screen.data(as_data(url, plan, results, __version__))
        return
    screen.place(url)
    _show(screen, results)
    if html is not None:
        screen.say(Text("✓", "green"), f"written: {html}")


def _check_writable(path: Path) -> None:
    """Fail before the measurement, not after it. An existing file is kept until the end."""
    try:
        path.open("a").close()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _chosen(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in SCENARIOS:
            raise UsageError(f"there is no scenario {name[:40]!r}; known: {', '.join(SCENARIOS)}")
    if not names:
        raise UsageError(f"--scenarios is empty; known: {', '.join(SCENARIOS)}")
    return names


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM ends the command like Ctrl-C, so that the tables it created are removed."""

    def end(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _progress(screen: Screen, plan: BenchPlan) -> Iterator[Any]:
    columns = (TextColumn("{task.description:<44}"), BarColumn(18), MofNCompleteColumn())
    silent = not screen.err.is_terminal
    with Progress(*columns, console=screen.err, transient=True, disable=silent) as progress:
        task = progress.add_task("opening", total=len(plan.all_steps()))

        def watch(step: Scenario, number: int, _: int) -> None:
            progress.update(task, description=f"{step.title} ({step.mode})", completed=number)

        yield watch


def _show(screen: Screen, results: Sequence[BenchResult]) -> None:
    """A narrow terminal shows no bars and wraps the names: the numbers are always whole."""
    bars = [""] if screen.out.width >= BARS else []
    made = table("scenario", "messages", *bars, "p50", "p99", "round trips")
    for column in made.columns[1:]:
        column.no_wrap, column.justify = True, "right" if column.header else "left"
    most = max((r.throughput for r in results if r.scenario.name != "herd"), default=1.0)
    for each in results:
        is_herd = each.scenario.name == "herd"
        cells = 0 if is_herd else max(1, round(BAR * each.throughput / most))
        style = "blue" if each.scenario.mode == "sync" else "green"
        made.add_row(
            each.scenario.title.replace("herd: ", "").replace("on one key of 200 ms", "on one key"),
            "–" if is_herd else rate(each),
            *[Text("█" * cells, style) for _ in bars],
            duration(each.p50),
            duration(each.p99),
            round_trips(each),
        )
    screen.out.print(made)
    screen.say(
        "p50 and p99 of one call, or of one batch. Round trips: commands to the store (SQLite: statements).",
    )
