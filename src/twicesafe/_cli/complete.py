"""``twicesafe complete``: run durable functions that are due, until SIGTERM or Ctrl-C.

The module is imported, so that its durable functions are known. The receiver is the user's own, with its
store, its policies and its observers.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Annotated, Any

import typer
from rich.text import Text

from ..errors import StoreUnavailableError, UsageError
from ..receiver import AsyncReceiver, Receiver
from ..receiver._completer import CompletionReport
from ..stores._urls import mask
from .exits import NO, report_error
from .loading import import_here, load_receiver
from .metrics import MetricsOption, MetricsPage, metrics_page
from .options import ConfigOption, JsonOption, duration, flag
from .output import Screen, counted
from .progress import status_line
from .settings import settled
from .stopping import interruptible

__all__ = ["complete"]


def complete(
    receiver: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:RECEIVER",
            help="Your receiver, importable from here; the module must import its durable functions.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[bool, flag("--once", help="Run what is due now, then exit.")] = False,
    every: Annotated[
        float | None,
        typer.Option(
            "--every",
            metavar="DURATION",
            parser=duration(0.01),
            help="How often to look for due runs. Default: 1s.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=1,
            help="Runs to find in each round, at most. Default: 1000.",
            show_default=False,
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            metavar="N",
            min=1,
            help="Runs to continue at once. Default: 8.",
            show_default=False,
        ),
    ] = None,
    metrics: MetricsOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    r"""Continue durable runs that were abandoned, are due, or got their signal.

    Start it on any number of nodes: a claim decides which of them gets a run. SIGTERM and Ctrl-C finish the runs that
    have started. With --once the exit status is 1 if a run failed or was parked.
    Settings: also \[complete] in twicesafe.toml, or variables like TWICESAFE_COMPLETE_EVERY.
    Example: [cyan]twicesafe complete shop.orders:receiver[/]
    """
    screen = Screen(json)
    given = {
        "receiver": receiver,
        "every": every,
        "limit": limit,
        "concurrency": concurrency,
        "metrics": metrics,
    }
    options = settled(("complete",), None, config, {"complete": given})[1].section("complete")
    if not options.receiver:
        raise UsageError(
            "which receiver? Give MODULE:RECEIVER, such as shop.orders:receiver, or set receiver in the "
            "section [complete]"
        )
    import_here()
    found = load_receiver(options.receiver)
    if not found._durables:
        raise UsageError(
            f"{options.receiver} has no durable functions: the module must define or import them"
        )
    screen.place(f"{mask(found.store.url)} · {counted(len(found._durables), 'durable function')}")
    began, report = time.monotonic(), CompletionReport()
    with (
        metrics_page(screen, options.metrics) as page,
        status_line(screen, "waiting for due runs", lambda: _said(report)),
    ):
        page.observe(found)
        if isinstance(found, AsyncReceiver):
            asyncio.run(_run_async(screen, found, options, report, once, page))
        else:
            _run(screen, found, options, report, once, page)
    if json:
        counts = {name: getattr(report, name) for name in report.__struct_fields__}
        screen.data({**counts, "seconds": round(time.monotonic() - began, 3)})
    is_good = not (report.failed or report.parked)
    screen.say(Text("✓", "green") if is_good else Text("!", "yellow"), _said(report))
    if once and not is_good:
        raise typer.Exit(NO)


def _run(
    screen: Screen,
    receiver: Receiver,
    options: Any,
    report: CompletionReport,
    once: bool,
    page: MetricsPage,
) -> None:
    with receiver, page.watching(receiver):
        completer = receiver.completer(options.every, concurrency=options.concurrency)
        completer._report_to(report, partial(_on_error, screen), options.limit)
        with interruptible(completer.stop) as stop:
            if once:
                receiver._complete_round(options.limit, options.concurrency, report, stop.is_set)
            else:
                completer.run()


async def _run_async(
    screen: Screen,
    receiver: AsyncReceiver,
    options: Any,
    report: CompletionReport,
    once: bool,
    page: MetricsPage,
) -> None:
    loop = asyncio.get_running_loop()
    async with receiver, page.watching_async(receiver):
        completer = receiver.completer(options.every, concurrency=options.concurrency)
        completer._report_to(report, partial(_on_error, screen), options.limit)

        def halt() -> None:
            loop.call_soon_threadsafe(completer._halt)

        with interruptible(halt) as stop:
            if once:
                await receiver._complete_round(
                    options.limit, options.concurrency, report, stop.is_set
                )
            else:
                await completer.run()


def _on_error(screen: Screen, error: Exception) -> None:
    if not isinstance(error, StoreUnavailableError):
        raise error
    report_error(screen, error)  # it may be back by the next look


def _said(report: CompletionReport) -> str:
    return (
        f"{counted(report.found, 'run')} found: {report.completed:,} completed, "
        f"{report.suspended:,} suspended, {report.failed:,} failed, {report.parked:,} parked, "
        f"{report.skipped:,} taken by others"
    )
