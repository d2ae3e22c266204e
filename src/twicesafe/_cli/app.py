"""The list of commands, and `run`, which parses a command line, runs it and reports errors.

Only the module of the command that is called is imported, so that each command starts quickly.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import platform
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
import typer.completion
import typer.core

from .. import __version__
from .exits import DONE, NO, READER_LEFT, report_error
from .options import JsonOption, flag
from .output import Screen

__all__ = ["app_of", "run"]


class _Switch:
    """Some versions of typer would show ``<bool>`` after --help."""

    def get_help_option(self, context: Any) -> Any:
        found = super().get_help_option(context)  # type: ignore[misc]
        if found is not None:
            found.metavar = ""
        return found


class _Command(_Switch, typer.core.TyperCommand): ...


class _Subcommands(_Switch, typer.core.TyperGroup): ...


class _InOrder(_Subcommands):
    """Lists commands as the table below does; Typer would list those with subcommands last."""

    def list_commands(self, _: Any) -> list[str]:
        return [
            name for commands in _COMMANDS.values() for name in commands if name in self.commands
        ]


def _root(
    context: typer.Context,
    show_version: Annotated[bool, flag("--version", help="Print the version.")] = False,
) -> None:
    """Idempotent receiver: a repeat gets the first answer instead of a second effect.

    Every command takes --json. Example: [cyan]twicesafe demo[/]

    Exit status: 0 success, 1 refused or check failed, 2 wrong usage, 3 store unavailable.
    """
    if show_version:
        version(json=False)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def version(json: JsonOption = False) -> None:
    """Print the version.

    Example: [cyan]twicesafe version --json[/]
    """
    screen = Screen(json)
    python = platform.python_version()
    if json:
        screen.data({"version": __version__, "python": python})
    screen.say(f"twicesafe {__version__} (Python {python})")


def _show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


class _Group:
    """A command with subcommands. Without one of them it shows its help."""

    def __init__(self, words: str, commands: dict[str, str]) -> None:
        self._words, self._commands = words, commands

    def app_of(self, called: str) -> typer.Typer:
        group = typer.Typer(
            cls=_Subcommands,
            help=_help(self._words),
            callback=_show_help,
            invoke_without_command=True,
            rich_markup_mode="rich",
        )
        for name in [called] if called in self._commands else self._commands:
            function = _function(self._commands[name])
            group.command(name, cls=_Command, help=_help(function.__doc__))(function)
        return group


def _help(text: str | None) -> str:
    """A docstring as help: one line for each paragraph and each example, which the terminal wraps.

    Typer would keep the line breaks of the docstring, even in the middle of a sentence. `python -OO`
    leaves no docstring.
    """
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    lines = (re.sub(r"\s+", " ", each) for each in paragraphs)
    return re.sub(r" (?=Example: )", "\n", "\n\n".join(lines))


def _function(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f".{module}", __package__), name)


_KEYS: Final = _Group(
    "List and show keys; count failures; release, resolve or forget one; signal, skip or restart a durable "
    "run; re-encrypt or archive answers.\n\nA key is identified by its value and its scope. "
    "Example: [cyan]twicesafe keys list --state held[/]",
    {
        "list": "keys:list_keys",
        "show": "keys:show_key",
        "failures": "failures:count_failures",
        "release": "key_actions:release_key",
        "resolve": "key_actions:resolve_key",
        "forget": "key_actions:forget_key",
        "signal": "runs:signal_run",
        "skip": "runs:skip_step",
        "restart": "runs:restart_run",
        "reencrypt": "reencrypt:reencrypt_keys",
        "archive": "archive:archive_keys",
    },
)
_OUTBOX: Final = _Group(
    "Show the outbox; resume parked lanes.\n\nA lane holds the messages of one key, in order. "
    "Example: [cyan]twicesafe outbox status[/]",
    {
        "status": "outbox:status",
        "relays": "outbox:relays",
        "parked": "outbox:parked",
        "retry": "outbox:retry",
        "skip": "outbox:skip",
    },
)
_DEAD_LETTERS: Final = _Group(
    "List and show dead letters; replay or discard them.\n\nA dead letter is a message that a consumer "
    "gave up on. Example: [cyan]twicesafe dead-letters list --from "
    "'kafka://localhost:9092?topics=orders.dead&group=ops'[/]",
    {
        "list": "dead_letters:list_letters",
        "show": "dead_letters:show",
        "replay": "dead_letters:replay",
        "discard": "dead_letters:discard",
    },
)
_CONFIG: Final = _Group(
    "Check and show the settings file; print its JSON schema.\n\nExample: [cyan]twicesafe config check[/]",
    {
        "check": "config_command:check",
        "show": "config_command:show",
        "schema": "config_command:print_schema",
    },
)

_COMMANDS: Final[dict[str, dict[str, str | _Group]]] = {
    "Run": {
        "proxy": "proxy:proxy",
        "consume": "consume:consume",
        "relay": "outbox:relay",
        "complete": "complete:complete",
        "follow": "follow:follow",
        "dashboard": "dashboard:dashboard",
    },
    "Look and decide": {
        "keys": _KEYS,
        "outbox": _OUTBOX,
        "dead-letters": _DEAD_LETTERS,
        "stats": "stats:stats",
        "top": "stats:top",
        "audit": "stats:audit",
    },
    "Keep it healthy": {
        "doctor": "maintenance:doctor",
        "health": "health:health",
        "sweep": "maintenance:sweep",
        "migrate": "maintenance:migrate",
        "alerts": "health:alerts",
        "grafana": "health:grafana",
    },
    "Plan and try": {
        "plan": "plan:plan",
        "config": _CONFIG,
        "bench": "bench:bench",
        "verify": "verify:verify",
        "demo": "demo:demo",
        "version": "app:version",
    },
}
"""All commands, under the headings of the help, in the order in which people need them."""


def app_of(arguments: Sequence[str] = ()) -> typer.Typer:
    """The application with the command that is called here, or with all of them."""
    app = typer.Typer(
        name="twicesafe",
        cls=_InOrder,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback(invoke_without_command=True, help=_help(_root.__doc__))(_root)
    first, second, *_ = *arguments, "", ""
    known = {name: panel for panel, commands in _COMMANDS.items() for name in commands}
    for name in [first] if first in known else known:
        command = _COMMANDS[known[name]][name]
        if isinstance(command, str):
            function = _function(command)
            shown = _help(function.__doc__)
            app.command(name, cls=_Command, rich_help_panel=known[name], help=shown)(function)
        else:
            app.add_typer(command.app_of(second), name=name, rich_help_panel=known[name])
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status. Errors are printed here, on stderr."""
    status = DONE
    try:
        status = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:  # rich and click turn the first into the second
        if not isinstance(error, BrokenPipeError) and not isinstance(
            error.__context__, BrokenPipeError
        ):
            raise
        _drop_output()
        return READER_LEFT
    except OSError as error:  # the disk is full
        _drop_output()
        return status or report_error(Screen("--json" in arguments), error) or NO
    return status


def _drop_output() -> None:
    """Without this, Python would write the rest at exit, and report the error again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: Sequence[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    screen = Screen("--json" in arguments)
    completes = "_TWICESAFE_COMPLETE" in os.environ
    if completes:
        typer.completion.completion_init()  # type: ignore[attr-defined]  # the shells that typer knows
    command = typer.main.get_command(app_of(() if completes else arguments))
    try:
        status = command.main(list(arguments), prog_name="twicesafe", standalone_mode=False)
    except BrokenPipeError:
        raise  # to `run`: it is not an error to report
    except (typer.Abort, KeyboardInterrupt):
        screen.err.print("interrupted", style="dim")
        return 130
    except Exception as error:
        failed = report_error(screen, error)
        if failed is None:
            raise
        return failed
    return status if isinstance(status, int) else DONE
