"""``twicesafe stats``, ``top`` and ``audit``: how many keys, how large, how fast; and what operators did."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .. import Receiver, Record, State
from .._core.protocol import AuditLog, Browse, Page, Survey
from .._core.searching import When
from .._values.quantities import duration_text
from .._values.records import AuditEntry, Stats
from ..errors import StoreUnavailableError
from ..planning import Measured, measured_from
from .exits import report_error
from .options import ConfigOption, JsonOption, StoreOption, duration, flag
from .output import (
    BETWEEN,
    STATES,
    Screen,
    ago,
    audit_data,
    bytes_text,
    counted,
    shortened,
    state_text,
    table,
    visible,
)
from .progress import while_reading
from .search_options import when
from .settings import opened, settle
from .stopping import interruptible

__all__ = ["audit", "stats", "top"]

BAR: Final = 12
BARS, MEANINGS = 80, 60
"""Columns of a terminal that shows bars, and the meaning of each state."""
SAMPLE: Final = 1000
"""How many of the newest records are used to measure growth."""
LONG: Final = 600
"""Seconds: a burst says nothing about what the retention will hold."""
SHOWN: Final = 5
"""Keys and actions that `top` lists."""
REST: Final = 5
"""`top` rests at least this many times as long as its look at the store took."""


@dataclass(frozen=True, slots=True)
class StatsReading:
    """What one look at a store shows."""

    url: str
    stats: Stats
    measured: Measured

    @classmethod
    def at(cls, receiver: Receiver) -> StatsReading:
        return cls.of(receiver, *receiver._runtime.run(receiver._together(*cls.ASKS)))

    ASKS: ClassVar = (Survey(), Browse(SAMPLE))

    @classmethod
    def of(cls, receiver: Receiver, stats: Stats, newest: Page) -> StatsReading:
        """From the answers to `ASKS`."""
        return cls(receiver.store.url, stats, measured_from(newest.view()))

    @property
    def per_key(self) -> float | None:
        """Bytes per record, indexes included."""
        size, total = self.stats.size, self.stats.total
        return size / total if size is not None and total else None

    def data(self) -> dict[str, Any]:
        stats, measured = self.stats, self.measured
        oldest = stats.oldest_in_progress
        return {
            "store": self.url,
            "total": stats.total,
            "by_state": {state.value: stats.by_state.get(state, 0) for state in State},
            "unreadable": stats.unreadable,
            "stuck": stats.stuck,
            "expired": stats.expired,
            "oldest_in_progress": None if oldest is None else oldest.isoformat(),
            "bytes": stats.size,
            "bytes_per_key": self.per_key,
            "new_keys_per_second": measured.new_keys,
            "late_duplicates": measured.late,
        }

    def lines(self) -> list[str]:
        """What follows the table of states."""
        stats = self.stats
        said = [f"{counted(stats.total, 'key')}; {stats.expired:,} past their retention (`sweep`)"]
        if stats.unreadable:
            said.append(f"{stats.unreadable:,} cannot be read (`keys list` names them)")
        if stats.oldest_in_progress is not None:
            late = f", {stats.stuck:,} past their lease (taken over at their next delivery)"
            said.append(
                f"oldest work in progress: {ago(stats.oldest_in_progress)}{late if stats.stuck else ''}"
            )
        if self.per_key is not None and stats.size is not None:
            said.append(f"size: {bytes_text(stats.size)}, {self.per_key:,.0f} bytes per key")
        return [*said, *self._growth(), *self._late()]

    def _growth(self) -> list[str]:
        measured, rate = self.measured, self.measured.new_keys
        if rate is None:
            return []
        pace = f"{rate:,.1f}/s" if rate >= 1 else f"{rate * 3600:,.1f}/h"
        span = duration_text(measured.span)
        said = f"growth: {pace} new keys (the newest {measured.records:,}, in {span})"
        if measured.span >= LONG and measured.retention is not None and self.per_key is not None:
            kept = rate * measured.retention * self.per_key
            said += f"; at this rate, the records of one retention take {bytes_text(kept)}"
        return [said]

    def _late(self) -> list[str]:
        late = self.measured.late
        if not late:
            return []
        return [f"late duplicates: {late:,} of the newest {self.measured.records:,} ran again"]


def stats(store: StoreOption = None, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Count the keys in each state; show overdue work, bytes and growth.

    A repeat writes nothing, so a store does not count duplicates: metrics and [cyan]/health[/] of a running
    service do. Example: [cyan]twicesafe stats --store sqlite:///keys.db[/]
    """
    screen = Screen(json)
    with opened(settle(store, config)) as receiver, while_reading(screen):
        look = StatsReading.at(receiver)
    if json:
        screen.data(look.data())
        return
    screen.place(look.url)
    screen.out.print(_states(look.stats, screen.out.width))
    for line in look.lines():
        screen.out.print(line, soft_wrap=True, markup=False)


