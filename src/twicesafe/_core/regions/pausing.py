"""What a store says about the homes that were moved to it, so that followers know what they must not copy.

A follower asks no register. It may be frozen for an hour and then go on, and the region that it
copies from may be lost, so that nothing can be told to it. Instead, each store has a document with
one entry for each home that was, or is being, moved to it. A pass reads the documents of both
stores *after* each page of the source.

**A region in doubt is not copied.** After a failover the new region may claim a key that a worker
of the old region still works on. A copy of that claim in the old region's store would take the key
from its worker: the answer would be lost, and a claim before the cut would get a fence of the later
epoch. The entry of the new region says that it is in doubt. It is written before the epoch opens,
so every record of that epoch is younger.

**The region that serves gets no late claims.** A claim may reach the old region's store after the
cut. It starts nothing, but where fences are times it is above the work that the new region has
begun. So a store that serves a home takes no unfinished record above the base of its epoch from a
store that served the home earlier (`Bound`). Its entry is written before the cut is chosen. So a
page that was read before it has only fences below the base, and may be copied at any later time:
the work of the new region is above the base.

While a move is under way, which of the two stores will serve is not known. Then neither gets an
unfinished record of the other. What is left out is tried again by every pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import msgspec

from ..._values.keys import Key
from ..._values.own_records import FOLLOW_SCOPE
from ..._values.records import Row, State
from ...errors import CorruptRecordError
from ..protocol import Read
from .epochs import Epoch, On, RegionFlow, keep_document

__all__ = [
    "CLOSED",
    "Bound",
    "Homes",
    "announce",
    "homes_of",
    "in_doubt",
    "label_of",
    "late_bounds",
    "pause",
    "serve",
]

DOCUMENT: Final = Key("in doubt", scope=(FOLLOW_SCOPE, "pause"), absolute=True)

CLOSED: Final = (State.COMPLETED, State.FAILED, State.FORGOTTEN)
"""Nothing starts from these, and each is final: copied at all times."""


class _Home(msgspec.Struct, frozen=True):
    home: str
    lasts: bool
    """The epoch is in doubt."""
    since: int
    """Of the register's document that this is about: tells which of two entries is the later one."""
    serves: bool = False
    """The epoch was opened here. Else the move may still fail."""
    base: int = 0
    """Of that epoch."""


Homes: TypeAlias = dict[str, _Home]
"""The entries of one store: by name of the `Regions`, and home."""


class Bound(NamedTuple):
    """Unfinished records of this home must not have a fence above this, or they are late."""

    label: str
    fence: int
    served: bool
    """The target serves this home. False: it may."""

    def concerns(self, row: Row, may_be_of: Callable[[Row, str], bool]) -> bool:
        if row.state in CLOSED or row.fence <= self.fence:
            return False
        return may_be_of(row, self.label)


def label_of(home: Key) -> str:
    """`home`: in the register."""
    return home.scope[-1] + "/" + home.value


def homes_of(place: str) -> RegionFlow[Homes]:
    return (yield from _read(place))[1]


def in_doubt(known: Homes) -> tuple[str, ...]:
    """The homes about whose keys this store is in doubt: it must not be copied now."""
    return tuple(each.home for each in known.values() if each.lasts)


def late_bounds(source: Homes, target: Homes) -> list[Bound]:
    """What a pass must not copy from this source to this target."""
    bounds = []
    for label, there in target.items():
        here = source.get(label)
        since = 0 if here is None else here.since
        if here is not None and here.serves and since > there.since:
            continue  # the source serves it, or was the last of the two that did
        served = there.serves and there.since > since
        bounds.append(Bound(label, there.base if served else 0, served))
    return bounds


def announce(place: str, home: Key, since: int, now: int) -> RegionFlow[None]:
    """Write that this home may be moved to this store. `since`: of the document that closed the epoch."""
    yield from _write(place, home, _Home(home.value, False, since), now)


def pause(place: str, home: Key, since: int, now: int) -> RegionFlow[None]:
    """The same, and its epoch will be in doubt."""
    yield from _write(place, home, _Home(home.value, True, since), now)


def serve(place: str, home: Key, epoch: Epoch, now: int) -> RegionFlow[None]:
    """This epoch was opened here, and is not, or no longer, in doubt."""
    entry = _Home(home.value, False, epoch.since, True, epoch.base)
    yield from _write(place, home, entry, now)


def _write(place: str, home: Key, entry: _Home, now: int) -> RegionFlow[None]:
    """Until a read finds it: another operator may write at the same time. What a later change says stays."""
    label = label_of(home)
    while True:
        row, known = yield from _read(place)
        said = known.get(label)
        if said is not None and (said == entry or said.since > entry.since):
            return
        document = msgspec.json.encode({**known, label: entry})
        yield from keep_document(place, DOCUMENT, document, row, now)


def _read(place: str) -> RegionFlow[tuple[Row | None, Homes]]:
    row: Row | None = yield On(place, Read(DOCUMENT.id))
    if row is None or row.result is None:
        return row, {}
    try:
        return row, msgspec.json.decode(row.result, type=Homes)
    except msgspec.MsgspecError as error:
        raise CorruptRecordError(
            f"which keys are in doubt cannot be read ({error}); nothing is copied from or to it; forget the "
            "record, then run regions.settle() again",
            key=DOCUMENT,
        ) from error
