"""The overview: is everything well, what needs an operator, how much comes in, how late duplicates are. Pure.

What a store knows, every dashboard shows: counts, sizes, the newest records. Duplicates write nothing, so
rates and ages of duplicates are known only in a process that receives them and has observers. Elsewhere the
page says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from .._core.health import Check, Health, Recent
from .._core.outbox.requests import Depth
from .._edges.readable import ago
from .._values.own_records import is_own
from .._values.quantities import bytes_text, counted, duration_text, percent_text
from .._values.records import Record, State, Stats
from ..observers._activity import Activity, Slice, Trouble
from ..observers._history import Ages
from ..planning import Measured, measured_from
from ._charts import Figure
from ._filters import Filters
from ._metrics import ServiceMetrics
from ._overview_charts import ages, deliveries, new_keys, shares
from ._timeline import key_of, trouble_entry

__all__ = ["Overview", "OverviewData", "ReceivedCounts", "overview"]

TROUBLES: Final = 8
"""Events of trouble on the page."""


@dataclass(frozen=True, slots=True)
class ReceivedCounts:
    """What was received: by this process, if it has observers, or by services whose metrics are read."""

    recent: Recent
    course: list[Slice]
    ages: Ages
    trouble: list[Trouble] | None = None
    """What this process saw; None: it receives nothing itself."""
    origin: str = "of this process"

    @classmethod
    def of(cls, activity: Activity) -> ReceivedCounts:
        return cls(activity.recent(), activity.course(), activity.ages(), list(activity.trouble))

    @classmethod
    def read(cls, metrics: ServiceMetrics) -> ReceivedCounts:
        found = metrics.history
        return cls(found.recent(), found.course(), metrics.ages(), None, metrics.origin)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewData:
    """Everything that the page is made from."""

    now: datetime
    health: Health
    stats: Stats | None
    counted_at: datetime
    newest: Sequence[Record]
    """A sample of the newest records."""
    window: float
    """The policy's retention, in seconds."""
    seen: ReceivedCounts | None = None
    depth: Depth | None = None
    """The outbox, if the store has one."""
    problem: str = ""
    """Metrics that could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Something that waits for an operator."""

    count: str
    title: str
    words: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRow:
    state: State
    count: str
    share: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleRow:
    """One of the last failures, takeovers and refused writes."""

    at: datetime
    title: str
    detail: str
    short: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    status: str
    headline: str
    counted: str
    tasks: tuple[Task, ...]
    tiles: tuple[Tile, ...]
    states: tuple[StateRow, ...]
    share_bar: str
    figures: tuple[Figure, ...]
    missing: str
    """What cannot be shown here, and why; empty: nothing is missing."""
    trouble: tuple[TroubleRow, ...] | None
    """The newest first; None: this process receives nothing."""
    checks: tuple[Check, ...]
    """First those that need attention, last those that cannot be judged."""


def overview(look: OverviewData) -> Overview:
    newest = [record for record in look.newest if not is_own(record.scope)]
    measured = measured_from(newest)
    stats = look.stats
    return Overview(
        status=look.health.status,
        headline=_headline(look.health),
        counted=f"counted {ago(look.counted_at, look.now)}" if stats else "not counted",
        tasks=tuple(_tasks(stats, look.depth)),
        tiles=tuple(_tiles(look, newest, measured)),
        states=tuple(_states(stats)),
        share_bar=shares(stats),
        figures=(*_of_this_process(look), new_keys(newest, look.now, measured)),
        missing=look.problem or ("" if look.seen else _missing(look.window, measured)),
        trouble=_troubles(look.seen),
        checks=tuple(sorted(look.health.checks, key=lambda check: _ORDER[check.status])),
    )


_ORDER: Final = {"failing": 0, "degraded": 1, "ok": 2, "unknown": 3}


def _of_this_process(look: OverviewData) -> tuple[Figure, ...]:
    if look.seen is None:
        return ()
    seen = look.seen
    return deliveries(seen.course, seen.origin), ages(seen.ages, look.window)


def _missing(window: float, measured: Measured) -> str:
    return (
        "A duplicate writes nothing to the store, so only a process that receives deliveries can show how many "
        "come, and how old they are. To see that, mount the dashboard in your service, with observers: "
        "`Receiver.open(url, observers=[LogObserver()])`; or let the command read its metrics: `--metrics "
        "http://127.0.0.1:9100/metrics`. What the store shows: of its "
        f"{counted(measured.records, 'newest record')}, {measured.late:,} came after the window of "
        f"{duration_text(window)} and ran again."
    )


def _headline(health: Health) -> str:
    bad = [check for check in health.checks if check.status in ("degraded", "failing")]
    if not bad:
        return "All checks pass"
    needs = "needs" if len(bad) == 1 else "need"
    return f"{counted(len(bad), 'check')} {needs} a look"


