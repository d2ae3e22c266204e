"""An event store in your database: events are appended once, in order, under a deterministic id.

    log = EventLog()
    with connection.transaction():
        log.append(connection, "order-7", {"paid": 5}, type="Paid", expected_version=1)

A repeat of the same append finds its event (same id, equal data) and changes nothing. If another event
has the expected version, it is a `VersionConflictError`; if the same id has other data, it is a
`FingerprintMismatchError`. Then nothing is written.

How readers miss nothing (`Projection`): row numbers are taken before the commit, so on PostgreSQL a
lower number can become visible later. There each event has a tick: at least the id of its transaction,
and at least the tick of the previous event of its stream. Readers stop at the oldest transaction that
still runs, because all later commits have a higher tick. MySQL cannot tell that transaction, so there
appends to one log wait for each other. SQLite has one writer anyway.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from .._transactions import Dialect
from .._values.canonical import canonical
from .._values.codecs import DEFAULT_CODEC
from .._values.keys import Key
from .._values.records import moment
from ..errors import (
    CorruptRecordError,
    FingerprintMismatchError,
    UsageError,
    VersionConflictError,
)
from ..stores._base import Program
from ..stores._urls import identifier
from ._statements import (
    NAME,
    Place,
    change,
    create,
    name,
    perform,
    perform_async,
    query,
    stored,
    text_of,
)

__all__ = ["Appended", "AsyncEventLog", "Event", "EventLog"]

_NUMBER: Final[dict[Dialect, str]] = {
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgresql": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "mysql": "bigint PRIMARY KEY",
}
_BYTES: Final[dict[Dialect, str]] = {"sqlite": "BLOB", "postgresql": "bytea", "mysql": "longblob"}
NOW: Final[dict[Dialect, str]] = {
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    "postgresql": "(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
    "mysql": "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)",
}
_TRIES: Final = 20


class Event(msgspec.Struct, frozen=True):
    """One event as it was appended."""

    stream: str
    version: int
    """1 is the first of its stream."""
    id: str
    type: str
    data: Any
    at: datetime
    position: tuple[int, int]
    """Its place among all events of the log. Positions can be compared, but have gaps."""


class Appended(msgspec.Struct, frozen=True):
    """The outcome of an append."""

    version: int
    id: str
    replayed: bool
    """True: the event existed already, with equal data."""


class _New(msgspec.Struct, frozen=True):
    """The event to append."""

    stream: str
    id: str
    kind: str
    data: bytes
    event: Any

    def is_like(self, kind: str, data: bytes) -> bool:
        """Whether the stored event is equal. Different bytes may be equal: a dict has no order."""
        if kind != self.kind:
            return False
        if data == self.data:
            return True
        try:
            there = DEFAULT_CODEC.decode(data, type(self.event))
        except CorruptRecordError:
            return False
        return _content(there, data) == _content(self.event, self.data)


class _Log:
    """The programs that the blocking and the async log share."""

    def __init__(self, table: str = "twicesafe_events") -> None:
        self.table = identifier(table)

    def schema(self, dialect: Dialect) -> Sequence[str]:
        """The statements that create the tables, for your own migrations."""
        t, text = self.table, NAME[dialect]
        events = (
            f"CREATE TABLE IF NOT EXISTS {t} (n {_NUMBER[dialect]}, stream {text} NOT NULL,"
            f" version bigint NOT NULL, id {text} NOT NULL, type {text} NOT NULL,"
            f" data {_BYTES[dialect]} NOT NULL, at bigint NOT NULL, tick bigint NOT NULL,"
            f" CONSTRAINT {t}_version UNIQUE (stream, version),"
            f" CONSTRAINT {t}_id UNIQUE (stream, id))"
        )
        positions = (
            f"CREATE TABLE IF NOT EXISTS {t}_positions (name {text} PRIMARY KEY,"
            " tick bigint NOT NULL, n bigint NOT NULL)"
        )
        if dialect != "postgresql":  # everywhere else the tick is 0
            return events, positions
        return events, positions, f"CREATE INDEX IF NOT EXISTS {t}_tick ON {t} (tick, n)"

    # -- append ---------------------------------------------------------------------------------

    def _append(
        self,
        place: Place,
        stream: str,
        event: Any,
        kind: str | None,
        expected: int | None,
        given: str | Key | None,
    ) -> Program[Appended]:
        name(stream, "stream")
        if expected is not None and (type(expected) is not int or expected < 0):
            raise UsageError(f"expected_version={expected!r} is not valid: use 0 or more")
        kind = name(type(event).__name__ if kind is None else kind, "type")
        data = DEFAULT_CODEC.encode(event, type(event))
        id_ = _id_of(given, stream, kind, _content(event, data), expected)
        new = _New(stream, id_, kind, data, event)
        add = self._add_in_turn if place.dialect == "mysql" else self._add
        for _ in range(_TRIES):
            version = yield from add(place, new, expected)
            if version is not None:
                return Appended(version, id_, replayed=False)
            found = yield from self._look(place, new)
            if found is not None:
                return found
            if expected is not None:
                break  # otherwise another writer appended to this stream just now: try again
        raise VersionConflictError(
            f"the stream {stream[:60]!r} is not at version {expected}: read it again, decide again, and "
            "append with the new version"
        )

    def _add(self, place: Place, new: _New, expected: int | None) -> Program[int | None]:
        """Insert the next version in one statement; None: it is not the expected one, or we lost a race."""
        postgres = place.dialect == "postgresql"
        tick = "greatest(pg_current_xact_id()::text::bigint, last.tick)" if postgres else "0"
        # SQLite: without a WHERE it would read ON CONFLICT as the ON of a join.
        wanted = "true" if expected is None else f"last.version = {expected:d}"
        text, raw = ("CAST(? AS text)", "CAST(? AS bytea)") if postgres else ("?", "?")
        rows = yield query(
            place,
            f"INSERT INTO {self.table} (stream, version, id, type, data, at, tick)"
            f" SELECT {text}, last.version + 1, {text}, {text}, {raw}, {NOW[place.dialect]}, {tick}"
            f" FROM (SELECT coalesce(max(version), 0) AS version, coalesce(max(tick), 0) AS tick"
            f" FROM {self.table} WHERE stream = ? AND version = (SELECT max(version)"
            f" FROM {self.table} WHERE stream = ?)) last"
            f" WHERE {wanted} ON CONFLICT DO NOTHING RETURNING version",
            [new.stream, new.id, new.kind, new.data, new.stream, new.stream],
        )
        return rows[0][0] if rows else None

    def _add_in_turn(self, place: Place, new: _New, expected: int | None) -> Program[int | None]:
        """The same for MySQL. The first statement locks the log until the caller commits."""
        stream, id_, kind = (stored(place, text) for text in (new.stream, new.id, new.kind))
        turn = f"INSERT INTO {self.table}_positions (name, tick, n) VALUES (?, 0, 1)"
        yield change(place, f"{turn} ON DUPLICATE KEY UPDATE n = n + 1", [b""])
        rows = yield query(place, f"SELECT n FROM {self.table}_positions WHERE name = ?", [b""])
        number = rows[0][0]
        last = f"SELECT version FROM {self.table} WHERE stream = ? ORDER BY version DESC LIMIT 1"
        # FOR UPDATE reads the newest row, not that of our snapshot.
        rows = yield query(place, f"{last} FOR UPDATE", [stream])
        version = rows[0][0] if rows else 0
        if (expected is not None and version != expected) or (yield from self._look(place, new)):
            return None
        yield change(
            place,
            f"INSERT INTO {self.table} (n, stream, version, id, type, data, at, tick)"
            f" VALUES (?, ?, ?, ?, ?, ?, {NOW[place.dialect]}, 0)",
            [number, stream, version + 1, id_, kind, new.data],
        )
        return int(version) + 1

    def _look(self, place: Place, new: _New) -> Program[Appended | None]:
        """The event with this id, if there is one; raises if it has other data."""
        lock = " LOCK IN SHARE MODE" if place.dialect == "mysql" else ""
        rows = yield query(
            place,
            f"SELECT version, type, data FROM {self.table} WHERE stream = ? AND id = ?{lock}",
            [stored(place, new.stream), stored(place, new.id)],
        )
        if not rows:
            return None
        version, kind, data = rows[0]
        if not new.is_like(text_of(kind), data):
            raise FingerprintMismatchError(
                f"the stream {new.stream[:60]!r} has an event with this id and other data; "
                "use another id for another event"
            )
        return Appended(version, new.id, replayed=True)

    # -- read -----------------------------------------------------------------------------------

    def _read(
        self, place: Place, stream: str, after: int, limit: int, declared: Any
    ) -> Program[list[Event]]:
        rows = yield query(
            place,
            f"{self.select} WHERE stream = ? AND version > ? ORDER BY version LIMIT {limit:d}",
            [stored(place, stream), after],
        )
        return [event_of(row, declared) for row in rows]

    @property
    def select(self) -> str:
        return f"SELECT stream, version, id, type, data, at, tick, n FROM {self.table}"


def event_of(row: Sequence[Any], declared: Any) -> Event:
    stream, version, id_, kind, data, at, tick, n = row
    value = DEFAULT_CODEC.decode(data, declared)
    return Event(
        text_of(stream), version, text_of(id_), text_of(kind), value, moment(at), (tick, n)
    )


def _content(event: Any, data: bytes) -> bytes:
    """The same bytes for equal events, in every process."""
    try:
        return canonical(event)
    except UsageError:
        return data  # NaN, or nested too deeply: compared by bytes


def _id_of(
    given: str | Key | None, stream: str, kind: str, content: bytes, expected: int | None
) -> str:
    if given is not None:
        return name(given.id.hex() if isinstance(given, Key) else given, "id")
    if expected is None:
        raise UsageError(
            "a repeat of this append would look like a new event: pass expected_version=, or an id= "
            "that is the same in a repeat, such as current_key().derive('paid')"
        )
    parts = (stream.encode(), kind.encode(), content, str(expected).encode())
    content_of_id = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hashlib.sha256(content_of_id).hexdigest()


class EventLog(_Log):
    """An event log, for blocking connections."""

    def create(self, connection: Any) -> None:
        """Create the tables if they are missing. (MySQL commits when a table is created.)"""
        perform(connection, create, self.table, self.schema)

    def append(
        self,
        connection: Any,
        stream: str,
        event: Any,
        *,
        type: str | None = None,  # noqa: A002
        expected_version: int | None = None,
        id: str | Key | None = None,  # noqa: A002
    ) -> Appended:
        """Append one event. ``expected_version=0``: the stream does not exist yet."""
        return perform(connection, self._append, stream, event, type, expected_version, id)

    def read(
        self,
        connection: Any,
        stream: str,
        *,
        after: int = 0,
        limit: int = 1000,
        declared: Any = Any,
    ) -> list[Event]:
        """Return the events of one stream after this version, in order."""
        return perform(connection, self._read, stream, after, limit, declared)


class AsyncEventLog(_Log):
    """The async version of `EventLog`."""

    async def create(self, connection: Any) -> None:
        """Create the tables if they are missing. (MySQL commits when a table is created.)"""
        await perform_async(connection, create, self.table, self.schema)

    async def append(
        self,
        connection: Any,
        stream: str,
        event: Any,
        *,
        type: str | None = None,  # noqa: A002
        expected_version: int | None = None,
        id: str | Key | None = None,  # noqa: A002
    ) -> Appended:
        """Append one event. ``expected_version=0``: the stream does not exist yet."""
        return await perform_async(
            connection, self._append, stream, event, type, expected_version, id
        )

    async def read(
        self,
        connection: Any,
        stream: str,
        *,
        after: int = 0,
        limit: int = 1000,
        declared: Any = Any,
    ) -> list[Event]:
        """Return the events of one stream after this version, in order."""
        return await perform_async(connection, self._read, stream, after, limit, declared)