def _states(found: Stats, width: int, before: Stats | None = None) -> Table:
    """A narrow terminal shows no bars, a very narrow one no meanings: the numbers are always whole."""
    made = table(
        "state", "keys", *([""] if width >= BARS else []), *([""] if width >= MEANINGS else [])
    )
    for column in made.columns:
        column.no_wrap = True
    numbers = [f"{found.by_state.get(state, 0):,}" for state in State]
    made.columns[0].min_width, made.columns[1].min_width = 11, max(5, *map(len, numbers))
    made.columns[1].justify = "right"
    if width >= BARS:
        made.columns[2].min_width = BAR
    most = max(found.by_state.values(), default=0)
    for state, shown in zip(State, numbers, strict=True):
        number = found.by_state.get(state, 0)
        style, meaning = STATES[state]
        change = 0 if before is None else number - before.by_state.get(state, 0)
        bar = Text(_bar(number, most), style)
        note = Text(f"{change:+,}" if change else meaning if number else "", "dim")
        made.add_row(state_text(state), shown, *[bar, note][width < BARS : 2 - (width < MEANINGS)])
    return made


def _bar(number: int, most: int) -> str:
    """A bar relative to the largest number; any number above zero shows at least half a block."""
    cells = number * BAR * 2 // most if most else 0
    return "█" * (cells // 2) + ("▌" if cells % 2 or (number and not cells) else "")


# --- audit -----------------------------------------------------------------------------------


def audit(
    since: Annotated[
        Any,
        typer.Option(
            "--since",
            metavar="WHEN",
            parser=when(),
            help="Within this time (1d), or since this moment (UTC).",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="Show at most N actions.")
    ] = 50,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """List what operators did to keys and outbox lanes: who, what and why, newest first.

    Actions on a key are kept as long as its record, actions on a lane until you delete them.
    Example: [cyan]twicesafe audit --since 1d[/]
    """
    screen = Screen(json)
    chosen: When | None = since
    with opened(settle(store, config)) as receiver, while_reading(screen):
        log = receiver.audit_log(limit=limit, since=chosen)
    if json:
        screen.data({"actions": [{**_subject(entry), **audit_data(entry)} for entry in log]})
        return
    if not log:
        screen.say(Text("no operator has changed a key or a lane", "dim"))
        return
    screen.out.print(_actions(log, screen.out.width, screen.piped))


def _subject(entry: AuditEntry) -> dict[str, Any]:
    if entry.lane is not None:
        return {"lane": entry.lane}
    return {"id": entry.id.hex(), "key": entry.value, "scope": list(entry.scope)}


_ACTION_COLUMNS: Final = {
    "when": 0, "who": 0, "did": 0, "id": 0, "key": 60, "scope": 100, "state before": 90, "why": 0,
}  # fmt: skip
"""Each with the width of a terminal that shows it: who, what and why are never left out."""


def _actions(log: list[AuditEntry], width: int, whole: bool = False) -> Table:
    columns = {name: width >= least for name, least in _ACTION_COLUMNS.items()}
    made = table(*(name for name, shown in columns.items() if shown))
    for column in made.columns:
        column.no_wrap = column.header in ("when", "did", "id", "state before")
        column.overflow = "fold"
    for entry in log:
        scope = BETWEEN.join(entry.scope)
        key = entry.value if entry.lane is None else f"lane {entry.lane}" if whole else "lane"
        cells: tuple[str | Text, ...] = (
            ago(entry.at),
            Text(visible(entry.by)),
            entry.action,
            entry.short,
            Text(visible(key) if whole else shortened(key, 24)),
            Text(visible(scope) if whole else shortened(scope, 24)),
            state_text(entry.state_before),
            Text(visible(entry.why)),
        )
        made.add_row(*(cell for cell, shown in zip(cells, columns.values(), strict=True) if shown))
    return made


# --- top -------------------------------------------------------------------------------------


def top(
    every: Annotated[
        float,
        typer.Option(
            "--every", metavar="DURATION", parser=duration(0.2), help="Time between two refreshes."
        ),
    ] = "5s",  # type: ignore[assignment]
    once: Annotated[bool, flag("--once", help="Print one screen, then exit.")] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Watch a store: keys by state, size, growth, keys that wait for an operator, the last actions.

    Each refresh counts all records, so a large store is refreshed less often than --every says. An outage of the
    store does not end it.
    Example: [cyan]twicesafe top --every 2s[/]
    """
    screen = Screen(json)
    with opened(settle(store, config)) as receiver, interruptible() as stop:
        before = None
        # rich shows nothing on a dumb terminal, such as the shell of an editor: there each look is printed.
        can_redraw = screen.out.is_terminal and not screen.out.is_dumb_terminal
        is_live = can_redraw and not (once or json)
        with (
            Live(console=screen.out, screen=True, auto_refresh=False)
            if is_live
            else nullcontext() as live
        ):
            while True:
                began = time.monotonic()
                try:
                    look, shown = _screenful(receiver, screen.out.width, before)
                except StoreUnavailableError as error:  # it may be back by the next look
                    if once:
                        raise
                    if live is None:
                        report_error(screen, error)
                    else:
                        live.update(Text(f"✗ {visible(str(error))}", "red"), refresh=True)
                else:
                    before = look.stats
                    if live is not None:
                        live.update(shown, refresh=True)
                    elif json:
                        screen.data(look.data(), None)
                    else:
                        screen.out.print(shown)
                if once or stop.wait(_rest(every, began)):
                    return


def _rest(every: float, began: float) -> float:
    return max(every, REST * (time.monotonic() - began))


def _screenful(receiver: Receiver, width: int, before: Stats | None) -> tuple[StatsReading, Group]:
    asks = (
        *StatsReading.ASKS,
        Browse(SHOWN, states=(State.HELD, State.PARKED)),
        Browse(SHOWN, stuck=True),
        AuditLog(SHOWN),
    )
    stats, newest, *lists, actions = receiver._runtime.run(receiver._together(*asks))
    look = StatsReading.of(receiver, stats, newest)
    parts: list[Any] = [Text(visible(look.url), "dim"), _states(look.stats, width, before)]
    parts += [Text(line) for line in look.lines()]
    for title, page in zip(("waits for an operator", "stuck"), lists, strict=True):
        if page.rows:
            parts += [Text(f"\n{title}", "bold"), _few(page.view(), width)]
    if actions:
        parts += [Text("\nlast actions", "bold"), _actions(actions, width)]
    return look, Group(*parts)


def _few(records: list[Record], width: int) -> Table:
    """A narrow terminal cuts the keys and shows no errors."""
    made = table("", "", "", "", "", header=False)
    for column in made.columns:
        column.no_wrap = True
    made.columns[0].min_width = 8  # an id that is cut cannot be asked for
    ages = [ago(record.changed_at) for record in records]
    spare = width - 8 - max(len(record.state) for record in records) - max(map(len, ages)) - 10
    cells = min(32, spare // 2 if spare >= 32 else spare)
    for record, age in zip(records, ages, strict=True):
        error = shortened(record.error, cells) if spare >= 32 else ""
        key = Text(shortened(record.value, max(4, cells)))
        made.add_row(record.short, state_text(record.state), key, age, Text(error))
    return made
