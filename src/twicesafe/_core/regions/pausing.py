"""A region in doubt is not copied: its own store says so, and followers read it there.

After a failover the new region may claim a key that a worker of the old region still works on. A copy of
that claim in the old region's store would take the key from its worker: the answer would be lost, and a
claim before the cut would get a fence of the later epoch. The old region cannot be told, as it is lost.
So the new region's store has a document: which homes it is in doubt about. It is written before the epoch
opens, so every record of that epoch is younger.
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

__all__ = ["homes_in_doubt", "pause", "resume"]

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


def pause(place: str, home: Key, number: int, now: int) -> RegionFlow[None]:
    """This epoch will be in doubt."""
    yield from _write(place, home, _Doubt(home.value, number, True), now)


def resume(place: str, home: Key, number: int, now: int) -> RegionFlow[None]:
    """This epoch is not in doubt, or not any more; nor is an older one."""
    yield from _write(place, home, _Doubt(home.value, number, False), now)


def _write(place: str, home: Key, doubt: _Doubt, now: int) -> RegionFlow[None]:
    """Until a read finds it: another operator may write at the same time. What is said of a later epoch stays."""
    label = home.scope[-1] + "/" + home.value
    while True:
        row, known = yield from _read(place)
        said = known.get(label, _Doubt(home.value, 0, False))
        if said.number > doubt.number or said == doubt or not (said.lasts or doubt.lasts):
            return
        document = msgspec.json.encode({**known, label: doubt})
        if row is None:
            yield On(place, Adopt(_new(document, now)))
        else:
            changed = replace(row, fence=row.fence + 1, result=document)
            yield On(place, Adopt(changed, over=row.fence))


def _read(place: str) -> RegionFlow[tuple[Row | None, dict[str, _Doubt]]]:
    row: Row | None = yield On(place, Read(DOCUMENT.id))
    if row is None or row.result is None:
        return None, {}
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
