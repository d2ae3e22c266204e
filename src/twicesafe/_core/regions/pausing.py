"""What a store tells followers: which homes were moved to it, and which of them it is in doubt about.

**A region in doubt is not copied.** After a failover the new region may claim a key that a worker of the old
region still works on. A copy of that claim in the old region's store would take the key from its worker: the
answer would be lost, and a claim before the cut would get a fence of the later epoch. The old region is lost,
so it cannot be told. Instead, a document in the new region's store says which homes are in doubt. It is
written before the epoch opens, so every record of that epoch is younger.

**A region that took over keeps what it has begun.** A claim may reach the old region's store after the cut. It
starts nothing, but a fence that is a time makes it look newer than the work that the new region has begun. The
same document tells followers that this region took over. It is written before the cut is chosen, so every such
claim is younger.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from ..._values.keys import Key
from ..._values.records import Row, State
from ...errors import CorruptRecordError
from ..durable.run_requests import FOREVER
from ..protocol import Adopt, Read
from .epochs import OWN_SCOPES, On, RegionFlow

__all__ = ["announce", "has_taken_over", "homes_in_doubt", "pause", "resume"]

DOCUMENT: Final = Key("in doubt", scope=(OWN_SCOPES[1], "pause"), absolute=True)


class _Doubt(msgspec.Struct, frozen=True):
    home: str
    number: int
    """Of the epoch."""
    lasts: bool


def homes_in_doubt(place: str) -> RegionFlow[tuple[str, ...]]:
    """The homes about whose keys this store is in doubt: it must not be copied now."""
    _, known = yield from _read(place)
    return tuple(doubt.home for doubt in known.values() if doubt.lasts)


def has_taken_over(place: str) -> RegionFlow[bool]:
    """Whether a home was ever moved to this store."""
    _, known = yield from _read(place)
    return bool(known)


def announce(place: str, home: Key, now: int) -> RegionFlow[None]:
    """Write that this home may be moved to this store. What the document says about its epochs stays."""
    yield from _write(place, home, _Doubt(home.value, 0, False), now)


def pause(place: str, home: Key, number: int, now: int) -> RegionFlow[None]:
    """This epoch will be in doubt."""
    yield from _write(place, home, _Doubt(home.value, number, True), now)


def resume(place: str, home: Key, number: int, now: int) -> RegionFlow[None]:
    """This epoch and older ones are not, or no longer, in doubt."""
    yield from _write(place, home, _Doubt(home.value, number, False), now)


def _write(place: str, home: Key, doubt: _Doubt, now: int) -> RegionFlow[None]:
    """Until a read finds it: another operator may write at the same time. What is said of a later epoch stays."""
    label = home.scope[-1] + "/" + home.value
    while True:
        row, known = yield from _read(place)
        said = known.get(label)
        if said is not None and (said.number > doubt.number or not (said.lasts or doubt.lasts)):
            return
        if said == doubt:
            return
        document = msgspec.json.encode({**known, label: doubt})
        if row is None:
            yield On(place, Adopt(_new(document, now)))
        else:  # an operator may have forgotten it: then only its fence is left
            changed = replace(_new(document, now), fence=row.fence + 1)
            yield On(place, Adopt(changed, over=row.fence))


def _read(place: str) -> RegionFlow[tuple[Row | None, dict[str, _Doubt]]]:
    row: Row | None = yield On(place, Read(DOCUMENT.id))
    if row is None or row.result is None:
        return row, {}
    try:
        return row, msgspec.json.decode(row.result, type=dict[str, _Doubt])
    except msgspec.MsgspecError as error:
        raise CorruptRecordError(
            f"which keys are in doubt cannot be read ({error}); nothing is copied from this store; forget "
            "its record, then run regions.settle() again",
            key=DOCUMENT,
        ) from error


def _new(document: bytes, now: int) -> Row:
    key = DOCUMENT
    return Row(
        key.id, key.scope, key.value, State.COMPLETED, 1, 1, bytes(16), 0, now, now, now + FOREVER,
        result=document,
    )  # fmt: skip
