"""The commands that programs of SQL stores yield, and the conversion between rows and columns.

A program never begins or ends a transaction by itself, so the same program runs on our own
connection or in the caller's transaction. `atomically` runs one in its own transaction.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from ..._values.keys import Key
from ..._values.records import Cause, Row, State
from ...errors import CorruptRecordError, InvalidKeyError

__all__ = [
    "CAUSES",
    "NUMBER_OF_STATE",
    "PRESENT",
    "STATES",
    "TEXT_OR_RESULT",
    "Change",
    "Query",
    "atomically",
    "dollars",
    "explained",
    "number_of",
    "owner_bytes",
    "present_from",
    "scope_prefix",
    "state_of",
    "unreadable",
    "upsert",
    "with_whole_id",
]

T = TypeVar("T")


class Query(msgspec.Struct, gc=False):
    """A statement that returns rows: the reply is a list of tuples."""

    sql: str
    args: tuple[Any, ...] = ()


class Change(msgspec.Struct, gc=False):
    """A statement that changes rows: the reply is their number."""

    sql: str
    args: tuple[Any, ...] = ()


# On disk, states and causes are small numbers. Numbers are never reused or reordered.
STATES: Final[tuple[State, ...]] = (
    State.IN_PROGRESS,
    State.COMPLETED,
    State.FAILED,
    State.RELEASED,
    State.HELD,
    State.PARKED,
    State.FORGOTTEN,
    State.SUSPENDED,
)
CAUSES: Final[tuple[Cause | None, ...]] = (
    None,
    Cause.FAILED,
    Cause.LEASE_EXPIRED,
    Cause.RETENTION_EXPIRED,
    Cause.OPERATOR,
    Cause.RECORD_LOST,
    Cause.RESUMED,
)
# Two tables, because a state and a cause of the same name are equal strings ("failed").
NUMBER_OF_STATE: Final = {state: number for number, state in enumerate(STATES)}
_NUMBER_OF_CAUSE: Final = {cause: number for number, cause in enumerate(CAUSES)}


def number_of(value: State | Cause | None) -> int:
    if isinstance(value, State):
        return NUMBER_OF_STATE[value]
    return _NUMBER_OF_CAUSE[value]


def state_of(number: int) -> State:
    if not 0 <= number < len(STATES):
        raise CorruptRecordError(
            f"a record has the unknown state {number}; a newer version wrote it, or it is damaged"
        )
    return STATES[number]


def scope_text(scope: tuple[str, ...]) -> str:
    """A scope as one column: empty, or a JSON array."""
    return msgspec.json.encode(scope).decode() if scope else ""


def scope_of(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...]) if text else ()


def scope_prefix(scope: tuple[str, ...]) -> str:
    """The text that begins all scopes with these first parts, and no other scope."""
    return scope_text(scope)[:-1]


COLUMNS: Final = (
    "id, scope, value, state, fence, attempt, owner, lease_until, created_at, changed_at, "
    "expires_at, hold, cause, fingerprint, result, error"
)
"""In the order of `Row`'s fields."""


def row_from(columns: tuple[Any, ...]) -> Row:
    id_, scope, value, state, fence, attempt, owner, lease, created, changed, expires, *rest = (
        columns
    )
    hold, cause, fingerprint, result, error = rest
    try:
        return Row(
            id_,
            scope_of(scope),
            value,
            state_of(state),
            fence,
            attempt,
            owner,
            lease,
            created,
            changed,
            expires,
            bool(hold),
            CAUSES[cause if cause >= 0 else len(CAUSES)],
            fingerprint,
            result,
            error,
        )
    except (IndexError, TypeError, UnicodeDecodeError, msgspec.DecodeError) as failed:
        raise unreadable(id_) from failed


def unreadable(id_: bytes) -> CorruptRecordError:
    return CorruptRecordError(
        f"the record {id_[:4].hex()} cannot be read; a newer version wrote it, or it is damaged; the handler "
        "does not run"
    )


def owner_bytes(row: Row) -> bytes:
    """What is kept in the place of the owner. A forgotten record has none, and no key from which
    the other half of its id could be computed: its place keeps that half. So the record can be
    copied to a store that never knew it."""
    return row.id[16:] if row.state is State.FORGOTTEN else row.owner


def with_whole_id(row: Row, id_: bytes = b"") -> Row:
    """The row with all 32 bytes of its id, of which a store keeps 16. If an older version forgot
    it, there are no others."""
    if row.state is State.FORGOTTEN and row.owner:
        row.id, row.owner = row.id[:16] + row.owner, b""
    elif len(row.id) < 32:
        row.id = id_ or (_whole_id(row) if row.value else row.id)
    return row


def _whole_id(row: Row) -> bytes:
    try:
        found = Key(row.value, row.scope).id
    except InvalidKeyError as error:
        raise unreadable(row.id) from error
    if not found.startswith(row.id):  # its text is that of another key
        raise unreadable(row.id)
    return found


PRESENT: Final = (
    "state, fence, attempt, owner, lease_until, changed_at, expires_at, hold, cause, fingerprint,"
    " result"
)
"""The columns that the answer to a claim needs."""

TEXT_OR_RESULT: Final = "CASE WHEN {of}state IN (4, 5) THEN {error} ELSE {result} END"
"""What is read as `result`: a held or parked record has none, so its reason takes that place. One
more column would cost the driver more than this costs the server."""


def explained(row: Row) -> Row:
    """The row with its reason at its own place, from what `TEXT_OR_RESULT` read."""
    if row.state is State.HELD or row.state is State.PARKED:
        text: Any = row.result
        row.error = text.decode(errors="replace") if isinstance(text, bytes) else text or ""
        row.result = None
    return row


def present_from(id_: bytes, columns: Any) -> Row:
    """A row from the columns of `PRESENT`: without its key and its time of creation."""
    state, fence, attempt, owner, lease, changed, expires, hold, cause, print_, result = columns
    if not (0 <= state < len(STATES) and 0 <= cause < len(CAUSES)):
        raise CorruptRecordError(
            f"the record {id_[:4].hex()} has an unknown state or cause; a newer version wrote it, or it "
            "is damaged; the handler does not run"
        )
    row = Row(
        id_,
        (),
        "",
        STATES[state],
        fence,
        attempt,
        owner,
        lease,
        0,
        changed,
        expires,
        bool(hold),
        CAUSES[cause],
        print_,
        result,
    )
    return explained(row) if state > 3 else row


def upsert(table: str, columns: str, values: str, key: str, changed: Sequence[str]) -> str:
    """An INSERT that overwrites these columns of the row of the same key."""
    changes = ", ".join(f"{name} = excluded.{name}" for name in changed)
    return (
        f"INSERT INTO {table} ({columns}) VALUES ({values})"
        f" ON CONFLICT ({key}) DO UPDATE SET {changes}"
    )


def atomically(
    program: Generator[Any, Any, T], begin: str = "BEGIN", commit: str = "COMMIT"
) -> Generator[Any, Any, T]:
    """Run the program in its own transaction. If the process dies, the engine rolls it back."""
    yield Change(begin)
    try:
        answer = yield from program
    except Exception:
        yield Change("ROLLBACK")
        raise
    yield Change(commit)
    return answer


def dollars(sql: str) -> str:
    """``?`` as asyncpg expects it: $1, $2 …"""
    head, *rest = sql.split("?")
    return head + "".join(f"${number}{part}" for number, part in enumerate(rest, 1))
