"""Actions on all keys that match: counted and confirmed first, at a limited rate, with what happened to each.

The keys are listed first. What happens to each is decided by `act_on_listed`, as in the dashboard.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import typer
from rich.text import Text

from .. import Receiver, Record
from .._core.bulk_actions import ActionResult, act_on_listed
from .._core.commands import Flow
from .._core.operations import page_of
from .._core.protocol import Browse, Count
from .._core.searching import MOST, Conditions
from .._values.quantities import per_second
from ..errors import StoreUnavailableError
from .exits import NO, USAGE, CommandEnded, in_cli_words
from .options import flag, quantity
from .output import Screen, counted, shortened, state_text, table, visible
from .progress import progress_bar, while_reading
from .stopping import interruptible

__all__ = ["Bulk", "BulkLimitOption", "DryRunOption", "RateOption", "act_on_all", "is_bulk"]

SHOWN: Final = 10
"""Keys that are shown before the question, and reasons after the run."""
PAGE: Final = 10_000
"""Keys that are listed at once."""

_PANEL = "All keys that match"

DryRunOption: TypeAlias = Annotated[
    bool,
    flag("--dry-run", help="Count and show what matches; change nothing.", rich_help_panel=_PANEL),
]
RateOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--rate",
        metavar="RATE",
        parser=quantity(per_second, 0.001, "/s"),
        help="At most this many per second or minute: 50/s, 100/m.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
BulkLimitOption: TypeAlias = Annotated[
    int,
    typer.Option(
        "--limit", metavar="N", min=1, help="At most N keys, newest first.", rich_help_panel=_PANEL
    ),
]


@dataclass(frozen=True, slots=True)
class Bulk:
    """How to act on all that match."""

    dry_run: bool
    yes: bool
    rate: float | None
    limit: int


def is_bulk(key: str | None, digits: str | None, conditions: Conditions) -> bool:
    """Whether the command is about all that match. A scope alone with a key is part of the key."""
    others = [name for name in conditions if name != "scope"]
    if key is None and digits is None:
        return bool(conditions)
    if others:
        raise CommandEnded("give one key, or conditions for many keys, not both", USAGE)
    return False


def act_on_all(
    screen: Screen,
    receiver: Receiver,
    conditions: Conditions,
    bulk: Bulk,
    act: Callable[[Record], Flow[None]],
    words: tuple[str, str, str],
) -> None:
    """``words``: the verb, its past form and the meaning: release, released, "the next delivery …"."""
    verb, done, meaning = words
    with while_reading(screen):
        matched, listed, unreadable = _listed(
            receiver, conditions, SHOWN if bulk.dry_run else bulk.limit
        )
    _announce(screen, listed, matched, bulk)
    screen.tell_unreadable(unreadable)
    if bulk.dry_run or not listed:
        if screen.json:
            screen.data(
                {"matched": matched, "dry_run": bulk.dry_run, done: 0, "unreadable": unreadable}
            )
        return
    _confirm(f"{verb} {counted(len(listed), 'key')} ({meaning})?", bulk.yes)
    outcomes = _Outcomes(done)
    outage: StoreUnavailableError | None = None
    with interruptible() as stop, progress_bar(screen, verb) as bar:
        task = bar.add_task(verb, total=len(listed))
        began = time.monotonic()
        for number, record in enumerate(listed):
            due = 0.0 if bulk.rate is None else began + number / bulk.rate - time.monotonic()
            if stop.wait(due) if due > 0 else stop.is_set():
                break
            try:
                made = None if record.key is None else act(record)
                fate, why = receiver._runtime.run(act_on_listed(record, made))
                outcome = done if fate is ActionResult.DONE else fate.value
                outcomes.note(record, outcome, in_cli_words(why))
            except StoreUnavailableError as error:
                outcomes.note(record, "unknown", "the store did not answer: look at this key")
                outage = error
                break
            bar.advance(task)
    outcomes.print(screen, matched, len(listed))
    if outage is not None:
        raise outage
    if outcomes.counts[done] < len(listed) - outcomes.counts["gone"]:
        raise typer.Exit(NO)


def _listed(
    receiver: Receiver, conditions: Conditions, limit: int
) -> tuple[int, list[Record], list[str]]:
    """How many match, the newest of them, at most `limit`, and the ids of those that cannot be read. On Redis each page
    is a scan over all keys, so pages are large, and the first is read with the count."""
    asked = receiver._asked(conditions)
    asks = (Count(MOST, **asked), Browse(min(PAGE, limit), **asked))
    matched, page = receiver._runtime.run(receiver._together(*asks))
    found, unreadable = page.view(), dict.fromkeys(page.unreadable)
    while page.after and len(found) < limit:
        size = min(PAGE, limit - len(found))
        page = receiver._runtime.run(page_of(Browse(size, **asked, after=page.after)))
        found += page.view()
        unreadable |= dict.fromkeys(page.unreadable)
    return matched, found, list(unreadable)


class _Outcomes:
    """What happened to each key."""

    def __init__(self, done: str) -> None:
        self._done = done
        self.counts: Counter[str] = Counter()
        self._others: list[tuple[Record, str, str]] = []

    def note(self, record: Record, outcome: str, reason: str) -> None:
        self.counts[outcome] += 1
        if outcome != self._done:
            self._others.append((record, outcome, reason))

    def print(self, screen: Screen, matched: int, listed: int) -> None:
        done = self._done
        missed = listed - sum(self.counts.values())
        if screen.json:
            details = [
                {
                    "id": r.id.hex(),
                    "key": r.value,
                    "scope": list(r.scope),
                    "outcome": o,
                    "reason": w,
                }
                for r, o, w in self._others
            ]
            counts = {n: self.counts[n] for n in (done, "refused", "changed", "gone", "unknown")}
            screen.data({"matched": matched, **counts, "not_reached": missed, "details": details})
            return
        all_done = self.counts[done] == listed
        mark = Text("✓", "green") if all_done else Text("!", "yellow")
        rest = [f"{self.counts[n]:,} {n}" for n in ("refused", "changed", "gone", "unknown")]
        words = [part for part in rest if not part.startswith("0 ")]
        words += [f"{missed:,} not reached"] if missed else []
        screen.say(mark, "; ".join([f"{counted(self.counts[done], 'key')} {done}", *words]))
        for record, outcome, reason in self._others[:SHOWN]:
            shown = f"  {record.short} {shortened(record.value, 40)}  {outcome}: {visible(reason)}"
            screen.out.print(Text(shown, "dim"), soft_wrap=True)
        if len(self._others) > SHOWN:
            screen.say(Text(f"  and {len(self._others) - SHOWN:,} more: --json lists all", "dim"))


def _announce(screen: Screen, listed: list[Record], matched: int, bulk: Bulk) -> None:
    size = min(matched, bulk.limit)
    taken = f"; this run takes the newest {size:,} (--limit)" if matched > size else ""
    screen.say(f"{counted(matched, 'key')} match{'es' if matched == 1 else ''}{taken}")
    if screen.json or not listed or (bulk.yes and not bulk.dry_run):
        return
    made = table("", "", "", "", header=False)
    for record in listed[:SHOWN]:
        made.add_row(
            f"  {record.short}",
            state_text(record.state),
            Text(shortened(record.value, 40)),
            Text(visible(record.error)),
        )
    screen.out.print(made)
    if size > SHOWN:
        screen.say(Text(f"  and {size - SHOWN:,} more", "dim"))


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise CommandEnded(
            "many keys would be changed: add --yes, or --dry-run to only count them", USAGE
        )
    if not typer.confirm(question, err=True):
        raise CommandEnded("nothing was changed", NO, "Declined")
