"""``twicesafe sweep``, ``doctor`` and ``migrate``: check and maintain the store."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import parse_qsl, urlencode

import typer
from rich.text import Text

from .. import Receiver
from .._core.outbox.requests import Prepare
from .._values.records import SweepReport
from ..errors import StoreUnavailableError, UsageError
from ..receiver._maintenance import RoundTimer, sweep_round
from ..stores._base import Store
from ..stores._urls import mask, outbox_script_of, script_of
from .exits import NO, report_error
from .options import ConfigOption, JsonOption, StoreOption, duration, flag
from .output import Screen, table, visible
from .progress import progress_bar, while_reading
from .settings import opened, settle, settled
from .stopping import interruptible

__all__ = ["doctor", "migrate", "sweep"]


def sweep(
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", min=1, help="Remove at most N records.", show_default=False
        ),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(
            "--every",
            metavar="DURATION",
            parser=duration(0.05),
            help="Repeat at this interval until Ctrl-C or SIGTERM; outages do not end it.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    r"""Remove records past their retention, in small batches.

    Settings: also \[sweep] in twicesafe.toml, or variables like TWICESAFE_SWEEP_EVERY.
    Example: [cyan]twicesafe sweep --every 1h[/]
    """
    screen = Screen(json)
    given = {"every": every, "limit": limit}
    settings, found = settled(("sweep",), store, config, {"sweep": given})
    options = found.section("sweep")
    every, limit = options.every, options.limit
    with opened(settings) as receiver, interruptible() as stop:
        timer = None if every is None else RoundTimer(every, limit)
        while True:
            if timer is None:
                _print_swept(screen, _sweep_once(screen, receiver, limit), json)
                return
            try:
                _sweep_one_round(screen, receiver, timer, json)
            except StoreUnavailableError as error:  # it may be back by the next round
                report_error(screen, error)
            if stop.wait(timer.every):
                return


def _sweep_one_round(screen: Screen, receiver: Receiver, timer: RoundTimer, json: bool) -> None:
    outcome = sweep_round(receiver, timer)
    if outcome is None or outcome.replayed:
        screen.say("skipped: another node sweeps in this interval")
        return
    swept = outcome.value
    report = SweepReport(removed=swept["removed"], examined=swept["examined"], more=False)
    _print_swept(screen, report, json)


def _print_swept(screen: Screen, report: SweepReport, json: bool) -> None:
    if json:
        data = {"removed": report.removed, "examined": report.examined, "more": report.more}
        screen.data(data, indent=None)
    rest = "; more may be left" if report.more else ""
    screen.say(
        Text("✓", "green"),
        f"removed {report.removed:,} of {report.examined:,} records examined{rest}",
    )


def _sweep_once(screen: Screen, receiver: Receiver, limit: int | None) -> SweepReport:
    """One sweep. On a terminal a long sweep runs in twenty parts to show its progress."""
    due = receiver.stats().expired if screen.err.is_terminal else 0
    if limit is not None:
        due = min(due, limit)
    share = max(1000, -(-due // 20))
    if due <= share:
        return receiver.sweep(limit)
    removed = examined = 0
    with progress_bar(screen, "sweeping") as progress:
        task = progress.add_task("sweep", total=due)
        while True:
            left = None if limit is None else limit - removed
            report = receiver.sweep(share if left is None else min(share, left))
            removed += report.removed
            examined += report.examined
            progress.update(task, completed=removed)
            if not report.more or removed == limit:
                return SweepReport(removed=removed, examined=examined, more=report.more)


_MARKS: Final = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "refuse": ("✗", "bold red")}


def doctor(
    store: StoreOption = None, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """Check the settings that the guarantees depend on; exit status 1 if one fails.

    Example: [cyan]twicesafe doctor && systemctl start shop[/]
    """
    screen = Screen(json)
    settings = settle(store, config)
    with opened(settings) as receiver, while_reading(screen):
        findings, url = receiver.doctor(), receiver.store.url
    healthy = all(finding.level != "refuse" for finding in findings)
    if json:
        rows = [{"level": f.level, "what": f.what, "remedy": f.remedy} for f in findings]
        screen.data({"store": url, "source": settings.source, "healthy": healthy, "findings": rows})
    else:
        screen.place(url, f"  (from {settings.source})")
        made = table("", "finding", "remedy")
        for finding in findings:
            mark, style = _MARKS[finding.level]
            remedy = visible(finding.remedy) if finding.level != "ok" else ""
            made.add_row(Text(mark, style), Text(visible(finding.what)), Text(remedy))
        screen.out.print(made)
        if not healthy:
            screen.say(
                Text(
                    "✗ the guarantees do not hold on this store: fix the findings marked ✗",
                    "bold red",
                )
            )
    if not healthy:
        raise typer.Exit(NO)


def migrate(
    sql: Annotated[
        bool,
        flag("--sql", help="Only print the statements; does not connect."),
    ] = False,
    outbox: Annotated[bool, flag("--outbox", help="Also create the outbox tables.")] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Bring the store's schema up to date.

    Opening a store creates what is missing, unless its URL has ?migrate=false. Only this command moves
    existing records to a new layout. After that, nodes of older versions are refused, so upgrade them first.
    It works in small batches while nodes run, and can be interrupted and run again.
    Example: [cyan]twicesafe migrate --store sqlite:///keys.db[/]
    """
    screen = Screen(json)
    settings = settle(store, config)
    if sql:
        script = script_of(settings.url) + (outbox_script_of(settings.url) if outbox else "")
        if not script:
            raise UsageError("this store has no SQL schema: leave --sql out")
        if json:
            screen.data({"store": mask(settings.url), "sql": script})
        else:
            screen.out.print(Text(script), end="", soft_wrap=True)
        return
    with Receiver.open(_migrating(settings.url), policy=settings.policy) as receiver:
        opening = receiver.store
        if outbox and not opening.capabilities.outbox:
            raise UsageError(f"{opening.url} does not support an outbox: leave --outbox out")
        done, url = [*opening.migrated, *_migrated(screen, opening)], opening.url
        if outbox:
            done += opening.outbox.perform(Prepare(migrate=True))
    if json:
        screen.data({"store": url, "done": done})
        return
    for step in done or ["the schema is up to date"]:
        screen.say(Text("✓", "green"), visible(step))


def _migrated(screen: Screen, store: Store) -> list[str]:
    """Migrate; on a terminal a bar shows how many records are moved."""
    if not screen.err.is_terminal:
        return store.migrate()
    with progress_bar(screen, "moving records") as bar:
        moving = bar.add_task("move", total=None, visible=False)

        def tell(moved: int, total: int) -> None:
            bar.update(moving, completed=moved, total=total, visible=True)

        return store.migrate(tell)


def _migrating(url: str) -> str:
    """The same URL without ``migrate=false``: this command migrates even those stores."""
    head, _, query = url.partition("?")
    if "migrate" not in query:
        return url
    kept = [(name, value) for name, value in parse_qsl(query, True) if name != "migrate"]
    return f"{head}?{urlencode(kept)}" if kept else head
