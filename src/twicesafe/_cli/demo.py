"""``twicesafe demo``: a payment service under duplicate deliveries and killed workers."""

from __future__ import annotations

import random
from typing import Annotated, Final

import typer

from .._demo.plan import DemoPlan
from .._demo.report import Progressing, as_data, render
from .._demo.show import Show, play
from .._demo.storm import StormError
from .exits import NO, CommandEnded
from .options import JsonOption
from .output import Screen

__all__ = ["demo"]

PAYMENTS: Final = 120
WORKERS: Final = 4
KILL_EVERY: Final = 50


def demo(
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            metavar="N",
            min=0,
            help="Repeat the plan of an earlier run.",
            show_default="random",
        ),
    ] = None,
    payments: Annotated[
        int,
        typer.Option(
            "--payments", metavar="N", min=1, max=100_000, help="Number of different payments."
        ),
    ] = PAYMENTS,
    workers: Annotated[
        int,
        typer.Option("--workers", metavar="N", min=1, max=64, help="Number of worker processes."),
    ] = WORKERS,
    kill_every: Annotated[
        int,
        typer.Option(
            "--kill-every", metavar="N", min=0, help="Kill a worker every N deliveries; 0: never."
        ),
    ] = KILL_EVERY,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="URL",
            help="Keep the records there, to look at them afterwards. The demo ignores "
            "twicesafe.toml and TWICESAFE_STORE_URL: it never uses your configured store.",
            show_default="SQLite in a temporary folder",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run payments with duplicates and killed workers, with twicesafe and without.

    Exit status 1 if a guarantee was broken. Example: [cyan]twicesafe demo --seed 7 --workers 8[/]
    """
    screen = Screen(json)
    plan = DemoPlan.draw(random.randrange(2**32) if seed is None else seed, payments, kill_every)
    try:
        with Progressing(screen.err) as watch:
            show = play(plan, workers=workers, store=store, watch=watch)
    except StormError as error:
        raise CommandEnded(str(error), NO, "StormError") from error
    if json:
        screen.data(as_data(show))
    else:
        render(screen.out, show, _again(show))
    if not show.held:
        raise typer.Exit(NO)


def _again(show: Show) -> str:
    """The command that repeats this plan: the seed, and options that differ from the defaults."""
    plan = show.plan
    chosen = (
        ("--payments", len(plan.payments), PAYMENTS),
        ("--workers", show.workers, WORKERS),
        ("--kill-every", plan.kill_every, KILL_EVERY),
    )
    rest = "".join(f" {name} {value}" for name, value, default in chosen if value != default)
    return f"twicesafe demo --seed {plan.seed}{rest}"
