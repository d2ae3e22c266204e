"""The outbox in SQL: the programs for relays and operators, and what `add` writes for the caller.

It rests on three ideas:

    order   A transaction that adds a message with a key locks its lane's gate until it commits. The
            row's number is taken under that lock, so the numbers of a lane grow in commit order: a
            long transaction cannot commit a message before one that was already published.
    slots   A relay leases slots, not rows.
    lanes   A refused message blocks its own lane and no other.

`outbox_relay_programs` is for relays, `outbox_dialect` has the SQL that differs between engines. Here
are the programs for operators, and the port that runs them all.
"""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, TypeVar

from ..._core.outbox.requests import (
    Added,
    Backlog,
    Depth,
    ListRelays,
    ParkedLane,
    ParkedLanes,
    Relays,
    RelayStatus,
    Unpark,
)
from ..._values.records import RETRY, SKIP, State, moment
from ...stores._base import Program
from ...stores._outbox_port import OutboxPort
from .commands import Change, Query, atomically, number_of
from .outbox_dialect import FALSE, TRUE
from .outbox_relay_programs import RelayPrograms

__all__ = ["OutboxPrograms", "RunProgram", "SqlOutboxPort"]

T = TypeVar("T")


class OutboxPrograms(RelayPrograms):
    """One engine's outbox."""

    @abc.abstractmethod
    def add(self, added: Sequence[Added]) -> Program[None]:
        """Write messages, in this order, in the transaction that is open."""

    @abc.abstractmethod
    def with_placeholders(self, style: str) -> OutboxPrograms:
        """The same outbox with the placeholders of another driver: ``?``, ``%s`` or ``$1``."""

    # -- operators ----------------------------------------------------------------------------

    def outbox_backlog(self, ask: Backlog) -> Program[Depth]:
        one = yield Query(
            f"SELECT (SELECT count(*) FROM {self.t}),"
            f" (SELECT {self.instant()} - created_at FROM {self.t} ORDER BY n LIMIT 1),"
            f" (SELECT count(*) FROM {self.t}_parked WHERE skipped_at = 0),"
            f" (SELECT count(*) FROM {self.t}_parked p JOIN {self.t}_troubles t ON t.lane = p.lane"
            f" WHERE p.skipped_at = 0 AND t.parked = {TRUE}),"
            f" (SELECT count(*) FROM {self.t}_troubles WHERE parked = {TRUE}),"
            f" (SELECT count(*) FROM {self.t} o JOIN {self.t}_troubles t ON t.n = o.n"
            f" WHERE t.parked = {FALSE} AND t.not_before > 0),"
            f" (SELECT count(*) FROM {self.t}_relays WHERE seen_until > {self.instant()})"
        )
        there, age, aside, parked, lanes, resting, relays = (int(value or 0) for value in one[0])
        pending = there + aside - parked
        return Depth(pending, max(0, age) / 1000, parked, lanes, resting, relays)

    def outbox_relays(self, ask: ListRelays) -> Program[Relays]:
        t, now = self.t, (yield Query(f"SELECT {self.instant()}"))[0][0]
        seen = yield Query(f"SELECT owner, seen_until, asleep FROM {t}_relays")
        slots = yield Query(f"SELECT slot, owner FROM {t}_slots WHERE lease_until > {now:d}")
        counted = yield Query(f"SELECT slot, count(*), min(created_at) FROM {t} GROUP BY slot")
        owners = {slot: bytes(owner) for slot, owner in slots}
        behind: dict[bytes, tuple[int, float]] = {}
        for slot, count, oldest in counted:
            pending, age = behind.get(owners.get(slot, b""), (0, 0.0))
            age = max(age, (now - oldest) / 1000)
            behind[owners.get(slot, b"")] = pending + int(count), age
        held = Counter(owners.values())
        found = [
            RelayStatus(
                bytes(owner).hex(), until > now, moment(until), bool(asleep), held[bytes(owner)],
                *behind.get(bytes(owner), (0, 0.0)),
            )
            for owner, until, asleep in seen
        ]  # fmt: skip
        found.sort(key=lambda one: (not one.is_alive, -one.until.timestamp(), one.id))
        return Relays(found, *behind.get(b"", (0, 0.0)))

    def outbox_parked(self, ask: ParkedLanes) -> Program[list[ParkedLane]]:
        one, args = ("", ()) if ask.lane is None else (" AND t.lane = ?", (ask.lane,))
        rows = yield Query(
            self.mark(
                f"SELECT t.lane, p.aggregateid, p.aggregatetype, p.id, t.attempts, t.error, t.since,"
                f" (SELECT count(*) FROM {self.t}_parked q WHERE q.lane = t.lane AND q.skipped_at = 0)"
                f" FROM {self.t}_troubles t JOIN {self.t}_parked p ON p.n = t.n"
                f" WHERE t.parked = {TRUE}{one} ORDER BY t.since, t.n LIMIT {ask.limit:d}"
            ),
            args,
        )
        return [
            ParkedLane(bytes(lane).hex(), key, topic, id_, attempts, error, moment(since), waiting)
            for lane, key, topic, id_, attempts, error, since, waiting in rows
        ]

    def look(self) -> Program[None]:
        """Runs before an `Unpark`, which must not run twice: this may, on a new connection if an idle one was cut."""
        yield Query(f"SELECT {self.instant()}")

    def outbox_unpark(self, ask: Unpark) -> Program[bool]:
        return atomically(self._unpark(ask), self.begin)

    def _unpark(self, ask: Unpark) -> Program[bool]:
        parked = f"SELECT n FROM {self.t}_troubles WHERE lane = ? AND parked = {TRUE}"
        then, args = ("", ()) if ask.since is None else (" AND since = ?", (ask.since,))
        found = yield Query(self.mark(parked + then) + self.lock, (ask.lane, *args))
        if not found:
            return False
        yield Change(
            self.mark(
                f"INSERT INTO {self.audit} (id, at, action, done_by, why, state_before)"
                f" VALUES (?, {self.instant()}, ?, ?, ?, {number_of(State.PARKED)})"
            ),
            (ask.lane, SKIP if ask.skip else RETRY, self.noted(ask.by), self.noted(ask.why)),
        )
        if ask.skip:
            yield Change(
                self.mark(
                    f"UPDATE {self.t}_parked SET skipped_at = {self.instant()}, skipped_by = ?,"
                    " skipped_why = ? WHERE n = ?"
                ),
                (ask.by, ask.why, found[0][0]),
            )
        yield from self._resume(ask.lane)
        return True


class RunProgram(Protocol):
    """Runs a program on a connection of the store."""

    def __call__(self, program: Program[T]) -> T: ...


class SqlOutboxPort(OutboxPort):
    """The outbox port of a SQL store; each engine runs the programs in its own way."""

    def __init__(self, programs: OutboxPrograms) -> None:
        self.programs = programs

    @property
    def dialect(self) -> str:
        return self.programs.dialect

    def in_transaction(self, style: str) -> OutboxPrograms:
        return self.programs.with_placeholders(style)
