"""The outbox programs for relays: lease slots, fetch rows to publish, settle the results.

A relay leases slots, not rows, so a batch is one SELECT and one DELETE. It reads from the first row
each time, never from "the last id", so rows that commit late are found.

A refused message writes one row about its lane. The lane may send its rows up to the refused one,
not before its back-off is over, and not at all while it is parked. Its other rows leave the table
that relays read, so a million of them delay no other lane. They come back part by part, in order,
as soon as the refused one is published.

Deleting a row needs no fence: it was published, and it does not matter which relay holds its slot
now. Everything else that a relay writes is checked against the slot's owner and fence under a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..._core.outbox.requests import (
    SLOTS,
    Awake,
    Fetch,
    Fetched,
    Heartbeat,
    LeasedSlots,
    Message,
    Pending,
    Prepare,
    Setback,
    Settle,
)
from ...errors import CorruptRecordError
from ...stores._base import Program
from .commands import Change, Query, atomically
from .migrations import Schema, check
from .outbox_dialect import OutboxDialect
from .outbox_statements import RelayStatements

__all__ = ["RelayPrograms"]


class RelayPrograms(OutboxDialect):
    """The base class of `OutboxPrograms`: one atomic program per request, named as the request's `op`."""

    def __init__(
        self, schema: Schema, mark: Callable[[str], str], now: str, migrates: bool
    ) -> None:
        super().__init__(schema, mark, now, migrates)
        self.sql = RelayStatements(self)

    def outbox_prepare(self, ask: Prepare) -> Program[list[str]]:
        version = yield from self.schema.version()
        done: list[str] = []
        if version < self.schema.newest and (ask.migrate or self.migrates):
            done = yield from self.schema.migrate(self.begin)
            version = yield from self.schema.version()
        check(self.schema, version, f"the outbox {self.t}")
        return done

    # -- slots --------------------------------------------------------------------------------

    def outbox_heartbeat(self, ask: Heartbeat) -> Program[LeasedSlots]:
        if ask.leave:
            return self._leave(ask.owner)
        return atomically(self._renew_slots(ask), self.begin)

    def _leave(self, owner: bytes) -> Program[LeasedSlots]:
        """Between the two statements it looks like a relay that crashed, but its slots are free."""
        yield Change(self.sql.release_all, (b"", owner))
        yield Change(self.sql.leave, (owner,))
        return LeasedSlots({}, 0)

    def _renew_slots(self, ask: Heartbeat) -> Program[LeasedSlots]:
        sql, owner = self.sql, ask.owner
        if ask.give:
            which, numbers = self.among("slot", sorted(ask.give))
            yield Change(self.mark(f"{sql.release} AND {which}"), (b"", owner, *numbers))
        yield Change(sql.renew, (ask.lease, owner))
        yield Change(sql.seen, (owner, ask.lease))
        rows = yield Query(sql.seen_relays, (owner,))  # at least one: we have just been seen
        _, _, alive, any_old, any_outdated = rows[0]
        held = {row[0]: row[1] for row in rows if row[0] is not None}
        share = -(-SLOTS // max(1, alive))
        if len(held) < share:
            held |= yield from self._take(ask, share - len(held))
        if any_old:
            for (gone,) in (yield Query(sql.old_relays)):
                yield Change(sql.remove_old, (bytes(gone),))
        if any_outdated:
            yield from self._end_outdated_troubles()
        return LeasedSlots(held, share)

    def _take(self, ask: Heartbeat, count: int) -> Program[dict[int, int]]:
        """Take free slots and raise their fences. Skips those that another relay is taking now."""
        rows = yield Query(self.sql.free_slots, (count + len(ask.give),))
        free = [(slot, fence + 1) for slot, fence in rows if slot not in ask.give]
        taken = dict(free[:count])
        if taken:
            which, numbers = self.among("slot", list(taken))
            take = self.mark(f"{self.sql.take} {which}")
            yield Change(take, (ask.owner, ask.lease, *numbers))
        return taken

    def _end_outdated_troubles(self) -> Program[None]:
        """A relay that did not know that a lane is blocked may publish its message: then the lane continues."""
        sql = self.sql
        for (lane,) in (yield Query(sql.outdated)):
            found = yield Query(sql.lock_outdated, (lane,))
            if found and not (yield Query(sql.share_pending, found[0])):
                yield from self._resume(lane)

    def outbox_awake(self, ask: Awake) -> Program[None]:
        yield Change(self.sql.awake, (ask.owner,))

    # -- rows ---------------------------------------------------------------------------------

    def outbox_fetch(self, ask: Fetch) -> Program[Fetched]:
        chosen, args = self.among("o.slot", ask.slots)
        if ask.except_lanes:
            others, lanes = self.not_among("o.lane", ask.except_lanes)
            chosen, args = f"{chosen} AND {others}", (*args, *lanes)
        sql = self.sql
        fetch = f"{sql.fetch} {chosen} ORDER BY o.n LIMIT {ask.limit:d}"
        rows = yield Query(self.mark(fetch), args)
        fetched = Fetched([_pending(row) for row in rows], {})
        if rows and not rows[0][-1]:
            return fetched
        if not rows and not (yield Query(sql.any_trouble)):
            return fetched
        if len(rows) == ask.limit:  # later rows were not read, and delay nothing
            chosen = f"{chosen} AND o.n <= {rows[-1][0]:d}"
        passed = f"{sql.passed} {chosen} ORDER BY o.n LIMIT {self.part:d}"
        for n, lane in (yield Query(self.mark(passed), args)):
            fetched.aside.setdefault(bytes(lane), []).append(n)
        return fetched

    def outbox_settle(self, ask: Settle) -> Program[int]:
        if ask.cured or ask.setbacks or ask.aside:
            return atomically(self._settle(ask), self.begin)
        return self._only_delete(ask.done)

    def _only_delete(self, numbers: list[int]) -> Program[int]:
        if numbers:
            yield self.deletion(self.t, numbers)
        return 0

    def _settle(self, ask: Settle) -> Program[int]:
        sql = self.sql
        refused = yield from self._only_delete(ask.done)
        for lane, n in ask.cured.items():
            if (yield Query(sql.lock_cured, (lane, n))):
                yield from self._resume(lane)
        for setback in ask.setbacks:
            if not (yield from self._set_back(ask.owner, setback)):
                refused += 1
        for lane, numbers in ask.aside.items():
            # Under a lock: the lane may be unblocked just now, or more of its rows may be released.
            for last, parked in (yield Query(sql.lock_trouble, (lane,))):
                moved = [n for n in numbers if parked or n > last]
                yield from self._move(self.t, f"{self.t}_parked", moved)
        return refused

    def _resume(self, lane: bytes) -> Program[None]:
        """This lane, which we have locked, is no longer blocked: its next rows return, in order.

        While more rows are set aside, the lane may send the returned ones, and no later ones.
        """
        numbers = [n for (n,) in (yield Query(self.sql.waiting, (lane,)))]
        yield from self._move(f"{self.t}_parked", self.t, numbers)
        if len(numbers) < self.part:
            yield Change(self.sql.end_trouble, (lane,))
        else:
            yield Change(self.sql.move_trouble, (numbers[-1], lane))

    def _set_back(self, owner: bytes, it: Setback) -> Program[bool]:
        sql = self.sql
        if not (yield Query(sql.holds, (it.slot, owner, it.fence))):
            return False
        # Nothing to do if it was written before, or if the row is gone. A relay that lost the slot
        # during its call published it.
        if not (yield Query(sql.lock_pending, (it.n,))):
            return True
        found = yield Query(sql.lock_attempts, (it.lane, it.n))
        if it.attempts != (found[0][0] if found else 0) + it.counts:
            return True
        refuse = sql.refuse_again if found else sql.refuse
        values = (it.lane, it.n, it.attempts, it.delay, it.park, it.error)
        yield Change(refuse, values)
        return True

    def _move(self, source: str, target: str, numbers: Sequence[int]) -> Program[None]:
        if numbers:
            yield self.copying(source, target, numbers)
            yield self.deletion(source, numbers)


_headers = msgspec.json.Decoder(dict[str, str])


def _pending(row: Sequence[Any]) -> Pending:
    n, created_at, slot, lane, id_, topic, key, _, headers, body, attempts, last, _ = row
    unreadable = None
    try:
        known = _headers.decode(headers)
    except msgspec.DecodeError as error:
        known, unreadable = {}, _damaged(n, error)
    message = Message(id_, topic, bytes(body), key, known)
    where = n, bytes(lane), slot, attempts, bool(last), created_at
    return Pending(*where, message, unreadable=unreadable)


def _damaged(n: int, error: msgspec.DecodeError) -> CorruptRecordError:
    damaged = CorruptRecordError(
        f"the headers in row {n} cannot be read ({error}): the row was changed by hand, or is damaged; "
        "repair it and retry its lane, or skip it"
    )
    damaged.__cause__ = error
    return damaged
