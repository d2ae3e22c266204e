"""The list of commands, and `run`, which parses a command line, runs it and reports errors."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import typer.completion
import typer.core

from .. import __version__
from . import (
    acts,
    archiving,
    bench,
    complete,
    configuring,
    consume,
    counting,
    dashboard,
    dead_letters,
    demo,
    follow,
    health,
    keys,
    outbox,
    plan,
    proxy,
    reencrypting,
    runs,
    upkeep,
    verify,
)
from .exits import DONE, NO, report_error
from .options import JsonOption, flag
from .output import Screen

__all__ = ["app", "run"]


class _InOrder(typer.core.TyperGroup):
    """Lists commands in the order in which people need them."""

    def list_commands(self, _: Any) -> list[str]:
        return [
            "proxy",
            "consume",
            "dead-letters",
            "complete",
            "relay",
            "outbox",
            "keys",
            "stats",
            "top",
            "audit",
            "dashboard",
            "sweep",
            "doctor",
            "health",
            "alerts",
            "grafana",
            "migrate",
            "follow",
            "plan",
            "config",
            "bench",
            "verify",
            "demo",
            "version",
        ]


app = typer.Typer(
    name="twicesafe",
    cls=_InOrder,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
key_commands = typer.Typer(rich_markup_mode="rich")
outbox_commands = typer.Typer(rich_markup_mode="rich")
dead_letter_commands = typer.Typer(rich_markup_mode="rich")
config_commands = typer.Typer(rich_markup_mode="rich")


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, flag("--version", help="Print the version.")] = False,
) -> None:
    """Idempotent receiver: a repeat gets the first answer instead of a second effect.

    Every command takes --json. Exit status: 0 success, 1 refused or check failed, 2 wrong usage,
    3 store unavailable.
    Example: [cyan]twicesafe demo[/]
    """
    if version:
        _version(json=False)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@key_commands.callback(invoke_without_command=True)
def _keys(context: typer.Context) -> None:
    """List and show keys; release, resolve or forget one; signal, skip or restart a durable run; re-encrypt answers.

    A key is identified by its value and its scope. Example: [cyan]twicesafe keys list --state held[/]
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@outbox_commands.callback(invoke_without_command=True)
def _outbox(context: typer.Context) -> None:
    """Show the outbox; resume parked lanes.

    A lane holds the messages of one key, in order. Example: [cyan]twicesafe outbox status[/]
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@dead_letter_commands.callback(invoke_without_command=True)
def _dead_letters(context: typer.Context) -> None:
    """List and show dead letters; replay or discard them.

    A dead letter is a message that a consumer gave up on. Example: [cyan]twicesafe dead-letters list --from
    'kafka://localhost:9092?topics=orders.dead&group=ops'[/]
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@config_commands.callback(invoke_without_command=True)
def _config(context: typer.Context) -> None:
    """Check and show the settings file; print its JSON schema.

    Example: [cyan]twicesafe config check[/]
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _version(json: JsonOption = False) -> None:
    """Print the version.

    Example: [cyan]twicesafe version --json[/]
    """
    screen = Screen(json)
    python = platform.python_version()
    if json:
        screen.data({"version": __version__, "python": python})
    screen.say(f"twicesafe {__version__} (Python {python})")


key_commands.command("list")(keys.list_keys)
key_commands.command("show")(keys.show_key)
key_commands.command("release")(acts.release_key)
key_commands.command("resolve")(acts.resolve_key)
key_commands.command("forget")(acts.forget_key)
key_commands.command("signal")(runs.signal_run)
key_commands.command("skip")(runs.skip_step)
key_commands.command("restart")(runs.restart_run)
key_commands.command("reencrypt")(reencrypting.reencrypt_keys)
key_commands.command("archive")(archiving.archive_keys)
app.add_typer(key_commands, name="keys")
outbox_commands.command("status")(outbox.status)
outbox_commands.command("parked")(outbox.parked)
outbox_commands.command("retry")(outbox.retry)
outbox_commands.command("skip")(outbox.skip)
app.add_typer(outbox_commands, name="outbox")
dead_letter_commands.command("list")(dead_letters.list_letters)
dead_letter_commands.command("show")(dead_letters.show)
dead_letter_commands.command("replay")(dead_letters.replay)
dead_letter_commands.command("discard")(dead_letters.discard)
app.add_typer(dead_letter_commands, name="dead-letters")
app.command("consume")(consume.consume)
app.command("complete")(complete.complete)
config_commands.command("check")(configuring.check)
config_commands.command("show")(configuring.show)
config_commands.command("schema")(configuring.print_schema)
app.add_typer(config_commands, name="config")
app.command("relay")(outbox.relay)
app.command("proxy")(proxy.proxy)
app.command("stats")(counting.stats)
app.command("top")(counting.top)
app.command("audit")(counting.audit)
app.command("dashboard")(dashboard.dashboard)
app.command("sweep")(upkeep.sweep)
app.command("doctor")(upkeep.doctor)
app.command("health")(health.health)
app.command("alerts")(health.alerts)
app.command("grafana")(health.grafana)
app.command("migrate")(upkeep.migrate)
app.command("follow")(follow.follow)
app.command("plan")(plan.plan)
app.command("bench")(bench.bench)
app.command("verify")(verify.verify)
app.command("demo")(demo.demo)
app.command("version")(_version)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status. Errors are printed here, on stderr."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    screen = Screen("--json" in arguments)
    if "_TWICESAFE_COMPLETE" in os.environ:
        typer.completion.completion_init()  # type: ignore[attr-defined]  # the shells that typer knows
    command = typer.main.get_command(app)
    try:
        status = command.main(list(arguments), prog_name="twicesafe", standalone_mode=False)
    except BrokenPipeError:
        # The reader closed the pipe (`| head`). Otherwise Python reports it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO
    except (typer.Abort, KeyboardInterrupt):
        screen.err.print("interrupted", style="dim")
        return 130
    except Exception as error:
        failed = report_error(screen, error)
        if failed is None:
            raise
        return failed
    return status if isinstance(status, int) else DONE
