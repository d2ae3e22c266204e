"""``twicesafe keys archive``: move old answers from the store to a directory or a bucket."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from .options import ConfigOption, JsonOption, StoreOption, duration
from .output import Screen, counted
from .settings import existing, opened

__all__ = ["archive_keys"]


def archive_keys(
    to: Annotated[
        str, typer.Argument(metavar="PLACE", help="A directory, or s3://bucket/prefix?region=….")
    ],
    older_than: Annotated[
        float,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            parser=duration(),
            help="Answers that were recorded longer ago than this, such as 30d.",
            show_default=False,
        ),
    ],
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", min=1, help="Archive at most N answers.", show_default=False
        ),
    ] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Move old answers to an archive, newest first; a late duplicate still does not run.

    An answer is erased in the store when it is durable in the archive. It can run beside deliveries, and again after
    a crash. `twicesafe keys show KEY --archive PLACE` finds it there.
    Example: [cyan]twicesafe keys archive /var/lib/shop/answers --older-than 30d[/]
    """
    screen = Screen(json)
    with opened(existing(store, config)) as receiver:
        report = receiver.archive(to, older_than=older_than, limit=limit)
    if json:
        screen.data({"archived": report.archived, "changed": report.changed, "after": report.after})
        return
    screen.say(Text("✓", "green"), f"{counted(report.archived, 'answer')} archived")
    if report.changed:
        screen.say(Text(f"{counted(report.changed, 'answer')} changed meanwhile and stayed", "dim"))
    if report.after:
        screen.say(Text("more answers follow: run it again", "dim"))
