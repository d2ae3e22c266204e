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

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ..._core.outbox.requests import (
    SLOTS,
    Awake,
    Fetch,
    Fetched,
    Heartbeat,
    LeasedSlots,
    Message,
    OutboxRequest,
    Pending,
    Prepare,
    Reply,
    Setback,
    Settle,
)
from ...stores._base import Program
from .commands import Change, Query, atomically
from .migrations import check, migrate
from .outbox_dialect import FALSE, TRUE, OutboxDialect

__all__ = ["RelayPrograms"]

_DAY: Final = 86_400_000


class RelayPrograms(OutboxDialect):
    """The base class of `OutboxPrograms`."""

    def perform(self, ask: OutboxRequest[Reply]) -> Program[Reply]:
        """One request, atomically."""
        program: Program[Reply] = getattr(self, ask.op)(ask)
        return program

    def outbox_prepare(self, ask: Prepare) -> Program[list[str]]:
        version = yield from self.schema.version()
        done: list[str] = []
        if version < self.schema.newest and (ask.migrate or self.migrates):
            done = yield from self.migrated()
            version = yield from self.schema.version()
        check(self.schema, version, f"the outbox {self.t}")
        return done

    def migrated(self) -> Program[list[str]]:
        return (yield from migrate(self.schema, self.begin))

    # -- slots --------------------------------------------------------------------------------

    def outbox_heartbeat(self, ask: Heartbeat) -> Program[LeasedSlots]:
        return atomically(self._renew_slots(ask), self.begin)

    def _renew_slots(self, ask: Heartbeat) -> Program[LeasedSlots]:
        give = frozenset(range(SLOTS)) if ask.leave else ask.give
        if give:
            which, numbers = self.among("slot", sorted(give))
            free = (
                f"UPDATE {self.t}_slots SET owner = ?, lease_until = 0 WHERE owner = ? AND {which}"
            )
            yield Change(self.mark(free), (b"", ask.owner, *numbers))
        if ask.leave:
            yield Change(self.mark(f"DELETE FROM {self.t}_relays WHERE owner = ?"), (ask.owner,))
            return LeasedSlots({}, 0)
        now = self.instant()
        until = f"{now} + {ask.lease:d}"
        # Accepted after the end of the lease, too, unless another relay took over (P4).
        renew = f"UPDATE {self.t}_slots SET lease_until = {until} WHERE owner = ?"
        yield Change(self.mark(renew), (ask.owner,))
        columns, values = "owner, seen_until, asleep", f"?, {until}, {FALSE}"
        seen = self.upsert(f"{self.t}_relays", columns, values, ["seen_until"])
        yield Change(self.mark(seen), (ask.owner,))
        alive = f"SELECT count(*) FROM {self.t}_relays WHERE seen_until > {now}"
        share = -(-SLOTS // max(1, (yield Query(alive))[0][0]))
        mine = f"SELECT slot, fence FROM {self.t}_slots WHERE owner = ?"
        held = dict((yield Query(self.mark(mine), (ask.owner,))))
        if len(held) < share:
            held |= yield from self._take(ask.owner, now, until, share - len(held), give)
        old = f"{now} - {_DAY:d}"
        # One by one: a DELETE that searches for them would wait for every relay that renews.
        for (gone,) in (yield Query(f"SELECT owner FROM {self.t}_relays WHERE seen_until < {old}")):
            remove = f"DELETE FROM {self.t}_relays WHERE owner = ? AND seen_until < {old}"
            yield Change(self.mark(remove), (bytes(gone),))
        yield from self._end_outdated_troubles(now)
        return LeasedSlots(held, share)

    def _end_outdated_troubles(self, now: str) -> Program[None]:
        """A relay that did not know that a lane is blocked may publish its message: then the lane continues."""
        outdated = (
            f"SELECT t.lane FROM {self.t}_troubles t WHERE t.parked = {FALSE}"
            f" AND t.not_before <= {now}"
            f" AND NOT EXISTS (SELECT 1 FROM {self.t} o WHERE o.n = t.n) LIMIT 100"
        )
        for (lane,) in (yield Query(outdated)):
            recorded = f"SELECT n FROM {self.t}_troubles WHERE lane = ? AND parked = {FALSE}"
            found = yield Query(self.mark(recorded) + self.skip, (lane,))
            there = f"SELECT 1 FROM {self.t} WHERE n = ?"
            if found and not (yield Query(self.mark(there) + self.share, found[0])):
                yield from self._resume(lane)

    def _take(
        self, owner: bytes, now: str, until: str, count: int, given: frozenset[int]
    ) -> Program[dict[int, int]]:
        """Take free slots and raise their fences. Skips those that another relay is taking now."""
        free = f"SELECT slot, fence FROM {self.t}_slots WHERE lease_until <= {now}"
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

    def outbox_awake(self, ask: Awake) -> Program[None]:
        awake = f"UPDATE {self.t}_relays SET asleep = {FALSE} WHERE owner = ?"
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
        if len(rows) == ask.limit:  # later rows were not read, and delay nothing
            where.append(f"o.n <= {rows[-1][0]:d}")
        where.append(f"(t.parked = {TRUE} OR o.n > t.n)")
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
        if ask.cured or ask.setbacks or ask.aside:
            return atomically(self._settle(ask), self.begin)
        return self._only_delete(ask.done)

    def _only_delete(self, numbers: list[int]) -> Program[int]:
        if numbers:
            yield self.deletion(self.t, numbers)
        return 0

    def _settle(self, ask: Settle) -> Program[int]:
        refused = yield from self._only_delete(ask.done)
        for lane, n in ask.cured.items():
            recorded = (
                f"SELECT 1 FROM {self.t}_troubles WHERE lane = ? AND n = ? AND parked = {FALSE}"
            )
            if (yield Query(self.mark(recorded) + self.lock, (lane, n))):
                yield from self._resume(lane)
        for setback in ask.setbacks:
            if not (yield from self._set_back(ask.owner, setback)):
                refused += 1
        for lane, numbers in ask.aside.items():
            # Under a lock: the lane may be unblocked just now, or more of its rows may be released.
            recorded = f"SELECT n, parked FROM {self.t}_troubles WHERE lane = ?"
            for last, parked in (yield Query(self.mark(recorded) + self.lock, (lane,))):
                moved = [n for n in numbers if parked or n > last]
                yield from self._move(self.t, f"{self.t}_parked", moved)
        return refused

    def _resume(self, lane: bytes) -> Program[None]:
        """This lane, which we have locked, is no longer blocked: its next rows return, in order.

        While more rows are set aside, the lane may send the returned ones, and no later ones.
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
                f" parked = {FALSE} WHERE lane = ?"
            )
        yield Change(self.mark(over), (lane,))

    def _set_back(self, owner: bytes, it: Setback) -> Program[bool]:
        held = f"SELECT 1 FROM {self.t}_slots WHERE slot = ? AND owner = ? AND fence = ?"
        if not (yield Query(self.mark(held) + self.share, (it.slot, owner, it.fence))):
            return False
        # Nothing to do if it was written before, or if the row is gone. A relay that lost the slot
        # during its call published it.
        there = f"SELECT 1 FROM {self.t} WHERE n = ?"
        if not (yield Query(self.mark(there) + self.lock, (it.n,))):
            return True
        recorded = f"SELECT attempts FROM {self.t}_troubles WHERE lane = ? AND n = ?"
        found = yield Query(self.mark(recorded) + self.lock, (it.lane, it.n))
        if it.attempts != (found[0][0] if found else 0) + it.counts:
            return True
        now, park = self.instant(), TRUE if it.park else FALSE
        fresh = [] if found else ["since"]
        record = self.upsert(
            f"{self.t}_troubles",
            "lane, n, attempts, not_before, parked, error, since",
            f"?, {it.n:d}, {it.attempts:d}, {now} + {it.delay:d}, {park}, ?, {now}",
            ["n", "attempts", "not_before", "parked", "error", *fresh],
        )
        yield Change(self.mark(record), (it.lane, it.error))
        return True

    def _move(self, source: str, target: str, numbers: Sequence[int]) -> Program[None]:
        if numbers:
            yield self.copying(source, target, numbers)
            yield self.deletion(source, numbers)


_headers = msgspec.json.Decoder(dict[str, str])


def _pending(row: Sequence[Any]) -> Pending:
    n, created_at, slot, lane, id_, topic, key, _, headers, body, attempts, last, _ = row
    message = Message(id_, topic, bytes(body), key, _headers.decode(headers))
    return Pending(n, bytes(lane), slot, attempts, bool(last), created_at, message)
