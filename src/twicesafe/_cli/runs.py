"""``twicesafe keys signal``, ``skip`` and ``restart``: operator commands for durable runs.

Like the commands of `key_actions`, each writes who and why to the audit trail, and asks on a terminal.
A run continues by ``keys release``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .answers import answer_of
from .exits import NO, CommandEnded
from .key_actions import act, ask, need, report, target_of
from .options import (
    ByOption,
    ConfigOption,
    IdOption,
    JsonOption,
    KeyArgument,
    ScopeOption,
    StoreOption,
    WhyOption,
    YesOption,
    flag,
)
from .output import Screen, shortened
from .record_lookup import find
from .settings import opened, settle

__all__ = ["restart_run", "signal_run", "skip_step"]

ValueOption = Annotated[
    str | None,
    typer.Option("--value", metavar="JSON", help="The value, as JSON.", show_default=False),
]
ValueFileOption = Annotated[
    Path | None,
    typer.Option(
        "--value-file",
        metavar="PATH",
        help="Read the value from a file; - is stdin.",
        show_default=False,
    ),
]


def signal_run(
    name: Annotated[
        str,
        typer.Option(
            "--name", metavar="NAME", help="The name that the run passes to `steps.wait`."
        ),
    ],
    by: ByOption,
    why: WhyOption,
    key: KeyArgument = None,
    value: ValueOption = None,
    value_file: ValueFileOption = None,
    scope: ScopeOption = None,
    id_: IdOption = None,
    yes: YesOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Send a value to a durable run that waits for it, now or later; the first value counts.

    Without --value the value is true. Exit status 1: there is a value already, or the run is over.
    Example: [cyan]twicesafe keys signal order-7 --name approval --by ana --why "looks good"[/]
    Example: [cyan]twicesafe keys signal --id 5f0c6a1e --name approval --value false --by ana --why fraud[/]
    """
    screen = Screen(json)
    need(by, why)
    sent = True if value is None and value_file is None else answer_of(value, value_file)
    with opened(settle(store, config)) as receiver:
        found = find(receiver, key, scope, id_)
        target = target_of(found, "signalled")
        ask(screen, found.record, f"send this value as {name!r}? It cannot be changed", yes)
        if not receiver.signal(target, name, sent, by=by, why=why):
            raise CommandEnded(
                f"nothing was sent: the run is over, or {shortened(name, 40)} has a value, which stays",
                NO,
                "Refused",
            )
        report(screen, receiver, found, f"got the signal {shortened(name, 40)}")


def skip_step(
    step: Annotated[
        str, typer.Option("--step", metavar="NAME", help="The name of the step to record.")
    ],
    by: ByOption,
    why: WhyOption,
    key: KeyArgument = None,
    value: ValueOption = None,
    value_file: ValueFileOption = None,
    scope: ScopeOption = None,
    id_: IdOption = None,
    yes: YesOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Record a step of a held or parked durable run by hand; the run continues.

    In a run that is being undone, the undo of the step is skipped. In a held run, --value becomes the result
    of the step whose outcome is unknown (default: null).
    Example: [cyan]twicesafe keys skip order-7 --step charge --by ana --why "refunded by hand"[/]
    """
    screen = Screen(json)
    need(by, why)
    result = None if value is None and value_file is None else answer_of(value, value_file)
    with opened(settle(store, config)) as receiver:
        found = find(receiver, key, scope, id_)
        target = target_of(found, "changed")
        ask(screen, found.record, f"record {step!r} as done, without running it?", yes)
        seen = found.record.fence
        act(lambda: receiver.skip(target, step, result, by=by, why=why, fence=seen))
        report(screen, receiver, found, f"continues without {shortened(step, 40)}")


def restart_run(
    by: ByOption,
    why: WhyOption,
    key: KeyArgument = None,
    scope: ScopeOption = None,
    id_: IdOption = None,
    force: Annotated[bool, flag("--force", help="Restart even a completed run.")] = False,
    yes: YesOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Start a durable run from the beginning: its steps are dropped, and their effects happen again.

    To continue after the last recorded step, use [cyan]twicesafe keys release[/].
    Example: [cyan]twicesafe keys restart order-7 --by ana --why "wrong address, refunded by hand"[/]
    """
    screen = Screen(json)
    need(by, why)
    with opened(settle(store, config)) as receiver:
        found = find(receiver, key, scope, id_)
        target = target_of(found, "restarted")
        question = "drop all recorded steps? Their effects happen AGAIN"
        ask(screen, found.record, question, yes)
        seen = found.record.fence
        act(lambda: receiver.restart(target, by=by, why=why, force=force, fence=seen))
        report(screen, receiver, found, "restarted; the next call or the completer begins again")
