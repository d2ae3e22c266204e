"""Operator and maintenance requests as flows, shared by the blocking and the async classes."""

from __future__ import annotations

from collections.abc import Iterable

from .._values.keys import Key
from .._values.records import AuditEntry, Record, State, Stats, SweepReport
from ..errors import StillInProgressError, StoreUnavailableError, UsageError
from .commands import Flow
from .protocol import (
    ALL,
    Ack,
    Browse,
    Fail,
    Forget,
    History,
    Page,
    Read,
    Release,
    Resolve,
    Survey,
    Sweep,
)

__all__ = ["Browsing", "audit", "browse", "operate", "park_stuck", "read", "survey", "sweep"]

BITE = 500
"""Records examined in one short transaction of a sweep."""

SMALLEST_BITE = 20

PAGE = 200
"""Records that `records` reads at once."""


def read(key: Key) -> Flow[Record | None]:
    row = yield Read(key.id)
    return None if row is None else row.view()


def operate(key: Key, ask: Release | Resolve | Forget) -> Flow[None]:
    """Release, resolve or forget; the error says why it was refused and what to do instead."""
    who: object = ask.by
    if not isinstance(who, str) or not who.strip():
        raise UsageError("by= is required: it is kept in the audit trail", key=key)
    for name, text in (("by", ask.by), ("why", ask.why)):
        try:
            text.encode()
        except (AttributeError, UnicodeEncodeError):
            raise UsageError(f"{name}= must be text (valid Unicode)", key=key) from None
    ack: Ack = yield ask
    if ack is Ack.OK:
        return
    if ack is Ack.MISSING:
        raise UsageError("there is no record of this key; check the key and its scope", key=key)
    if ack is Ack.LOCKED:
        raise StillInProgressError(
            "an open transaction holds this key (or, on SQLite, the database), most likely an inbox "
            f"delivery; nothing was changed; {ask.op} the key when that transaction has ended",
            key=key,
            retry_after=0.5,
        )
    row = yield Read(key.id)
    state = "unknown" if row is None else row.state.value
    raise UsageError(f"cannot {ask.op} a {state} record: {_ADVICE[ask.op]}", key=key)


_ADVICE: dict[str, str] = {
    "release": "it already has an answer; to run the work again, pass force=True",
    "resolve": "only work without an answer can be resolved; release it with force=True first",
    "forget": "work in progress cannot be forgotten; wait until it ends, or release it first",
}


def sweep(limit: int | None) -> Flow[SweepReport]:
    """Sweep in batches until every record was examined once, or `limit` records were removed."""
    if limit is not None:
        _check_limit(limit)
    removed = examined = 0
    after = ""
    bite = BITE
    while True:
        # A small remaining limit must not make small batches: live records are examined too.
        most = ALL if limit is None else limit - removed
        try:
            report, after = yield Sweep(bite, after, most)
        except StoreUnavailableError:
            if bite <= SMALLEST_BITE:
                raise
            bite //= 4  # too much at once for the store: use smaller batches
            continue
        removed += report.removed
        examined += report.examined
        if not after or (limit is not None and removed >= limit):
            return SweepReport(removed=removed, examined=examined, more=bool(after))


def park_stuck(before: int, retention: int) -> Flow[list[Record]]:
    """Park work whose lease ended before that time and that was not redelivered.

    The request uses the owner's token and fence: a worker that took over meanwhile is not affected,
    and the owner, if it is still alive, may still complete.
    """
    parked: list[Record] = []
    after = ""
    while True:
        page: Page = yield Browse(BITE, State.IN_PROGRESS, (), after)
        for row in page.rows:
            if row.lease_until > before:
                continue
            give_up = Fail(row.id, row.owner, row.fence, 0, row.attempt, retention)
            give_up.error, give_up.hold = row.error or "never finished", row.hold
            if (yield give_up) is Ack.OK:
                row.state = State.HELD if row.hold else State.PARKED
                parked.append(row.view())
        after = page.after
        if not after:
            return parked


def survey() -> Flow[Stats]:
    return (yield Survey())  # type: ignore[no-any-return]


def audit(key: Key) -> Flow[list[AuditEntry]]:
    return (yield History(key.id))  # type: ignore[no-any-return]


def browse(
    state: State | None, scope: tuple[str, ...], limit: int, after: str
) -> Flow[tuple[list[Record], str]]:
    _check_limit(limit)
    state = _known_state(state)
    try:
        page: Page = yield Browse(limit, state, scope, after)
    except (ValueError, OverflowError) as error:
        raise UsageError("after= is not valid: use the cursor of the last page") from error
    return [row.view() for row in page.rows], page.after


class Browsing:
    """All records of a query, a page at a time: the caller runs `page` while there is something `left`."""

    def __init__(self, state: State | None, scope: Iterable[str], limit: int | None) -> None:
        if limit is not None:
            _check_limit(limit)
        self._state = _known_state(state)
        self._scope = tuple(scope)
        self._limit = limit
        self._after = ""
        self.left = True

    def page(self) -> Flow[tuple[list[Record], str]]:
        size = PAGE if self._limit is None else min(PAGE, self._limit)
        return browse(self._state, self._scope, size, self._after)

    def took(self, page: tuple[list[Record], str]) -> list[Record]:
        records, self._after = page
        if self._limit is not None:
            self._limit -= len(records)
        self.left = bool(self._after) and self._limit != 0
        return records


def _known_state(state: State | None) -> State | None:
    try:
        return None if state is None else State(state)
    except ValueError:
        known = ", ".join(State)
        raise UsageError(f"state={state!r} is not valid: use one of {known}") from None


def _check_limit(limit: object) -> None:
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise UsageError(f"limit={limit!r} is not valid: use 1 or more")
