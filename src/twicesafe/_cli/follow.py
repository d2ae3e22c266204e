"""``twicesafe follow``: copy the records of one store to another, until SIGTERM or Ctrl-C."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from .._core.searching import named_ids
from ..errors import StoreUnavailableError
from ..regions import Copied, Follower
from ..stores._urls import is_missing, mask
from .exits import NO, UNAVAILABLE, CommandEnded, report_error
from .options import JsonOption, duration, flag
from .output import Screen, counted
from .progress import status_line
from .stopping import interruptible

__all__ = ["follow"]


def follow(
    source: Annotated[
        str, typer.Option("--from", metavar="URL", help="Store to copy from.", show_default=False)
    ],
    target: Annotated[
        str, typer.Option("--to", metavar="URL", help="Store to copy to.", show_default=False)
    ],
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="Name of the source: its region. The target keeps the progress under this name. Default: the "
            "source's URL without secrets.",
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
        float,
        typer.Option(
            "--overlap",
            metavar="DURATION",
            parser=duration(0),
            help="How much of the last pass to read again, like 90s, for clocks that differ.",
        ),
    ] = 60.0,
    json: JsonOption = False,
) -> None:
    """Copy records from one store to another, which may be of another kind, and keep copying.

    It never replaces a newer record in the target. So you can run it during deliveries, in two places at once, and
    again after a crash: it continues after the last complete pass. With --json it prints one line per pass. Exit status 1 if a record cannot be read, the target refused one, an unfinished one is late, or the source is in doubt after a failover.
    Example: [cyan]twicesafe follow --from postgresql://eu/shop --to postgresql://us/shop --name eu[/]
    """
    screen = Screen(json)
    if is_missing(source):
        raise CommandEnded(f"there is no store at {mask(source)}: check --from", UNAVAILABLE)
    report = Copied()

    def said() -> str:
        unread = f", {report.unreadable_count:,} unreadable" if report.unreadable_count else ""
        return (
            f"{counted(report.examined, 'record')} examined, {report.copied:,} copied, {report.newer:,} newer in "
            f"the target, {report.skipped:,} skipped{unread}; {report.took:.1f} s"
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

    with Follower.open(source, target, name=name, overlap=overlap) as follower:
        screen.place(f"{mask(source)} → {mask(target)} as {follower.name}")
        with status_line(screen, "copying", said):
            if once:
                tell(follower.once())
            else:
                with interruptible(follower.stop):
                    follower.run(every, tell=tell)
    problems = _problems(report, mask(source), mask(target))
    screen.say(Text("!", "yellow") if problems else Text("✓", "green"), said())
    if problems:
        raise CommandEnded("; ".join(problems), NO)


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
            "If a switch or a failover was interrupted, repeat it; if only some keys were moved, copy with "
            "regions.follower(), which knows them"
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
