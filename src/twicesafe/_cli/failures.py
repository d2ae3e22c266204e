"""``twicesafe keys failures``: which handler fails most, and with which error."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from .._core.failure_groups import FAILED, failure_groups
from .options import ConfigOption, JsonOption, ScopeOption, StoreOption
from .output import Screen, ago, counted, iso, table, visible
from .progress import while_reading
from .search_options import SinceOption, conditions_of
from .settings import opened, settle

__all__ = ["count_failures"]


def count_failures(
    since: SinceOption = None,
    scope: ScopeOption = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="Read at most N failed keys.")
    ] = 10_000,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Count the keys whose last attempt failed, by operation and error: which handler fails most.

    The operation is the last part of the scope: a function, a task, a consumer's queue. HTTP requests are
    one operation. A key that failed and then succeeded is not counted; metrics count every failure.
    Example: [cyan]twicesafe keys failures --since 1d[/]
    """
    screen = Screen(json)
    which = conditions_of(list(FAILED), scope, None, None, since, None, False, None)
    with opened(settle(store, config)) as receiver, while_reading(screen):
        page, after = receiver.records_page(limit=limit, **which)  # one page: Redis scans for each
    groups = failure_groups(page)
    if json:
        rows = [
            {
                "operation": each.operation,
                "error": each.error,
                "keys": each.keys,
                "newest": iso(each.newest),
            }
            for each in groups
        ]
        screen.data({"failures": rows, "complete": not after})
        return
    if not groups:
        screen.say(Text("no key's last attempt failed", "dim"))
        return
    made = table("keys", "operation", "last error", "newest")
    made.columns[0].justify = "right"
    for each in groups:
        shown = Text(visible(each.operation)) if each.operation else Text("no scope", "dim")
        made.add_row(f"{each.keys:,}", shown, Text(visible(each.error)), ago(each.newest))
    screen.out.print(made)
    if after:
        screen.say(
            Text(f"only the newest {counted(limit, 'failed key')} counted; raise --limit", "dim")
        )
