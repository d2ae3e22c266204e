"""The epoch of a set of keys: which region serves them, since when, and what it must doubt.

An epoch is a document in the *register*, a store that all regions can reach. It is the result of an
ordinary completed record, and `Rewrite` replaces it if it is still the one that was read. So every
store can be the register.

    open     its region starts work
    closed   no region starts work: the epoch is over, and the next one is not open yet
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from ..._values.keys import Key, new_owner
from ..._values.own_records import REGISTER_SCOPE
from ..._values.records import Row, State
from ...errors import ConfigurationError, CorruptRecordError, UsageError
from ..durable.run_requests import FOREVER
from ..protocol import Ack, Adopt, Claimed, ClaimRequest, Complete, Read, Rewrite, Verdict

__all__ = [
    "REGISTER",
    "SOURCE",
    "TARGET",
    "Epoch",
    "On",
    "RegionFlow",
    "change",
    "create",
    "keep_document",
    "key_of",
    "look",
    "written",
]

T = TypeVar("T")
RegionFlow: TypeAlias = Generator[Any, Any, T]

REGISTER: Final = "register"

SOURCE: Final = "source"
"""The place of the store that records are copied from."""
TARGET: Final = "target"
"""The place of the store that they are copied to."""

LEASE: Final = 30_000


class On(NamedTuple):
    """Perform this request, or this list of requests, on the store at this place."""

    place: str
    request: Any


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """Who serves the keys of one home. Times are milliseconds since 1970."""

    number: int
    """1, 2, …: raised by every failover and every switch."""
    region: str
    """The region that serves these keys."""
    closed: bool = False
    """No region starts work: a failover or a switch is under way."""
    since: int = 0
    """When this was written: its region serves since then, or nothing does. It rises with every
    change, so it tells which of two moves came later, whatever the clocks of their operators
    say."""
    cut: int = 0
    """Messages sent before this may have been worked on under an older epoch. 0: there is none."""
    base: int = 0
    """Every fence of this epoch is above this number, and every fence of older epochs below."""
    source: str = ""
    """The region that served them before."""
    copied_until: int = 0
    """Everything that region recorded before this was copied when the epoch began."""
    copied_high: int = 0
    """The same by the clock of that region's store."""
    doubt: bool = False
    """What that region did between `copied_until` and `cut` is not known here."""
    uncopied: tuple[str, ...] = ()
    """Ids, in hex, of records of older epochs that could not be read: their keys stay in doubt."""

    def lacks(self, key: Key) -> bool:
        """Whether this region may lack a record of this key, or its last state."""
        return self.doubt or (bool(self.uncopied) and key.id.hex().startswith(self.uncopied))


def key_of(name: str, home: str) -> Key:
    """The key of the record in the register."""
    return Key(home, scope=(REGISTER_SCOPE, name), absolute=True)


def written(epoch: Epoch) -> bytes:
    return msgspec.json.encode(epoch)


def look(key: Key) -> RegionFlow[tuple[Epoch, bytes] | None]:
    """The epoch, and its bytes as they are in the register."""
    row: Row | None = yield On(REGISTER, Read(key.id))
    if row is None or row.state is not State.COMPLETED or row.result is None:
        return None
    try:
        return msgspec.json.decode(row.result, type=Epoch), row.result
    except msgspec.MsgspecError as error:
        raise CorruptRecordError(
            f"the epoch of {key.value!r} in the register cannot be read ({error}); no region starts work "
            "for its keys; look at the record in the register",
            key=key,
        ) from error


def create(key: Key, region: str, now: int) -> RegionFlow[Epoch]:
    """The first epoch, unless there is one."""
    found = yield from look(key)
    if found is None:
        first = Epoch(number=1, region=region, since=now)
        owner = new_owner()
        answer: Claimed = yield On(REGISTER, ClaimRequest(key, owner, LEASE, 1_000_000))
        if answer.verdict is Verdict.WON:
            yield On(REGISTER, Complete(key.id, owner, answer.fence, FOREVER, written(first)))
        found = yield from look(key)
    if found is None:
        raise ConfigurationError(
            f"the register could not keep the first epoch of {key.value!r}; look at its record with "
            "twicesafe keys show, then try again",
            key=key,
        )
    return found[0]


def keep_document(
    place: str, key: Key, document: bytes, row: Row | None, now: int
) -> RegionFlow[None]:
    """Write a document that never expires in place of this record, unless another process changes
    it meanwhile. An operator may have forgotten it: then only its fence is left. The register may
    be a store that takes no copies.
    """
    over = None if row is None else row.fence
    kept = Row(
        key.id, key.scope, key.value, State.COMPLETED, (over or 0) + 1, 1, bytes(16), 0, now, now, now + FOREVER,
        result=document,
    )  # fmt: skip
    yield On(place, Adopt(kept, over=over))


def change(key: Key, before: bytes, now: int, **changes: Any) -> RegionFlow[tuple[Epoch, bytes]]:
    """Replace the epoch that was read. No two changes write the same bytes."""
    read = msgspec.json.decode(before, type=Epoch)
    after = replace(read, since=max(now, read.since + 1), **changes)
    document = written(after)
    ack = yield On(REGISTER, Rewrite(key.id, State.COMPLETED, before, document))
    if ack is not Ack.OK:
        raise UsageError(
            f"the epoch of {key.value!r} was changed by another process meanwhile; nothing was changed; "
            "look at regions.status(), then decide again",
            key=key,
        )
    return after, document
