"""``twicesafe dashboard``: the store in a browser, on this machine or behind a token."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .._values.drivers import require
from ..stores._urls import mask
from .options import ConfigOption, JsonOption, StoreOption, flag
from .output import Screen, visible
from .settings import opened, settled

__all__ = ["dashboard"]


def dashboard(
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Address to listen on. Without a token it must be a loopback address.",
            show_default="127.0.0.1:8090",
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="Another host name that browsers use for it; repeat for several.",
            show_default=False,
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="PATH",
            help="File with the token to log in with. Or set TWICESAFE_DASHBOARD_TOKEN.",
            show_default=False,
        ),
    ] = None,
    read_token_file: Annotated[
        Path | None,
        typer.Option(
            "--read-token-file",
            metavar="PATH",
            help="File with a token for read-only access.",
            show_default=False,
        ),
    ] = None,
    read_only: Annotated[bool, flag("--read-only", help="No visitor can change anything.")] = False,
    show_keys: Annotated[
        bool,
        flag(
            "--show-keys",
            help="Show keys, scopes, the errors' text of parked lanes, and the reasons and bodies of dead letters.",
        ),
    ] = False,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics",
            metavar="URL",
            help="Also show the numbers of a service: URL of its /metrics, or the proxy's; repeat for several.",
            show_default=False,
        ),
    ] = None,
    dead_letters: Annotated[
        str | None,
        typer.Option(
            "--dead-letters",
            metavar="URL",
            help="Also show dead letters: a consumer's URL, with the dead topic, stream or queue.",
            show_default=False,
        ),
    ] = None,
    consumer: Annotated[
        list[str] | None,
        typer.Option(
            "--consumer",
            metavar="URL",
            help="Also ask this consumer's broker how far behind the consumer is; repeat for several.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    r"""Serve the dashboard: overview, keys and their timelines, failures, outbox, relays, consumers, dead letters, audit.

    It shows what is in the store. Duplicates write nothing to the store: to see how many come and how old they
    are, give --metrics, or mount the dashboard in your service. Settings: also \[dashboard] in twicesafe.toml,
    or variables like TWICESAFE_DASHBOARD_LISTEN.
    Example: [cyan]twicesafe dashboard --store sqlite:///keys.db[/]
    """
    screen = Screen(json)
    given: dict[str, Any] = {
        "listen": listen,
        "hosts": host or None,
        "token_file": None if token_file is None else str(token_file),
        "read_token_file": None if read_token_file is None else str(read_token_file),
        "read_only": read_only or None,
        "show_keys": show_keys or None,
        "metrics": metrics or None,
        "dead_letters": dead_letters,
        "consumers": consumer or None,
    }
    settings, found = settled(("dashboard",), store, config, {"dashboard": given})
    require("starlette", "jinja2", "uvicorn")
    from ..dashboard._serving import serve

    def ready(address: str, has_login: bool) -> None:
        if json:
            screen.data({"url": address, "store": mask(settings.url), "login": has_login})
        screen.say(f"{address}/ shows {visible(mask(settings.url))}")
        screen.say(
            "log in with the token" if has_login else "no login: only this machine can reach it"
        )
        sys.stdout.flush()

    with opened(settings) as receiver:
        serve(receiver, found.section("dashboard"), ready)
