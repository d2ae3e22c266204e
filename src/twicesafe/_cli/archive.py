"""``twicesafe keys archive``: move old answers from the store to a directory or a bucket."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from .._core.searching import named_ids
from .exits import NO, CommandEnded
from .key_actions import need
from .options import ByOption, ConfigOption, JsonOption, StoreOption, WhyOption, duration
from .output import Screen, counted
from .settings import opened, settle

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
    by: ByOption,
    why: WhyOption,
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

    An answer is erased in the store when it is durable in the archive. The command can run during deliveries, and again
    after a crash. The audit trail of each key records --by and --why. [cyan]twicesafe keys show KEY --archive PLACE[/]
    finds an archived answer. Exit status 1 if a record cannot be read.
    Example: [cyan]twicesafe keys archive /var/lib/shop/answers --older-than 30d --by ana --why "monthly archive"[/]
    """
    screen = Screen(json)
    need(by, why)
    with opened(settle(store, config)) as receiver:
        report = receiver.archive(to, older_than=older_than, limit=limit, by=by, why=why)
    if json:
        screen.data({name: getattr(report, name) for name in report.__struct_fields__})
    else:
        screen.say(Text("✓", "green"), f"{counted(report.archived, 'answer')} archived")
        if report.changed:
            said = f"{counted(report.changed, 'answer')} changed meanwhile and stayed in the store"
            screen.say(Text(said, "dim"))
        if report.after:
            screen.say(Text("there are more answers: run the command again", "dim"))
    if report.unreadable_count:
        named = named_ids(report.unreadable) or "`twicesafe keys list --all` names them"
        raise CommandEnded(
            f"did not archive {counted(report.unreadable_count, 'unreadable record')} ({named}): damaged, or written "
            "by a newer version",
            NO,
            "Unreadable",
        )
