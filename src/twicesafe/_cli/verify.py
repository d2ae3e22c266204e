"""``twicesafe verify``: finds where your handler repeats, loses or changes its effect."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from .._values.policy import Policy
from ..errors import UsageError
from ..testing._matrix import crash_matrix
from ..testing._simulated_process import called
from .exits import NO, CommandEnded
from .loading import import_here, load_function, load_module
from .options import JsonOption, flag
from .output import Screen, visible

__all__ = ["verify"]


def verify(
    handler: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:HANDLER",
            help="Your handler, importable from the current directory.",
            show_default=False,
        ),
    ],
    snapshot: Annotated[
        str,
        typer.Option(
            "--snapshot",
            metavar="MODULE:FUNCTION",
            help="Function that returns the handler's effects as a value to compare.",
            show_default=False,
        ),
    ],
    setup: Annotated[
        str,
        typer.Option(
            "--setup",
            metavar="MODULE:FUNCTION",
            help="Function that resets the data before every trial. Never run on production data!",
            show_default=False,
        ),
    ],
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="JSON",
            help="An argument for the handler, as JSON; repeat for each argument, in order.",
            show_default=False,
        ),
    ] = None,
    lines: Annotated[
        bool,
        flag(
            "--lines/--points",
            help="Crash before every line of the handler's file, or only at crash_point calls.",
        ),
    ] = True,
    lines_of: Annotated[
        list[str] | None,
        typer.Option(
            "--lines-of",
            metavar="MODULE",
            help="Also crash before every line of this module; repeat for several.",
            show_default=False,
        ),
    ] = None,
    any_result: Annotated[
        bool,
        flag("--any-result", help="Compare the effects only: results may differ."),
    ] = False,
    bare: Annotated[
        bool,
        flag("--bare", help="Call the handler without a receiver."),
    ] = False,
    hold: Annotated[
        bool,
        flag(
            "--hold",
            help='Use takeover="hold": after a crash an operator decides.',
        ),
    ] = False,
    kill: Annotated[
        bool,
        flag(
            "--kill",
            help="Also kill a real process at every point; about a second each.",
        ),
    ] = False,
    interleavings: Annotated[
        int | None,
        typer.Option(
            "--interleavings",
            metavar="N",
            min=0,
            help="How many interleavings of two concurrent deliveries to try.",
            show_default="300",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Crash your handler before every line, retry it, and compare its effects.

    Exit status 1 if any trial repeated, lost or changed an effect. Example: [cyan]twicesafe verify shop:charge --snapshot
    shop:lines --setup shop:clear --input '"o-1"'[/]
    """
    screen = Screen(json)
    import_here()
    with contextlib.redirect_stdout(sys.stderr):  # keep the handler's prints out of the report
        target = load_function(handler, "the handler")
        world = {
            "snapshot": load_function(snapshot, "--snapshot"),
            "setup": load_function(setup, "--setup"),
        }
        more = [load_module(name, "--lines-of") for name in lines_of or ()]
        _try("--setup", world["setup"])
        try:
            report = crash_matrix(
                target,
                *map(_argument, given or ()),
                **world,
                policy=Policy(takeover="hold") if hold else None,
                bare=bare,
                lines=more or lines,
                results=not any_result,
                interleavings=interleavings,
                kill=kill,
            )
        except AssertionError as error:  # the run without a crash failed
            raise CommandEnded(str(error), NO, "CleanRunFailed") from error
    if json:
        screen.data(report.as_data())
    else:
        *rows, verdict = str(report).splitlines()
        for row in rows:
            screen.say(Text(visible(row), "red" if "WRONG" in row else ""))
        mark = Text("✓", "green") if report.ok else Text("✗", "red")
        screen.say(mark, visible(verdict.removeprefix("verdict: ")))
    if not report.ok:
        raise typer.Exit(NO)


def _try(what: str, function: Callable[[], Any]) -> None:
    try:
        called(function)
    except Exception as error:
        raise UsageError(f"{what} failed: {type(error).__name__}: {error}") from error


def _argument(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise UsageError(
            f"--input {text[:40]!r} is not JSON ({error}); text needs quotes: '\"o-1\"'"
        ) from error
