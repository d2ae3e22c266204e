"""``twicesafe follow``: copy the records of one store to another, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.text import Text

from .._core.searching import named_ids
from ..errors import StoreUnavailableError, UsageError
from ..regions import AsyncRegions, Copied, Follower
from ..stores._urls import is_missing, mask, name_of
from .exits import NO, UNAVAILABLE, CommandEnded, report_error
from .loading import import_here, load_regions
from .options import JsonOption, duration, flag
from .output import Screen, counted
from .progress import status_line
from .stopping import interruptible

__all__ = ["follow"]


def follow(
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="URL",
            help="Store to copy from; or the name of its region, with MODULE:REGIONS.",
            show_default=False,
        ),
    ],
    target: Annotated[
        str,
        typer.Option("--to", metavar="URL", help="Store to copy to, likewise.", show_default=False),
    ],
    regions: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:REGIONS",
            help="Your Regions, importable from here: it knows which home a key has.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="Name of the source: its region. The target keeps the progress under this name. Default: the "
            "source's URL without secrets, and without options that do not say which store it is. Your Regions know it.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[bool, flag("--once", help="Copy what has changed, then exit.")] = False,
    every: Annotated[
        float,
        typer.Option(
            "--every",
            metavar="DURATION",
            parser=duration(0.01),
            help="Pause between two passes, like 5s.",
        ),
    ] = 1.0,
    overlap: Annotated[
        float | None,
        typer.Option(
            "--overlap",
            metavar="DURATION",
            parser=duration(0),
            help="How much of the last pass to read again, like 90s, for clocks that differ. Default: 60s, or that of "
            "your Regions.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Copy records from one store to another, which may be of another kind, and keep copying.

    It never replaces a newer record in the target. So you can run it during deliveries, in two places at once, and
    again after a crash: it continues after the last complete pass. With --json it prints one line per pass. Exit status 1 if a record cannot be read, the target refused one, an unfinished one is late, or the source is in doubt after a failover.
    If the regions serve keys of several homes, give your Regions, and the names of two regions.
    Example: [cyan]twicesafe follow --from postgresql://eu/shop --to postgresql://us/shop --name eu[/]
    Example: [cyan]twicesafe follow shop.places:regions --from eu --to us[/]
    """
    screen = Screen(json)
    report = Copied()

    def said() -> str:
        unread = f", {report.unreadable_count:,} unreadable" if report.unreadable_count else ""
        late = f", {report.late:,} late" if report.late else ""
        return (
            f"{counted(report.examined, 'record')} examined, {report.copied:,} copied, {report.newer:,} newer in "
            f"the target, {report.skipped:,} skipped{unread}{late}; {report.took:.1f} s"
        )

    def tell(found: Copied | StoreUnavailableError) -> None:
        nonlocal report
        if isinstance(found, StoreUnavailableError):
            report_error(screen, found)  # it may be back by the next pass
            return
        report = found
        if json:
            counts = {each: getattr(found, each) for each in found.__struct_fields__}
            screen.data({**counts, "took": round(found.took, 3)}, indent=None)

    if regions is None:
        name = name_of(source) if name is None else name
        run = _of_urls(source, target, name, 60.0 if overlap is None else overlap)
        screen.place(f"{mask(source)} → {mask(target)} as {name}")
    elif name is not None or overlap is not None:
        raise UsageError("--name and --overlap are those of your Regions: leave them out")
    else:
        run = _of_regions(regions, source, target)
        screen.place(f"{source} → {target} of {regions}")
    with status_line(screen, "copying", said):
        run(None if once else every, tell)
    problems = _problems(report, mask(source), mask(target))
    screen.say(Text("!", "yellow") if problems else Text("✓", "green"), said())
    if problems:
        raise CommandEnded("; ".join(problems), NO)


_Run = Callable[[float | None, Callable[[Any], None]], None]
"""Copies once, or with this pause between two passes."""


def _of_urls(source: str, target: str, name: str, overlap: float) -> _Run:
    if is_missing(source):
        raise CommandEnded(f"there is no store at {mask(source)}: check --from", UNAVAILABLE)

    def run(every: float | None, tell: Callable[[Any], None]) -> None:
        with Follower.open(source, target, name=name, overlap=overlap) as follower:
            _run(follower, every, tell)

    return run


def _of_regions(named: str, source: str, target: str) -> _Run:
    import_here()
    regions = load_regions(named)

    def run(every: float | None, tell: Callable[[Any], None]) -> None:
        if isinstance(regions, AsyncRegions):
            asyncio.run(_run_async(regions, source, target, every, tell))
            return
        with regions:
            _run(regions.follower(source, target), every, tell)

    return run


def _run(follower: Follower, every: float | None, tell: Callable[[Any], None]) -> None:
    if every is None:
        tell(follower.once())
        return
    with interruptible(follower.stop):
        follower.run(every, tell=tell)


async def _run_async(
    regions: AsyncRegions,
    source: str,
    target: str,
    every: float | None,
    tell: Callable[[Any], None],
) -> None:
    loop = asyncio.get_running_loop()
    async with regions:
        follower = regions.follower(source, target)
        if every is None:
            tell(await follower.once())
            return

        def stop() -> None:
            loop.call_soon_threadsafe(follower.stop)

        with interruptible(stop):
            await follower.run(every, tell=tell)


def _problems(report: Copied, source: str, target: str) -> list[str]:
    """Everything that the last pass could not copy, by name."""
    found = []
    if report.in_doubt:
        found.append(
            f"{source} is in doubt about the keys of {', '.join(report.in_doubt)}: nothing is copied from it "
            "until regions.settle() has ended"
        )
    if report.late:
        found.append(
            f"did not copy {counted(report.late, 'unfinished record')}: keys were moved to {target}, or are being moved. "
            "If a switch or a failover was interrupted, repeat it; if only the keys of some homes were moved, give your "
            "Regions, which know them: twicesafe follow MODULE:REGIONS --from REGION --to REGION"
        )
    if report.unreadable_count:
        found.append(
            f"did not copy {_named(report.unreadable, report.unreadable_count)}: unreadable, because damaged, "
            "written by a newer version, or forgotten by an older one; after a failover, keys without a copy are in doubt"
        )
    if report.failed_count:
        found.append(
            f"{target} refused {_named(report.failed, report.failed_count)}: look at them with twicesafe keys show --id"
        )
    return found


def _named(ids: tuple[str, ...], count: int) -> str:
    return f"{counted(count, 'record')} ({named_ids(ids)})"
