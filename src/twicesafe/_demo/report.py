"""The demo's output: live progress, then one table, then what the numbers mean."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from .saga import Saga
from .show import DemoRun, Show
from .storm import Traffic
from .tally import DemoTally

__all__ = ["Progressing", "as_data", "render"]

# The row's title and the tally's field.
ROWS: Final[tuple[tuple[str, str], ...]] = (
    ("deliveries, including redeliveries", "deliveries"),
    ("workers killed mid-run", "kills"),
    ("repeats answered from the record", "replays"),
    ("takeovers after a dead worker", "takeovers"),
    ("charges in the bank's books", "charges"),
    ("repeats absorbed by the bank", "absorbed"),
    ("payments lost", "lost"),
    ("payments charged twice or more", "doubled"),
    ("  …with a recorded reason", "explained"),
    ("payments with different answers", "different_answers"),
    ("money overcharged", "overcharged_cents"),
)
HARM: Final = frozenset({"lost", "doubled", "different_answers", "overcharged_cents"})


class Progressing:
    """Progress bars, one per run; only on a terminal."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<27}"),
            BarColumn(18),
            TextColumn("{task.completed:>4}/{task.total}"),
            TextColumn("[red]✗ {task.fields[kills]:>2} killed"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def __call__(self, mode: str, title: str, traffic: Traffic) -> None:
        task = self._tasks.get(mode)
        if task is None:
            task = self._progress.add_task(title, total=traffic.wanted, kills=0)
            self._tasks[mode] = task
        self._progress.update(task, completed=traffic.acknowledged, kills=traffic.kills)


def render(console: Console, show: Show, again: str) -> None:
    """``again``: the command that repeats the same plan."""
    console.print()
    console.print(_table(show))
    console.print()
    console.print(_meaning(show))
    console.print()
    if show.saga is not None:
        console.print(_checkouts(show.saga))
        console.print()
    console.print(_verdict(show))
    console.print(Text(f"Again: {again}", "dim"), soft_wrap=True)  # one line, to be copied


def _table(show: Show) -> Table:
    plan = show.plan
    table = Table(
        title=f"{len(plan.payments)} payments, each delivered 1 to 10 times, shuffled, "
        f"to {show.workers} workers",
        title_style="bold",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    table.add_column("", no_wrap=True)
    for run in show.runs:
        table.add_column(run.heading, justify="right", width=10)
    for title, name in ROWS:
        cells = (_cell(run.tally, run.mode, name) for run in show.runs)
        table.add_row(title, *cells, end_section=name == "absorbed")
    return table


def _cell(tally: DemoTally, mode: str, name: str) -> Text:
    value = getattr(tally, name)
    if mode == "without" and name in ("replays", "takeovers", "absorbed", "explained"):
        return Text("–", "dim")
    if mode == "inbox" and name in ("takeovers", "absorbed", "explained"):
        return Text("–", "dim")  # a dead worker's transaction leaves nothing to take over
    if mode == "fencing" and name == "explained" and not tally.doubled:
        return Text("–", "dim")
    shown = f"{value / 100:,.0f}" if name == "overcharged_cents" else f"{value:,}"
    if name not in HARM:
        return Text(shown)
    if not value:
        return Text(shown, "bold green")
    excused = mode == "lease" and name != "lost" and not tally.unexplained
    return Text(shown, "yellow" if excused and name != "different_answers" else "bold red")


def _meaning(show: Show) -> Text:
    """What a lease guarantees, what it cannot guarantee, and what closes the gap."""
    lease, fencing = (
        next(run.tally for run in show.runs if run.mode == mode) for mode in ("lease", "fencing")
    )
    text = (
        "A lease gives one recorded result, and every repeat gets it. It does not guarantee that "
        "an external effect happens once: a worker that dies after the charge and before the "
        "record leaves an unrecorded charge, and the next worker charges again."
    )
    if lease.doubled and not lease.unexplained:
        text += (
            f" Here this happened to {lease.doubled} of {lease.payments} payments, each time with a "
            "recorded reason."
        )
    if not fencing.doubled:
        text += (
            " A bank that checks key and fence closes the gap: it answered "
            f"{fencing.absorbed} such repeats with the existing charge."
        )
    inbox = next((run.tally for run in show.runs if run.mode == "inbox"), None)
    if inbox is not None and not inbox.doubled:
        text += (
            " If the effect is rows in your own database there is no gap: an inbox commits "
            "them in one transaction with the record."
        )
    return Text(text)


def _checkouts(saga: Saga) -> Text:
    """What came of the durable checkouts."""
    done = (f"{saga.shipped} shipped", "bold green")
    undone = (f"{saga.undone} undone", "bold green")
    wrong = (f"{saga.wrong} half done", "bold red" if saga.wrong else "bold green")
    return Text.assemble(
        (f"{saga.orders} checkouts of three steps (charge, reserve, ship), ", "bold"),
        (f"{saga.kills} workers killed", "bold"),
        (" between a step's effect and its record: ", "bold"),
        done,
        ", ",
        undone,
        " because the goods were out of stock, ",
        wrong,
        ". Each continued where it stopped; the books answered ",
        f"{saga.repeats} repeated calls by their keys.",
    )


def _verdict(show: Show) -> Text:
    if not show.held:
        return Text("✗ a guarantee was broken: " + "; ".join(show.broken), "bold red")
    promise = (
        "with twicesafe nothing was lost, every repeat got the one recorded "
        "answer, and no customer was charged again without a recorded reason."
    )
    return Text.assemble(("✓ the guarantees held: ", "bold green"), promise)


def as_data(show: Show) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "seed": show.plan.seed,
        "payments": len(show.plan.payments),
        "planned_deliveries": len(show.plan.deliveries),
        "workers": show.workers,
        "kill_every": show.plan.kill_every,
        "held": show.held,
        "broken": list(show.broken),
        "runs": [_run_data(run) for run in show.runs],
        "saga": None if show.saga is None else dataclasses.asdict(show.saga),
    }


def _run_data(run: DemoRun) -> dict[str, Any]:
    tally = dataclasses.asdict(run.tally)
    return {"mode": run.mode, "title": run.title, **tally, "unexplained": run.tally.unexplained}
