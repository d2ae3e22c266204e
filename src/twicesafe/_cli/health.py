"""``twicesafe health``, ``alerts`` and ``grafana``: is the store well, and what alerts you when it is not."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer
from rich.text import Text

from .. import observers
from ..health import Health, Thresholds
from ..observers._alerts import RULES_FILE
from ..observers._grafana import DASHBOARD_FILE
from .exits import NO, UNAVAILABLE
from .options import ConfigOption, JsonOption, StoreOption
from .output import Screen, visible
from .progress import while_reading
from .settings import opened, settle

__all__ = ["alerts", "grafana", "health"]

_MARKS: Final = {
    "ok": ("✓", "green"),
    "degraded": ("!", "yellow"),
    "failing": ("✗", "bold red"),
    "unknown": ("?", "dim"),
}
_EXITS: Final = {"degraded": NO, "failing": UNAVAILABLE}


def health(
    max_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-bytes",
            metavar="N",
            min=1,
            help="Bytes that the store may use: degraded from 90 %, failing from 100 %.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Compare the store with thresholds. Exit status: 0 ok, 1 degraded, 3 failing.

    Each check says what to do next. This command cannot see what a running service has counted (duplicates,
    conflicts, p99): those checks are marked "?". Ask [cyan]receiver.health()[/] or [cyan]/health[/] of the service.
    Example: [cyan]twicesafe health --store sqlite:///keys.db --max-bytes 1000000000[/]
    """
    screen = Screen(json)
    with opened(settle(store, config)) as receiver, while_reading(screen):
        found, url = receiver.health(Thresholds(max_bytes=max_bytes)), receiver.store.url
    if json:
        screen.data({"store": url, **found.as_dict()})
    else:
        screen.place(url)
        _print(screen, found)
    if found.status in _EXITS:
        raise typer.Exit(_EXITS[found.status])


def _print(screen: Screen, found: Health) -> None:
    for check in found.checks:
        mark, style = _MARKS[check.status]
        said = Text.assemble((mark, style), f" {check.name:<12}{visible(check.reason)}")
        screen.out.print(said, soft_wrap=True)
        if check.next_step:
            screen.out.print(Text(f"  → {visible(check.next_step)}"), soft_wrap=True)
    mark, style = _MARKS[found.status]
    screen.say(Text(f"{mark} {found.status}", style))


# --- files for Prometheus and Grafana --------------------------------------------------------

WriteOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--write",
        metavar="PATH",
        help="Write to this file instead of printing.",
        show_default=False,
    ),
]


def alerts(write: WriteOption = None, json: JsonOption = False) -> None:
    """Print alert rules for Prometheus, made for the metrics of PrometheusObserver.

    Each alert says what happened and what to do next; the label severity is page or ticket.
    Example: [cyan]twicesafe alerts --write /etc/prometheus/twicesafe.rules.yml[/]
    """
    _give(RULES_FILE, write, Screen(json))


def grafana(write: WriteOption = None, json: JsonOption = False) -> None:
    """Print a Grafana dashboard for the metrics of PrometheusObserver, to import as JSON.

    Example: [cyan]twicesafe grafana --write twicesafe.dashboard.json[/]
    """
    _give(DASHBOARD_FILE, write, Screen(json))


def _give(name: str, write: Path | None, screen: Screen) -> None:
    text = (files(observers) / "files" / name).read_text("utf-8")
    if write is not None:
        write.write_text(text, "utf-8")
        screen.say(f"wrote {write}")
    if screen.json:
        screen.data({"file": name, "path": None if write is None else str(write), "text": text})
    elif write is None:
        screen.out.print(Text(text), end="", soft_wrap=True)
