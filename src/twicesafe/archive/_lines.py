"""One archived record is one line of JSON. The id comes first, so that a search need not parse every line."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from typing import Any

import msgspec

from .._core.resolved_policy import ResolvedPolicy
from .._values.cipher import is_encrypted, record_context
from .._values.policy import Policy
from .._values.records import Cause, Record, Row, State, moment
from ..errors import CorruptRecordError, ResultUnavailableError, UsageError

__all__ = ["ArchivedRecord", "day_of", "line_of", "records_in"]


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """As it is written. Times are milliseconds of the store's clock; bytes are Base64."""

    id: str
    scope: tuple[str, ...]
    value: str
    state: State
    fence: int
    attempt: int
    created_at: int
    changed_at: int
    expires_at: int
    completed: str
    """The same as `changed_at`, for people."""
    cause: Cause | None = None
    error: str = ""
    result: bytes | None = None


class ArchivedRecord(msgspec.Struct, frozen=True):
    """A record as it was when its answer left the store. ``repr`` does not show the key."""

    record: Record
    payload: bytes | None
    """The result as it was stored: encoded, and encrypted if the store's was."""
    file: str
    """Where it is in the archive."""

    def __repr__(self) -> str:
        return f"<ArchivedRecord {self.record.short} in {self.file}>"

    def answer(self, *, returns: Any = Any, policy: Policy | None = None) -> Any:
        """The recorded value. ``returns``: its type. ``policy``: the codec and the key ring of the receiver."""
        if self.record.state is not State.COMPLETED:
            raise UsageError(f"the work failed ({self.record.error}), so it has no value")
        if self.payload is None:
            raise ResultUnavailableError("the work is done, but its result was not kept")
        settled = ResolvedPolicy(policy or Policy())
        payload = self.payload
        if settled.cipher is not None:
            payload = settled.cipher.decrypt(
                payload, record_context(self.record.id, State.COMPLETED)
            )
        elif is_encrypted(payload):
            raise ResultUnavailableError(
                "the archived result is encrypted: pass policy=Policy(encryption=…) with its key ring"
            )
        return settled.codec.decode(payload, returns)


def day_of(row: Row) -> str:
    return f"{moment(row.changed_at):%Y-%m-%d}"


def line_of(row: Row) -> bytes:
    line = _Line(
        row.id.hex(),
        row.scope,
        row.value,
        row.state,
        row.fence,
        row.attempt,
        row.created_at,
        row.changed_at,
        row.expires_at,
        f"{moment(row.changed_at).astimezone(UTC):%Y-%m-%dT%H:%M:%S}Z",
        row.cause,
        row.error,
        row.result,
    )
    return msgspec.json.encode(line) + b"\n"


def records_in(text: bytes, name: str) -> Iterator[ArchivedRecord]:
    for line in text.splitlines():
        try:
            yield _record(msgspec.json.decode(line, type=_Line), name)
        except (msgspec.MsgspecError, ValueError, OverflowError) as error:
            raise CorruptRecordError(
                f"the file {name} of the archive has a line that cannot be read ({error})"
            ) from error


def _record(line: _Line, name: str) -> ArchivedRecord:
    row = Row(
        id=bytes.fromhex(line.id),
        scope=line.scope,
        value=line.value,
        state=line.state,
        fence=line.fence,
        attempt=line.attempt,
        owner=b"",
        lease_until=0,
        created_at=line.created_at,
        changed_at=line.changed_at,
        expires_at=line.expires_at,
        cause=line.cause,
        result=line.result,
        error=line.error,
    )
    return ArchivedRecord(row.view(), line.result, name)
