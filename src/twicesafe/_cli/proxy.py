"""``twicesafe proxy``: the HTTP middleware as a process in front of a service in any language."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from .._proxy import check_store, load, run
from .._proxy.log_lines import set_up
from .options import ConfigOption, JsonOption, StoreOption, flag
from .output import Screen

if TYPE_CHECKING:
    from .._proxy.supervisor import Greeting

__all__ = ["proxy"]


def proxy(
    upstream: Annotated[
        str | None,
        typer.Option(
            "--upstream",
            metavar="URL",
            help="URL of the service to protect, like http://127.0.0.1:9000.",
            show_default=False,
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Address to listen on.",
            show_default="127.0.0.1:8080",
        ),
    ] = None,
    admin: Annotated[
        str | None,
        typer.Option(
            "--admin",
            metavar="HOST:PORT",
            help="Separate address for /live, /ready and /metrics; keep it private.",
            show_default="off",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", min=1, help="Worker processes.", show_default="1"),
    ] = None,
    check: Annotated[
        bool,
        flag("--check", help="Check the settings, then exit."),
    ] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    r"""Run a reverse proxy that adds Idempotency-Key to a service in any language.

    A POST or PATCH that repeats an answered Idempotency-Key gets the recorded answer.
    If the service does not answer, the key is held: find it with [cyan]twicesafe keys list --state
    held[/], then run keys resolve or keys release. All settings: \[proxy] and \[http] in
    twicesafe.toml, or variables like TWICESAFE_PROXY_UPSTREAM. SIGHUP reloads the settings; SIGTERM
    finishes running requests, then exits.
    Example: [cyan]twicesafe proxy --upstream http://127.0.0.1:9000 --store sqlite:///keys.db[/]
    """
    screen = Screen(json)
    given: dict[str, Any] = {
        "upstream": upstream,
        "listen": listen,
        "admin": admin,
        "workers": workers,
        "store": store,
    }
    path: Path | None = config
    if check:
        settings = load(path, given)
        asyncio.run(check_store(settings.store))
        if json:
            screen.data({"upstream": settings.upstream, "listen": settings.listen})
        screen.say(f"settings are valid: {settings.listen} → {settings.upstream}")
        return

    def ready(greeting: Greeting) -> None:
        if json:
            screen.data(msgspec.structs.asdict(greeting))
        screen.say(f"{greeting.listening} protects {greeting.upstream}")
        screen.say(f"keys: {greeting.store}")
        if greeting.admin is not None:
            screen.say(f"admin: {greeting.admin}/ready, /metrics")
        sys.stdout.flush()

    settings = load(path, given)
    set_up(settings.log_level, settings.log_format)
    run(lambda: load(path, given), ready)
