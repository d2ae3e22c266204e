"""The outbox in SQL: what a relay and an operator ask, and what `add` writes for the caller.

Three ideas carry it:

    order   Whoever adds a message with a key passes its lane's gate and keeps it until he commits.
            The row's number is drawn behind the gate, so numbers of a lane grow in the order of
            commits: a long transaction cannot come in late in front of what was published.
    slots   A relay leases slots, not rows: a batch is one SELECT and one DELETE. It looks from the
            first row each time, never from "the last id": what commits late is met.
    trouble A refused message writes one row about its lane: the lane may send its rows up to the
            refused one, not before its rest is over, and not at all while it is parked. Its other
            rows leave the table that relays look through, so a million of them delay no other lane.
            They come back part by part, in order, as soon as the refused one was published.

Time is read once per statement (`instant`). A clock that is read for each row would let a rest end in
the middle of a lane: its first rows would be passed over, and later ones published first.

Deleting a row needs no fence: it was published, whoever holds its slot by now. Everything else that
a relay writes is checked against the slot's owner and fence under a lock.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import msgspec

from ..._core.outbox_requests import (
    SLOTS,
    Backlog,
    Depth,
    Fetch,
    Fetched,
    Held,
    Hold,
    Message,
    OutboxRequest,
    ParkedLane,
    ParkedLanes,
    Pending,
    Prepare,
    Rise,
    Setback,
    Settle,
    Unpark,
    gate_of,
    slot_of,
)
from ..._values.records import moment
from ...stores._base import Program
from .commands import Change, Query, atomically
from .migrations import Schema, check, migrate

__all__ = [
    "COLUMNS",
    "OUTBOX_READING",
    "WRITTEN",
    "Added",
    "OutboxPrograms",
    "gates_of",
    "inlined",
    "is_outbox",
    "marked",
    "values_of",
]

WRITTEN: Final = "slot, lane, id, aggregatetype, aggregateid, type, headers, payload"
"""What `add` writes besides the time: the order of `values_of`."""

COLUMNS: Final = f"n, created_at, {WRITTEN}"
_DAY: Final = 86_400_000

OUTBOX_READING: Final = frozenset({"outbox_fetch", "outbox_backlog", "outbox_parked"})
"""Requests that write nothing."""


class Added(msgspec.Struct, frozen=True, gc=False):
    """A message as it is written: checked, and with its lane."""

    message: Message
    lane: bytes
    type: str
    headers: str
    ordered: bool
    """It has a key, and passes its gate."""


def is_outbox(op: str) -> bool:
    return op.startswith("outbox_")


class OutboxPrograms(abc.ABC):
    """One engine's outbox. ``?`` in statements become this driver's marks."""

    dialect: ClassVar[str]
    begin: ClassVar[str] = "BEGIN"
    share: ClassVar[str] = " FOR SHARE"
    lock: ClassVar[str] = " FOR UPDATE"
    skip: ClassVar[str] = " FOR UPDATE SKIP LOCKED"
    part: ClassVar[int] = 2000
    """Rows that are set aside, or come back, in one transaction: short enough for any time-out."""

    def __init__(self, schema: Schema, mark: Callable[[str], str], migrates: bool) -> None:
        self.schema = schema
        self.t = schema.table
        self.mark = mark
        self.migrates = migrates
        """Its tables are made when they are not there."""
        self._in_trouble = f"LEFT JOIN {self.t}_troubles t ON t.lane = o.lane"
        self._columns = ", ".join(f"o.{name}" for name in COLUMNS.split(", "))

    # -- what an engine says --------------------------------------------------------------------

    @abc.abstractmethod
    def now(self) -> str:
        """The store's time in milliseconds, as SQL. It may be another one for each row: see `instant`."""

    def instant(self) -> str:
        """The store's time as SQL, one value for the whole statement: a subquery is evaluated once."""
        return f"(SELECT {self.now()})"

    def may_go(self) -> str:
        """Of rows ``o``, joined with the troubles ``t`` of their lanes: those that may be published."""
        return (
            f"(t.lane IS NULL OR"
            f" (t.parked = {_FALSE} AND o.n <= t.n AND t.not_before <= {self.instant()}))"
        )

    @abc.abstractmethod
    def among(self, column: str, numbers: Sequence[int]) -> tuple[str, tuple[Any, ...]]:
        """`column` is one of these numbers."""

    @abc.abstractmethod
    def not_among(self, column: str, lanes: Sequence[bytes]) -> tuple[str, tuple[Any, ...]]:
        """`column` is none of these lanes."""

    @abc.abstractmethod
    def upsert(self, table: str, columns: str, values: str, overwritten: Sequence[str]) -> str:
        """Insert a row; where there is one with this first column, overwrite some columns of it."""

    @abc.abstractmethod
    def speaking(self, style: str) -> OutboxPrograms:
        """The same outbox, with values marked as another driver writes them: ``?``, ``%s``, ``$1``."""

    @abc.abstractmethod
    def add(self, added: Sequence[Added], created_at: int) -> Program[None]:
        """Write messages, in this order, in the transaction that is open."""

    def migrated(self) -> Program[list[str]]:
        return (yield from migrate(self.schema, self.begin))

    # -- performing ---------------------------------------------------------------------------

    def perform(self, ask: OutboxRequest) -> Program[Any]:
        """One request, atomically."""
        return (yield from getattr(self, ask.op)(ask))

    def outbox_prepare(self, ask: Prepare) -> Program[list[str]]:
        done = (yield from self.migrated()) if ask.migrate or self.migrates else []
        check(self.schema, (yield from self.schema.version()), f"the outbox {self.t}")
        return done

    # -- leases -------------------------------------------------------------------------------

    def outbox_hold(self, ask: Hold) -> Program[Held]:
        return (yield from atomically(self._hold(ask), self.begin))

    def _hold(self, ask: Hold) -> Program[Held]:
        give = frozenset(range(SLOTS)) if ask.leave else ask.give
        if give:
            which, numbers = self.among("slot", sorted(give))
            free = (
                f"UPDATE {self.t}_slots SET owner = ?, lease_until = 0 WHERE owner = ? AND {which}"
            )
            yield Change(self.mark(free), (b"", ask.owner, *numbers))
        if ask.leave:
            yield Change(self.mark(f"DELETE FROM {self.t}_relays WHERE owner = ?"), (ask.owner,))
            return Held({}, 0)
        until = f"{self.instant()} + {ask.lease:d}"
        # Accepted after the end of the lease, too, as long as nobody took over (P4).
        renew = f"UPDATE {self.t}_slots SET lease_until = {until} WHERE owner = ?"
        yield Change(self.mark(renew), (ask.owner,))
        columns, values = "owner, seen_until, asleep", f"?, {until}, {_FALSE}"
        seen = self.upsert(f"{self.t}_relays", columns, values, ["seen_until"])
        yield Change(self.mark(seen), (ask.owner,))
        alive = f"SELECT count(*) FROM {self.t}_relays WHERE seen_until > {self.instant()}"
        share = -(-SLOTS // max(1, (yield Query(alive))[0][0]))
        mine = f"SELECT slot, fence FROM {self.t}_slots WHERE owner = ?"
        held = dict((yield Query(self.mark(mine), (ask.owner,))))
        if len(held) < share:
            held |= yield from self._take(ask.owner, until, share - len(held), give)
        old = f"{self.instant()} - {_DAY:d}"
        # One by one: a DELETE that looks for them would wait for every relay that says it is alive.
        for (gone,) in (yield Query(f"SELECT owner FROM {self.t}_relays WHERE seen_until < {old}")):
            remove = f"DELETE FROM {self.t}_relays WHERE owner = ? AND seen_until < {old}"
            yield Change(self.mark(remove), (bytes(gone),))
        yield from self._end_moot_troubles()
        return Held(held, share)

    def _end_moot_troubles(self) -> Program[None]:
        """A relay that did not know of a trouble may publish its message: then the lane goes on."""
        moot = (
            f"SELECT t.lane FROM {self.t}_troubles t WHERE t.parked = {_FALSE}"
            f" AND t.not_before <= {self.instant()}"
            f" AND NOT EXISTS (SELECT 1 FROM {self.t} o WHERE o.n = t.n) LIMIT 100"
        )
        for (lane,) in (yield Query(moot)):
            noted = f"SELECT n FROM {self.t}_troubles WHERE lane = ? AND parked = {_FALSE}"
            found = yield Query(self.mark(noted) + self.skip, (lane,))
            there = f"SELECT 1 FROM {self.t} WHERE n = ?"
            if found and not (yield Query(self.mark(there) + self.share, found[0])):
                yield from self._go_on(lane)

    def _take(
        self, owner: bytes, until: str, count: int, given: frozenset[int]
    ) -> Program[dict[int, int]]:
        """Free slots, their fences raised. Those that another relay takes just now are passed over."""
        free = f"SELECT slot, fence FROM {self.t}_slots WHERE lease_until <= {self.instant()}"
        rows = yield Query(f"{free} ORDER BY slot LIMIT {count + len(given):d}{self.skip}")
        taken = {slot: fence + 1 for slot, fence in rows if slot not in given}
        taken = dict(list(taken.items())[:count])
        if taken:
            which, numbers = self.among("slot", list(taken))
            yield Change(
                self.mark(
                    f"UPDATE {self.t}_slots SET owner = ?, fence = fence + 1,"
                    f" lease_until = {until} WHERE {which}"
                ),
                (owner, *numbers),
            )
        return taken

    def outbox_rise(self, ask: Rise) -> Program[None]:
        awake = f"UPDATE {self.t}_relays SET asleep = {_FALSE} WHERE owner = ?"
        yield Change(self.mark(awake), (ask.owner,))

    # -- rows ---------------------------------------------------------------------------------

    def outbox_fetch(self, ask: Fetch) -> Program[Fetched]:
        mine, slots = self.among("o.slot", ask.slots)
        where, args = [mine], [*slots]
        if ask.except_lanes:
            others, lanes = self.not_among("o.lane", ask.except_lanes)
            where.append(others)
            args += lanes
        rows = yield Query(
            self.mark(
                f"SELECT {self._columns}, CASE WHEN t.n = o.n THEN t.attempts ELSE 0 END,"
                f" CASE WHEN t.n = o.n THEN 1 ELSE 0 END,"
                f" CASE WHEN EXISTS (SELECT 1 FROM {self.t}_troubles) THEN 1 ELSE 0 END"
                f" FROM {self.t} o {self._in_trouble}"
                f" WHERE {' AND '.join([*where, self.may_go()])} ORDER BY o.n LIMIT {ask.limit:d}"
            ),
            tuple(args),
        )
        fetched = Fetched([_pending(row) for row in rows], {})
        if rows and not rows[0][-1]:
            return fetched
        if not rows and not (yield Query(f"SELECT 1 FROM {self.t}_troubles LIMIT 1")):
            return fetched
        if len(rows) == ask.limit:  # what is behind them was not looked at, and is in no way
            where.append(f"o.n <= {rows[-1][0]:d}")
        where.append(f"(t.parked = {_TRUE} OR o.n > t.n)")
        passed = yield Query(
            self.mark(
                f"SELECT o.n, o.lane FROM {self.t} o JOIN {self.t}_troubles t ON t.lane = o.lane"
                f" WHERE {' AND '.join(where)} ORDER BY o.n LIMIT {self.part:d}"
            ),
            tuple(args),
        )
        for n, lane in passed:
            fetched.aside.setdefault(bytes(lane), []).append(n)
        return fetched

    def outbox_settle(self, ask: Settle) -> Program[int]:
        if not (ask.cured or ask.setbacks or ask.aside):
            yield from self._delete(ask.done)
            return 0
        return (yield from atomically(self._settle(ask), self.begin))

    def _settle(self, ask: Settle) -> Program[int]:
        yield from self._delete(ask.done)
        refused = 0
        for lane, n in ask.cured.items():
            noted = (
                f"SELECT 1 FROM {self.t}_troubles WHERE lane = ? AND n = ? AND parked = {_FALSE}"
            )
            if (yield Query(self.mark(noted) + self.lock, (lane, n))):
                yield from self._go_on(lane)
        for setback in ask.setbacks:
            if not (yield from self._set_back(ask.owner, setback)):
                refused += 1
        for lane, numbers in ask.aside.items():
            # Under a lock: the lane's trouble may be ending just now, or it may send more of its rows.
            noted = f"SELECT n, parked FROM {self.t}_troubles WHERE lane = ?"
            for last, parked in (yield Query(self.mark(noted) + self.lock, (lane,))):
                moved = [n for n in numbers if parked or n > last]
                yield from self._move(self.t, f"{self.t}_parked", moved)
        return refused

    def _go_on(self, lane: bytes) -> Program[None]:
        """The trouble of this lane, which we have locked, is over: its next rows come back, in order.

        While more of them are aside, the lane may send those that came back, and no later ones.
        """
        waiting = f"SELECT n FROM {self.t}_parked WHERE lane = ? AND skipped_at = 0"
        rows = yield Query(self.mark(f"{waiting} ORDER BY n LIMIT {self.part:d}"), (lane,))
        numbers = [row[0] for row in rows]
        yield from self._move(f"{self.t}_parked", self.t, numbers)
        if len(numbers) < self.part:
            over = f"DELETE FROM {self.t}_troubles WHERE lane = ?"
        else:
            over = (
                f"UPDATE {self.t}_troubles SET n = {numbers[-1]:d}, attempts = 0, not_before = 0,"
                f" parked = {_FALSE} WHERE lane = ?"
            )
        yield Change(self.mark(over), (lane,))

    def _delete(self, numbers: list[int]) -> Program[None]:
        if numbers:
            yield self.deletion(self.t, numbers)

    def deletion(self, table: str, numbers: Sequence[int]) -> Change:
        """Delete the rows with these numbers, and wait for nobody else's."""
        which, args = self.among("n", numbers)
        return Change(self.mark(f"DELETE FROM {table} WHERE {which}"), args)

    def copying(self, source: str, target: str, numbers: Sequence[int]) -> Change:
        """Copy the rows with these numbers, and wait for nobody else's."""
        which, args = self.among("n", numbers)
        copy = f"INSERT INTO {target} ({COLUMNS}) SELECT {COLUMNS} FROM {source} WHERE {which}"
        return Change(self.mark(copy), args)

    def _set_back(self, owner: bytes, it: Setback) -> Program[bool]:
        held = f"SELECT 1 FROM {self.t}_slots WHERE slot = ? AND owner = ? AND fence = ?"
        if not (yield Query(self.mark(held) + self.share, (it.slot, owner, it.fence))):
            return False
        # Moot, if it was said before, or the row went: whoever lost the slot in mid-call published it.
        there = f"SELECT 1 FROM {self.t} WHERE n = ?"
        if not (yield Query(self.mark(there) + self.lock, (it.n,))):
            return True
        noted = f"SELECT attempts FROM {self.t}_troubles WHERE lane = ? AND n = ?"
        found = yield Query(self.mark(noted) + self.lock, (it.lane, it.n))
        if it.attempts != (found[0][0] if found else 0) + it.counts:
            return True
        now, park = self.instant(), _TRUE if it.park else _FALSE
        fresh = [] if found else ["since"]
        note = self.upsert(
            f"{self.t}_troubles",
            "lane, n, attempts, not_before, parked, error, since",
            f"?, {it.n:d}, {it.attempts:d}, {now} + {it.delay:d}, {park}, ?, {now}",
            ["n", "attempts", "not_before", "parked", "error", *fresh],
        )
        yield Change(self.mark(note), (it.lane, it.error))
        return True

    def _move(self, source: str, target: str, numbers: Sequence[int]) -> Program[None]:
        if numbers:
            yield self.copying(source, target, numbers)
            yield self.deletion(source, numbers)

    # -- operators ----------------------------------------------------------------------------

    def outbox_backlog(self, ask: Backlog) -> Program[Depth]:
        one = yield Query(
            f"SELECT (SELECT count(*) FROM {self.t}),"
            f" (SELECT {self.instant()} - created_at FROM {self.t} ORDER BY n LIMIT 1),"
            f" (SELECT count(*) FROM {self.t}_parked WHERE skipped_at = 0),"
            f" (SELECT count(*) FROM {self.t}_parked p JOIN {self.t}_troubles t ON t.lane = p.lane"
            f" WHERE p.skipped_at = 0 AND t.parked = {_TRUE}),"
            f" (SELECT count(*) FROM {self.t}_troubles WHERE parked = {_TRUE}),"
            f" (SELECT count(*) FROM {self.t} o JOIN {self.t}_troubles t ON t.n = o.n"
            f" WHERE t.parked = {_FALSE} AND t.not_before > 0),"
            f" (SELECT count(*) FROM {self.t}_relays WHERE seen_until > {self.instant()})"
        )
        there, age, aside, parked, lanes, resting, relays = (int(value or 0) for value in one[0])
        pending = there + aside - parked
        return Depth(pending, max(0, age) / 1000, parked, lanes, resting, relays)

    def outbox_parked(self, ask: ParkedLanes) -> Program[list[ParkedLane]]:
        one, args = ("", ()) if ask.lane is None else (" AND t.lane = ?", (ask.lane,))
        rows = yield Query(
            self.mark(
                f"SELECT t.lane, p.aggregateid, p.aggregatetype, p.id, t.attempts, t.error, t.since,"
                f" (SELECT count(*) FROM {self.t}_parked q WHERE q.lane = t.lane AND q.skipped_at = 0)"
                f" FROM {self.t}_troubles t JOIN {self.t}_parked p ON p.n = t.n"
                f" WHERE t.parked = {_TRUE}{one} ORDER BY t.since, t.n LIMIT {ask.limit:d}"
            ),
            args,
        )
        return [
            ParkedLane(bytes(lane).hex(), key, topic, id_, attempts, error, moment(since), waiting)
            for lane, key, topic, id_, attempts, error, since, waiting in rows
        ]

    def outbox_unpark(self, ask: Unpark) -> Program[bool]:
        return (yield from atomically(self._unpark(ask), self.begin))

    def _unpark(self, ask: Unpark) -> Program[bool]:
        parked = f"SELECT n FROM {self.t}_troubles WHERE lane = ? AND parked = {_TRUE}"
        found = yield Query(self.mark(parked) + self.lock, (ask.lane,))
        if not found:
            return False
        if ask.skip:
            yield Change(
                self.mark(
                    f"UPDATE {self.t}_parked SET skipped_at = {self.instant()}, skipped_by = ?,"
                    " skipped_why = ? WHERE n = ?"
                ),
                (ask.by, ask.why, found[0][0]),
            )
        yield from self._go_on(ask.lane)
        return True


_TRUE: Final = "TRUE"
_FALSE: Final = "FALSE"

_headers = msgspec.json.Decoder(dict[str, str])


def _pending(row: Sequence[Any]) -> Pending:
    n, created_at, slot, lane, id_, topic, key, _, headers, body, attempts, last, _ = row
    message = Message(id_, topic, bytes(body), key, _headers.decode(headers))
    return Pending(n, bytes(lane), slot, attempts, bool(last), created_at, message)


def gates_of(added: Sequence[Added]) -> list[int]:
    """In one order for everyone: two who add many never wait for each other in a circle."""
    return sorted({gate_of(one.lane) for one in added if one.ordered})


def values_of(one: Added) -> tuple[Any, ...]:
    """In the order of `WRITTEN`."""
    message = one.message
    return (
        slot_of(one.lane),
        one.lane,
        message.id,
        message.topic,
        message.key,
        one.type,
        one.headers,
        message.body,
    )


def inlined(column: str, numbers: Sequence[int]) -> tuple[str, tuple[Any, ...]]:
    """Numbers as part of the statement: for engines that know no arrays."""
    return f"{column} IN ({','.join(f'{number:d}' for number in numbers) or 'NULL'})", ()


def marked(column: str, lanes: Sequence[bytes]) -> tuple[str, tuple[Any, ...]]:
    """Lanes one by one, for the same engines."""
    return f"{column} NOT IN ({','.join('?' * len(lanes))})", tuple(lanes)
