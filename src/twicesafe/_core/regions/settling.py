"""Settling: what the records of the region that served before say about keys that were in doubt here.

An answer of the old region counts, unless there is one here. If both regions did the work, the
record says so. Work that has not ended may still be running there, so a key about which this region
has not decided stays in doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from ..._values.keys import Key
from ..._values.records import Row, State
from ...errors import CorruptRecordError, SchemaVersionError, UsageError
from ..protocol import Ack, Adopt, Browse, Page, Read
from .claiming import DOUBT, PROBED, RAN, UNDECIDED, held, is_decided, mark
from .epochs import SOURCE, TARGET, Epoch, On, RegionFlow
from .pausing import CLOSED, Homes, label_of

__all__ = ["ANSWERED", "UNFINISHED", "Settled", "Settling", "learn", "settle_row"]

UNFINISHED = (State.IN_PROGRESS, State.RELEASED, State.SUSPENDED)
ANSWERED = (State.COMPLETED, State.FAILED)
OPEN = (State.IN_PROGRESS, State.RELEASED, State.HELD)


class Settling(NamedTuple):
    """A pass that also compares the records of older epochs with those of this region."""

    epoch: Epoch
    high: int | None
    """Changes before this one, by the source's clock, were copied when the epoch began. None: go on where the
    last pass ended."""
    ours: Callable[[Key], bool]
    """Whether the epoch is about this key."""
    home: Key
    """In the register."""

    def concerns(self, row: Row) -> bool:
        """Whether it is a record of an older epoch."""
        return row.fence <= self.epoch.base and self.is_ours(row)

    def bounded(self, row: Row) -> Row:
        """A claim that reached the old region after the cut starts nothing, and may hide work that
        was started: it is of an older epoch, although a fence that is a time is above the base."""
        if row.state not in CLOSED and row.fence > self.epoch.base and self.is_ours(row):
            return replace(row, fence=self.epoch.base)
        return row

    def refuse_overtaken(self, target: Homes) -> None:
        """Another operator has moved this home to the target since, and may have chosen a lower base."""
        said = target.get(label_of(self.home))
        if said is not None and said.since > self.epoch.since:
            raise UsageError(
                f"the keys of {self.home.value!r} were moved by another operator meanwhile; no keys were moved here; "
                "look at regions.status(), then decide again",
                key=self.home,
            )

    def is_ours(self, row: Row) -> bool:
        return self.ours(Key(row.value, scope=row.scope, absolute=True))


class Settled(Protocol):
    """What is counted on the way."""

    newer: int
    learned: int
    twice: list[str]
    unreadable: dict[str, None]


def settle_row(seen: Settled, row: Row, epoch: Epoch) -> RegionFlow[None]:
    """`row`: of the source, and the target has a newer one."""
    here: Row | None = yield On(TARGET, Read(row.id))
    if here is None or here.fence <= row.fence:
        seen.newer += 1
    elif row.state in ANSWERED:
        yield from _learn_row(seen, row, here, epoch)
    else:
        seen.newer += 1
        if row.state is State.IN_PROGRESS and here.state in OPEN and not is_decided(epoch, here):
            yield from _doubt_row(seen, row, here, epoch)


def _learn_row(seen: Settled, row: Row, here: Row, epoch: Epoch) -> RegionFlow[None]:
    """A worker of this region may be at work on the key; then both regions worked on it."""
    if here.state in (*ANSWERED, State.FORGOTTEN) and not here.error.endswith(PROBED):
        if (here.owner, here.state, here.result) == (row.owner, row.state, row.result):
            seen.newer += 1  # settled before
        else:
            seen.twice.append(row.id[:4].hex())
        return
    twice = RAN in here.error or (
        here.state in UNFINISHED and here.attempt > 0 and UNDECIDED not in here.error
    )
    # The report names it once, and may be lost. The record says it for good.
    error = mark(epoch, RAN) if twice else row.error
    learned = replace(row, fence=here.fence + 1, error=error)
    if (yield On(TARGET, Adopt(learned, over=here.fence))) is not Ack.OK:
        yield from settle_row(seen, row, epoch)
        return
    seen.learned += 1
    if twice:
        seen.twice.append(row.id[:4].hex())


def _doubt_row(seen: Settled, row: Row, here: Row, epoch: Epoch) -> RegionFlow[None]:
    """The worker here died, or waits for a reply, before it decided: this key stays in doubt.

    The record of the old region takes the place of that claim, so its owner cannot start the work.
    """
    if here.state is State.HELD:
        doubted = held(epoch, here)
    else:
        doubted = replace(row, fence=here.fence + 1, error=mark(epoch, UNDECIDED))
    if (yield On(TARGET, Adopt(doubted, over=here.fence))) is not Ack.OK:
        seen.newer -= 1
        yield from settle_row(seen, row, epoch)


def learn(seen: Settled, settling: Settling, page: int) -> RegionFlow[None]:
    """Keys that were in doubt here, and to which the source has an answer, however old.

    A pass reads what changed of late. The doubt may be one of an older epoch.
    """
    after = ""
    while True:
        ask = Browse(page, states=OPEN, error=DOUBT, after=after)
        found: Page = yield On(TARGET, ask)
        for here in found.rows:
            try:
                row: Row | None = yield On(SOURCE, Read(here.id))
            except (CorruptRecordError, SchemaVersionError):
                seen.unreadable[here.id.hex()] = None  # so it stays in doubt
                continue
            if row is not None and row.state in ANSWERED and settling.concerns(row):
                yield from settle_row(seen, row, settling.epoch)
        after = found.after
        if not after:
            return
