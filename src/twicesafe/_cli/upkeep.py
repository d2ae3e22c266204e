"""``twicesafe stats``, ``sweep``, ``doctor`` and ``migrate``: check and maintain the store."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl, urlencode

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from .. import Receiver, State
from .._core.outbox_requests import Prepare
from .._values.records import SweepReport
from ..errors import StoreUnavailableError, UsageError
from ..receiver._maintenance import RoundTimer, sweep_round
from ..stores._urls import mask, outbox_script_of, script_of
from .config import Settings, existing, opened, settle
from .exits import NO, report_error
from .options import ConfigOption, JsonOption, StoreOption, duration, flag
from .output import STATES, Screen, ago, state_text, table, visible

__all__ = ["doctor", "interruptible", "migrate", "stats", "sweep"]

BAR: Final = 12


def stats(store: StoreOption = None, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Count the keys in each state, and show overdue work.

    Example: [cyan]twicesafe stats --store sqlite:///keys.db[/]
    """
    screen = Screen(json)
    with opened(existing(store, config)) as receiver:
        found, url = receiver.stats(), receiver.store.url
    oldest = found.oldest_in_progress
    if json:
        screen.data(
            {
                "store": url,
                "total": found.total,
                "by_state": {state.value: found.by_state.get(state, 0) for state in State},
                "stuck": found.stuck,
                "expired": found.expired,
                "oldest_in_progress": None if oldest is None else oldest.isoformat(),
            }
        )
        return
    screen.place(url)
    made = table("state", "keys", "", "")
    for column in made.columns:
        column.no_wrap = True
    made.columns[0].min_width, made.columns[1].min_width = 11, 5
    made.columns[1].justify = "right"
    most = max(found.by_state.values(), default=0)
    for state in State:
        number = found.by_state.get(state, 0)
        style, meaning = STATES[state]
        made.add_row(
            state_text(state),
            f"{number:,}",
            Text(_bar(number, most), style),
            Text(meaning if number else "", "dim"),
        )
    screen.out.print(made)
    screen.say(f"{found.total:,} keys;", f"{found.expired:,} past their retention (`sweep`)")
    if oldest is not None:
        late = f", {found.stuck:,} past their lease (taken over at their next delivery)"
        screen.say(f"oldest work in progress: {ago(oldest)}{late if found.stuck else ''}")


def _bar(number: int, most: int) -> str:
    """A bar relative to the largest number; any number above zero shows at least half a block."""
    cells = number * BAR * 2 // most if most else 0
    return "█" * (cells // 2) + ("▌" if cells % 2 or (number and not cells) else "")


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
            parser=duration(0.01),
            help="Repeat at this interval until Ctrl-C or SIGTERM; outages do not end it.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Remove records past their retention, in small batches.

    Example: [cyan]twicesafe sweep --every 1h[/]
    """
    screen = Screen(json)
    with opened(settle(store, config)) as receiver, interruptible() as stop:
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
    columns: tuple[Any, ...] = (TextColumn("sweeping"), BarColumn(), MofNCompleteColumn())
    removed = examined = 0
    with Progress(*columns, TimeRemainingColumn(), console=screen.err, transient=True) as progress:
        task = progress.add_task("sweep", total=due)
        while True:
            left = None if limit is None else limit - removed
            report = receiver.sweep(share if left is None else min(share, left))
            removed += report.removed
            examined += report.examined
            progress.update(task, completed=removed)
            if not report.more or removed == limit:
                return SweepReport(removed=removed, examined=examined, more=report.more)


@contextmanager
def interruptible(on_stop: Callable[[], None] | None = None) -> Iterator[threading.Event]:
    """SIGINT and SIGTERM set the event, so the command finishes its current batch and exits with 0.

    ``on_stop`` is called at the same time, for work that does not check the event. A second signal
    raises `KeyboardInterrupt`.
    """
    stop = threading.Event()

    def handle(_: int, __: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        if on_stop is not None:
            on_stop()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_MARKS: Final = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "refuse": ("✗", "bold red")}


def doctor(
    store: StoreOption = None, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """Check the settings that the guarantees depend on; status 1 if one fails.

    Example: [cyan]twicesafe doctor && systemctl start shop[/]
    """
    screen = Screen(json)
    settings = existing(store, config)
    with opened(settings) as receiver:
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

    For stores opened with ?migrate=false; other stores migrate when they are opened.
    Example: [cyan]twicesafe migrate --store "sqlite:///keys.db?migrate=false"[/]
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
    with opened(Settings(_migrating(settings.url), settings.source, settings.policy)) as receiver:
        opening = receiver.store
        if outbox and not opening.capabilities.outbox:
            raise UsageError(f"{opening.url} does not support an outbox: leave --outbox out")
        done, url = [*opening.migrated, *opening.migrate()], opening.url
        if outbox:
            done += opening.outbox.perform(Prepare(migrate=True))
    if json:
        screen.data({"store": url, "done": done})
        return
    for step in done or ["the schema is up to date"]:
        screen.say(Text("✓", "green"), visible(step))


def _migrating(url: str) -> str:
    """The same URL without ``migrate=false``: this command migrates even those stores."""
    head, _, query = url.partition("?")
    if "migrate" not in query:
        return url
    kept = [(name, value) for name, value in parse_qsl(query, True) if name != "migrate"]
    return f"{head}?{urlencode(kept)}" if kept else head
