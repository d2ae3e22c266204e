"""The bytes of a record in etcd, and what is known of a record at one revision.

    <prefix>/r/<id>            the record; kept by an etcd lease once it is finished
    <prefix>/l/<id>            there while a claim or a back-off lasts; empty, kept by an etcd lease
    <prefix>/v/<id>            a result that is too large for the record
    <prefix>/h/<id>/<revision> an action of an operator

The id is the first half of the key's id, as hex digits. A record is a version byte and MessagePack.

The fence of a claim is the revision that wrote it. No transaction knows its own revision in advance, so a
record that was written by a claim says 0, and means the revision of its key. Later writes say the number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from ..._values.records import AuditEntry, Row, State, moment
from ...errors import CorruptRecordError, SchemaVersionError, StoreError
from ..sql.commands import CAUSES, STATES, number_of, owner_bytes, with_whole_id

__all__ = [
    "INLINE",
    "Keys",
    "SeenRecord",
    "act_bytes",
    "act_of",
    "effective",
    "record_bytes",
    "result_missing",
    "row_of",
]

VERSION: Final = b"\x01"
INLINE: Final = 1024
"""Bytes of a result that are kept in the record. Searches read all records, but no larger results."""
POLL: Final = 250
"""Milliseconds to wait for a lease that by our clock should be over, but is not."""


class _Stored(msgspec.Struct, array_like=True):
    state: int
    fence: int
    attempt: int
    owner: bytes
    lease_until: int
    created_at: int
    changed_at: int
    expires_at: int
    hold: bool
    cause: int
    fingerprint: bytes | None
    scope: tuple[str, ...]
    value: str
    error: str
    result: bytes | None
    apart: bool


class _Act(msgspec.Struct, array_like=True):
    at: int
    action: str
    by: str
    why: str
    state_before: int


_encode: Final = msgspec.msgpack.Encoder().encode
_stored: Final = msgspec.msgpack.Decoder(_Stored).decode
_act: Final = msgspec.msgpack.Decoder(_Act).decode


@dataclass(slots=True)
class SeenRecord:
    """A record at one revision, or what we believe about it."""

    row: Row | None = None
    revision: int = 0
    """The revision that last wrote the record; 0: there is none."""
    lease: int = 0
    """The etcd lease that keeps the record; 0: it stays."""
    alive: int = 0
    """The etcd lease of its `l` key; 0: there is none, so the claim or the back-off is over."""
    apart: bool = False
    """Its result has its own key."""
    certain: bool = False
    """It was read, not guessed."""


class Keys:
    """The names of the keys of one store."""

    def __init__(self, prefix: str) -> None:
        self.records, self.alive, self.values, self.acts = (
            f"{prefix}/{kind}/".encode() for kind in "rlvh"
        )

    def of(self, id: bytes) -> tuple[bytes, bytes, bytes]:  # noqa: A002
        """Of this record: itself, its `l` key and its `v` key."""
        name = id[:16].hex().encode()
        return self.records + name, self.alive + name, self.values + name

    def trail(self, id: bytes) -> bytes:  # noqa: A002
        """What the actions on this record begin with."""
        return self.acts + id[:16].hex().encode() + b"/"


def record_bytes(row: Row, fence: int, apart: bool) -> bytes:
    stored = _Stored(
        number_of(row.state),
        fence,
        row.attempt,
        owner_bytes(row),
        row.lease_until,
        row.created_at,
        row.changed_at,
        row.expires_at,
        row.hold,
        number_of(row.cause),
        row.fingerprint,
        row.scope,
        row.value,
        text_of(row.error),
        None if apart else row.result,
        apart,
    )
    return VERSION + _encode(stored)


def row_of(id_: bytes, kv: Any) -> tuple[Row, bool]:
    """The row in this key, without a result that is apart; and whether it is."""
    data = kv.value
    if data[:1] != VERSION:
        raise _unreadable(id_, data)
    try:
        stored = _stored(memoryview(data)[1:])
        row = Row(
            id_,
            stored.scope,
            stored.value,
            STATES[stored.state],
            stored.fence or kv.mod_revision,
            stored.attempt,
            stored.owner,
            stored.lease_until,
            stored.created_at,
            stored.changed_at,
            stored.expires_at,
            stored.hold,
            CAUSES[stored.cause],
            stored.fingerprint,
            stored.result,
            stored.error,
        )
    except (msgspec.MsgspecError, IndexError) as error:
        raise _unreadable(id_, data) from error
    return with_whole_id(row), stored.apart


def _unreadable(id_: bytes, data: bytes) -> StoreError:
    if data[:1] > VERSION and data[0] < 16:
        return SchemaVersionError(
            f"the record {id_[:4].hex()} has layout {data[0]}, this twicesafe knows {VERSION[0]}; the "
            "handler does not run; update twicesafe"
        )
    return CorruptRecordError(
        f"the record {id_[:4].hex()} cannot be read; the handler does not run; look at its key on the "
        "server"
    )


def effective(seen: SeenRecord, now: int) -> Row | None:
    """The row as etcd's leases decide it.

    Its times were written by the clock of a worker, for people to read. Whether a claim, a back-off or a
    retention is over is decided by what is still there. So the times are moved to the right side of now.
    """
    if seen.row is None:
        return None
    row = seen.row
    until, expires = row.lease_until, row.expires_at
    if not seen.alive:
        until = min(until, now)
    elif until <= now:
        until = now + POLL
    if expires:
        expires = max(expires, now + 1)
    if until == row.lease_until and expires == row.expires_at:
        return row
    return replace(row, lease_until=until, expires_at=expires)


def act_bytes(ask: Any, before: State, now: int) -> bytes:
    return VERSION + _encode(
        _Act(now, ask.op, text_of(ask.by), text_of(ask.why), number_of(before))
    )


def act_of(id_: bytes, kv: Any) -> AuditEntry:
    if kv.value[:1] != VERSION:
        raise _unreadable(id_, kv.value)
    act = _act(memoryview(kv.value)[1:])
    return AuditEntry(
        id=id_,
        at=moment(act.at),
        action=act.action,
        by=act.by,
        why=act.why,
        state_before=STATES[act.state_before],
    )


def text_of(text: str) -> str:
    """Text that only operators read. It is cut and repaired, so that it never fails a write."""
    return text[:4000].encode(errors="replace").decode()


def result_missing(id_: bytes) -> CorruptRecordError:
    return CorruptRecordError(
        f"the result of the record {id_[:4].hex()} is missing; the handler does not run"
    )
