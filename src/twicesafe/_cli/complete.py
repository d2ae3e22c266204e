"""``twicesafe complete``: run durable functions that are due, until SIGTERM or Ctrl-C.

The module is imported, so that its durable functions are known. The receiver is the user's own, with its
store, its policies and its observers.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import typer
from rich.text import Text

from ..errors import StoreUnavailableError, UsageError
from ..receiver import AsyncReceiver, Receiver
from ..receiver._completer import CompletionReport
from ..stores._urls import mask
from .exits import NO, report_error
from .loading import import_here, load_receiver
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
    given = {"receiver": receiver, "every": every, "limit": limit, "concurrency": concurrency}
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
    with status_line(screen, "waiting for due runs", lambda: _said(report)):
        if isinstance(found, AsyncReceiver):
            asyncio.run(_run_async(screen, found, options, report, once))
        else:
            _run(screen, found, options, report, once)
    if json:
        counts = {name: getattr(report, name) for name in report.__struct_fields__}
        screen.data({**counts, "seconds": round(time.monotonic() - began, 3)})
    is_good = not (report.failed or report.parked)
    screen.say(Text("✓", "green") if is_good else Text("!", "yellow"), _said(report))
    if once and not is_good:
        raise typer.Exit(NO)


def _run(
    screen: Screen, receiver: Receiver, options: Any, report: CompletionReport, once: bool
) -> None:
    with receiver, interruptible() as stop:
        while True:
            before = report.found
            try:
                receiver._complete_round(options.limit, options.concurrency, report, stop.is_set)
            except StoreUnavailableError as error:
                if once:
                    raise
                report_error(screen, error)  # it may be back by the next round
            if once or stop.is_set():
                return
            if report.found - before < options.limit and stop.wait(options.every):
                return


async def _run_async(
    screen: Screen, receiver: AsyncReceiver, options: Any, report: CompletionReport, once: bool
) -> None:
    loop, wake = asyncio.get_running_loop(), asyncio.Event()

    def on_stop() -> None:
        loop.call_soon_threadsafe(wake.set)

    with interruptible(on_stop) as stop:
        async with receiver:
            while True:
                before = report.found
                try:
                    await receiver._complete_round(
                        options.limit, options.concurrency, report, stop.is_set
                    )
                except StoreUnavailableError as error:
                    if once:
                        raise
                    report_error(screen, error)
                if once or stop.is_set():
                    return
                if report.found - before < options.limit:
                    try:
                        async with asyncio.timeout(options.every):
                            await wake.wait()
                    except TimeoutError:
                        continue
                    return


def _said(report: CompletionReport) -> str:
    return (
        f"{counted(report.found, 'run')} found: {report.completed:,} completed, "
        f"{report.suspended:,} suspended, {report.failed:,} failed, {report.parked:,} parked, "
        f"{report.skipped:,} taken by others"
    )
