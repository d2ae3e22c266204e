"""``twicesafe keys failures``: which handler fails most, and with which error."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Annotated, Final

import typer
from rich.text import Text

from .. import State
from .options import ConfigOption, JsonOption, ScopeOption, StoreOption
from .output import Screen, ago, counted, iso, table, visible
from .progress import while_reading
from .search_options import SinceOption, conditions_of
from .settings import existing, opened

__all__ = ["count_failures"]

FAILED: Final = (State.RELEASED, State.PARKED, State.HELD, State.FAILED)


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

    The operation is the last part of the scope: a function, a route, a task. A key that failed and then
    succeeded is not counted; metrics count every failure.
    Example: [cyan]twicesafe keys failures --since 1d[/]
    """
    screen = Screen(json)
    which = conditions_of(list(FAILED), scope, None, None, since, None, False, None)
    found: Counter[tuple[str, str]] = Counter()
    newest: dict[tuple[str, str], datetime] = {}
    with opened(existing(store, config)) as receiver, while_reading(screen):
        page, after = receiver.records_page(limit=limit, **which)  # one page: Redis scans for each
    for record in filter(lambda one: one.error, page):
        group = (record.scope[-1] if record.scope else "", record.error)
        found[group] += 1
        newest[group] = max(newest.get(group, record.changed_at), record.changed_at)
    if json:
        rows = [
            {"operation": name, "error": error, "keys": keys, "newest": iso(newest[name, error])}
            for (name, error), keys in found.most_common()
        ]
        screen.data({"failures": rows, "complete": not after})
        return
    if not found:
        screen.say(Text("no key's last attempt failed", "dim"))
        return
    made = table("keys", "operation", "last error", "newest")
    made.columns[0].justify = "right"
    for (name, error), keys in found.most_common():
        shown = Text(visible(name)) if name else Text("no scope", "dim")
        made.add_row(f"{keys:,}", shown, Text(visible(error)), ago(newest[name, error]))
    screen.out.print(made)
    if after:
        screen.say(
            Text(f"only the newest {counted(limit, 'failed key')} counted; raise --limit", "dim")
        )