def _tasks(stats: Stats | None, depth: Depth | None) -> list[Task]:
    found: list[Task] = []
    by_state = {} if stats is None else stats.by_state
    for state, title, words in (
        (State.HELD, "held", "The outcome is unknown. Find out, then resolve or release each."),
        (State.PARKED, "parked", "The attempts are used up. Fix the cause, then release."),
    ):
        if count := by_state.get(state, 0):
            path = f"keys{Filters(states=(state,)).url()}"
            found.append(Task(count=f"{count:,}", title=title, words=words, path=path))
    if stats is not None and stats.stuck:
        words = "In progress past the lease. The next delivery of each takes over."
        path = f"keys{Filters(stuck=True).url()}"
        found.append(Task(count=f"{stats.stuck:,}", title="stuck", words=words, path=path))
    if depth is not None and depth.parked_lanes:
        words = "A message was refused too often. Fix the cause, then retry or skip."
        lanes = f"{depth.parked_lanes:,}"
        found.append(Task(count=lanes, title="parked lanes", words=words, path="outbox"))
    return found


def _tiles(look: OverviewData, newest: Sequence[Record], measured: Measured) -> list[Tile]:
    found: list[Tile] = []
    stats, seen = look.stats, look.seen
    if seen is not None:
        recent = seen.recent
        span = max(recent.seconds, 1.0)
        lately = f"in the last {duration_text(span)}"
        found.append(Tile(label="Deliveries", value=_rate(recent.deliveries / span), note=lately))
        share = recent.duplicates / recent.deliveries if recent.deliveries else 0.0
        note = f"{recent.duplicates:,} of {recent.deliveries:,}"
        found.append(Tile(label="Duplicates", value=percent_text(share), note=note))
        p99 = "–" if recent.store_p99 is None else f"≤ {_time(recent.store_p99)}"
        found.append(Tile(label="Store p99", value=p99, note="99 % of answers within"))
    elif measured.new_keys is not None:
        note = f"over the newest {measured.records:,}"
        found.append(Tile(label="New keys", value=_rate(measured.new_keys), note=note))
    if stats is not None:
        note = f"{stats.expired:,} past their retention" if stats.expired else "none to sweep"
        found.append(Tile(label="Records", value=f"{stats.total:,}", note=note))
        found += _size(stats, measured)
    found += _run_times(newest)
    if look.depth is not None:
        note = (
            f"oldest {duration_text(look.depth.oldest_age)}" if look.depth.pending else "none waits"
        )
        found.append(Tile(label="Outbox pending", value=f"{look.depth.pending:,}", note=note))
    return found


def _size(stats: Stats, measured: Measured) -> list[Tile]:
    if stats.size is None:
        return []
    note = f"{bytes_text(stats.size / stats.total)} per key" if stats.total else ""
    if stats.total and measured.new_keys is not None:
        daily = measured.new_keys * 86400 * stats.size / stats.total
        note += f", {bytes_text(daily)} more per day"
    return [Tile(label="Store size", value=bytes_text(stats.size), note=note)]


def _run_times(newest: Sequence[Record]) -> list[Tile]:
    """From the claim to the answer, of work that needed one attempt."""
    took = sorted(
        (record.changed_at - record.created_at).total_seconds()
        for record in newest
        if record.state is State.COMPLETED and record.attempt == 1 and record.cause is None
    )
    if len(took) < 5:
        return []
    high = took[min(len(took) - 1, int(len(took) * 0.95))]
    note = f"median; 95 % within {_time(high)}"
    return [Tile(label="Claim to answer", value=_time(statistics.median(took)), note=note)]


def _troubles(seen: ReceivedCounts | None) -> tuple[TroubleRow, ...] | None:
    if seen is None or seen.trouble is None:
        return None
    return tuple(_trouble(seen.trouble))


def _trouble(seen: Sequence[Trouble]) -> Iterator[TroubleRow]:
    found = ((one, trouble_entry(one)) for one in reversed(seen))
    for one, entry in islice(((one, entry) for one, entry in found if entry), TROUBLES):
        key = key_of(one)
        assert entry.at is not None
        yield TroubleRow(
            at=entry.at,
            title=entry.title,
            detail=entry.detail,
            short="" if key is None else key.short,
            path="" if key is None else f"keys/{key.id.hex()}",
        )


def _states(stats: Stats | None) -> list[StateRow]:
    if stats is None:
        return []
    return [
        StateRow(
            state=state,
            count=f"{count:,}",
            share=percent_text(count / stats.total),
            path=f"keys{Filters(states=(state,)).url()}",
        )
        for state in State
        if (count := stats.by_state.get(state, 0))
    ]


def _rate(per_second: float) -> str:
    if per_second >= 10:
        return f"{per_second:,.0f}/s"
    if per_second >= 0.1:
        return f"{per_second:.1f}/s"
    if per_second * 60 >= 0.1:
        return f"{per_second * 60:.1f}/min"
    return f"{per_second * 3600:.1f}/h"


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.2g} s" if seconds < 10 else duration_text(seconds)
