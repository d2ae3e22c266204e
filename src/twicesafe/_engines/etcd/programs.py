"""The programs of etcd: a guess, one transaction that checks it, and `_core.lifecycle` for every decision.

A request is decided on what is believed about its record. A claim believes that there is none, and
the owner of a claim believes what it wrote. One transaction compares the record's revision and
writes. If the belief was wrong, it returns the record instead, and the decision is made again on
that. So a first delivery is two round trips and a duplicate one, no request needs a lock, and no
rule is written twice.

etcd's lease on the `l` key of a claim decides when the claim is over, never our clock (P5). A
takeover checks in the same transaction that the key is absent. Every change of a claim writes its
record, so an owner that lost it finds another revision. The requests about many records are in
`sweep_and_search`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from ..._core import lifecycle
from ..._core.protocol import Claimed, Read, Renew, Request
from ..._forking import RenewedLock
from ..._values.records import Row, State
from ...stores._base import Program
from .error_messages import LeaseGoneError
from .leases import FOREVER, Leases
from .messages import CREATE, MOD, message
from .record_layout import (
    INLINE,
    Keys,
    SeenRecord,
    act_bytes,
    effective,
    record_bytes,
    result_missing,
    row_of,
)
from .routing import EtcdCall, Grant
from .sweep_and_search import SweepAndSearch
from .transaction_bytes import compared, delete, put, read, transaction

__all__ = ["EtcdPrograms"]

BELIEVED: Final = 10_000
"""Claims of this process that are remembered, so that their completion is one round trip."""
OPERATORS: Final = frozenset({"release", "resolve", "forget", "discard"})
OWNERS: Final = frozenset({"renew", "complete", "fail", "abandon"})
TIMED: Final = frozenset({"renew", "resolve", "forget"})
"""Requests that never shorten what is there."""
RESTING: Final = (State.IN_PROGRESS, State.RELEASED, State.SUSPENDED)
"""States with an `l` key, while their `lease_until` lasts."""


class EtcdPrograms(SweepAndSearch):
    def __init__(self, prefix: str, leases: Leases, clock: Callable[[], int]) -> None:
        super().__init__(Keys(prefix), clock)
        self.leases = leases
        self._claims: dict[bytes, SeenRecord] = {}
        self._large = False
        """Whether this process has met a result with its own key. Until then a refused write does
        not return that key: most stores have none, and each read costs the server and the
        client."""
        self._believing = RenewedLock()

    def perform(self, ask: Request) -> Program[Any]:
        if ask.op == "claim":
            return (yield from self._decide(ask, SeenRecord()))
        if ask.op in OWNERS:
            with self._believing.now:
                believed = self._claims.pop(ask.id, None)  # type: ignore[union-attr]
            return (yield from self._decide(ask, believed))
        if ask.op in OPERATORS or ask.op == "rewrite":
            return (yield from self._decide(ask, None))
        return (yield from getattr(self, ask.op)(ask))

    def read(self, ask: Read) -> Program[Row | None]:
        seen = yield from self.look(ask.id)
        return seen.row

    def prepare(self, asks: Sequence[Any]) -> Program[None]:
        """Have the leases that the requests of a batch need, so that they do not ask one by one."""
        durations = {getattr(ask, name, 0) for ask in asks for name in ("lease", "retention")}
        for ms in durations:
            if isinstance(ms, int) and 0 < ms < FOREVER:
                yield from self._lease(ms)

    def check_access(self) -> Program[None]:
        """Whether the cluster can be reached, has a leader, and lets us read under the prefix."""
        request = message("RangeRequest")(key=self.keys.records, count_only=True)
        yield EtcdCall("Range", request)

    # -- deciding -------------------------------------------------------------------------------

    def _decide(self, ask: Any, seen: SeenRecord | None) -> Program[Any]:
        decision = getattr(lifecycle, ask.op)
        if seen is None:
            seen = yield from self.look(ask.id)
        while True:
            now = self.clock()
            if seen.row is not None:
                now = max(now, seen.row.changed_at)  # its writer's clock may be ahead
            before = effective(seen, now)
            if before is not None and ask.op in TIMED:
                before = yield from self._with_remaining(ask, seen, before, now)
            answer, row = decision(before, ask, now)
            if row is None:
                if seen.certain:
                    return answer
                seen = yield from self.look(ask.id)
                continue
            after = yield from self._write(ask, seen, before, row, now)
            if after.row is row:
                if type(answer) is Claimed and answer.fence:
                    answer.fence = after.row.fence
                self._believe(ask, after)
                return answer
            seen = after

    def _with_remaining(self, ask: Any, seen: SeenRecord, row: Row, now: int) -> Program[Row]:
        """The row, with what is left on etcd's clock where the decision is which of two ends is later."""
        if type(ask) is Renew:
            if seen.alive and row.lease_until > now + ask.lease:
                return replace(row, lease_until=now + (yield from self.remaining(seen.alive)))
        elif seen.lease:
            return replace(row, expires_at=now + (yield from self.remaining(seen.lease)))
        return row

    def remaining(self, lease: int) -> Program[int]:
        """Milliseconds that are left of an etcd lease."""
        request = message("LeaseTimeToLiveRequest")(ID=lease)
        reply = yield EtcdCall("LeaseTimeToLive", request)
        left: int = reply.TTL * 1000
        return max(0, left)

    def _believe(self, ask: Any, seen: SeenRecord) -> None:
        if ask.op in ("claim", "renew") and seen.row is not None:
            with self._believing.now:  # other threads add theirs
                while len(self._claims) >= BELIEVED:
                    del self._claims[next(iter(self._claims))]
                self._claims[ask.id] = seen

    # -- one transaction ------------------------------------------------------------------------

    def _write(
        self, ask: Any, seen: SeenRecord, before: Row | None, row: Row, now: int
    ) -> Program[SeenRecord]:
        """Write the row if the record is as it was seen; otherwise returns what is there."""
        rest = row.lease_until - now if row.state in RESTING else 0
        kept = row.expires_at - now
        if before is not None and seen.row is not None:
            # What does not change keeps its lease, and the time that was written with it.
            if seen.lease and row.expires_at == before.expires_at:
                closes = ask.op in OPERATORS and ask.op != "discard"
                least = now + ask.retention if closes else 0
                row.expires_at, kept = max(seen.row.expires_at, least), 0
            if seen.alive and row.lease_until == before.lease_until:
                row.lease_until = seen.row.lease_until
        while True:
            alive = lease = 0
            if rest > 0:
                same = seen.row is not None and row.lease_until == seen.row.lease_until
                alive = seen.alive if same else 0
                if not alive:
                    alive = self._ready(rest) or (yield from self._lease(rest))
            if row.expires_at:
                lease = seen.lease
                if kept > 0:
                    lease = self._ready(kept) or (yield from self._lease(kept))
            try:
                return (yield from self._transact(ask, seen, row, now, alive, lease))
            except LeaseGoneError:
                # The worker was suspended meanwhile, or another client revoked the lease.
                for gone in (alive, lease):
                    self.leases.drop(gone)
                seen.alive = 0

    def _ready(self, ms: int) -> int:
        return self.leases.find(ms, self.leases.now())

    def _lease(self, ms: int) -> Program[int]:
        since = self.leases.now()
        while not (lease := self.leases.find(ms, since)):
            yield Grant(ms, self.leases.seconds(ms))
        return lease

    def grant(self, ask: Grant) -> Program[None]:
        """Ask for a lease, and keep it for all that need one. Run once for many requests that wait."""
        asked = self.leases.now()
        reply = yield EtcdCall("LeaseGrant", message("LeaseGrantRequest")(TTL=ask.seconds))
        self.leases.add(reply.ID, asked, ask.ms, reply.TTL)

    def _transact(
        self, ask: Any, seen: SeenRecord, row: Row, now: int, alive: int, lease: int
    ) -> Program[SeenRecord]:
        record, claim, value = self.keys.of(ask.id)
        raised = seen.row is None or row.fence != seen.row.fence
        gone = bool(row.expires_at) and not lease  # kept for no time at all
        apart = row.result is not None and len(row.result) > INLINE and not gone
        data = record_bytes(row, 0 if raised else row.fence, apart)
        writes = [delete(record) if gone else put(record, data, lease)]
        if apart:
            writes.append(put(value, row.result or b"", lease))
        elif seen.apart:
            writes.append(delete(value))
        if alive:
            writes.append(put(claim, b"", alive))
        elif seen.row is not None:
            writes.append(delete(claim))
        compare = [
            compared(record, MOD, seen.revision) if seen.row else compared(record, CREATE, 0)
        ]
        if ask.op == "claim" and seen.row is not None and not seen.alive:
            compare.append(compared(claim, CREATE, 0))
        if ask.op in OPERATORS:
            assert seen.row is not None
            name = self.keys.trail(ask.id) + b"%016x" % seen.revision
            writes.append(put(name, act_bytes(ask, seen.row.state, now)))
        if apart:
            self._large = True
        reads = [read(record), read(claim)]
        if self._large:
            reads.append(read(value))
        reply = yield EtcdCall(
            "Transaction", transaction(compare, writes, reads), ask.op in OPERATORS
        )
        if not reply.succeeded:
            return self._seen(ask.id, reply.responses) or (yield from self.look(ask.id))
        if raised:
            row.fence = reply.header.revision
        return SeenRecord(row, reply.header.revision, lease, alive, apart)

    # -- looking --------------------------------------------------------------------------------

    def look(self, id: bytes) -> Program[SeenRecord]:  # noqa: A002
        """The record as it is now: a linearizable read."""
        reply = yield EtcdCall("Transaction", transaction((), map(read, self.keys.of(id))))
        seen = self._seen(id, reply.responses)
        assert seen is not None, "all three keys were read"
        return seen

    def awaits(self, id: bytes) -> Program[int]:  # noqa: A002
        """The revision from which to watch the `l` key; 0: it is gone, there is nothing to wait for."""
        _, claim, _ = self.keys.of(id)
        reply = yield EtcdCall("Range", message("RangeRequest")(key=claim, keys_only=True))
        return reply.header.revision + 1 if reply.kvs else 0

    def _seen(self, id_: bytes, responses: Any) -> SeenRecord | None:
        """What the reads of a transaction found; None: the key of the result must be read too."""
        records = responses[0].response_range.kvs
        if not records:
            return SeenRecord(certain=True)
        kv = records[0]
        row, apart = row_of(id_, kv)
        if apart:
            self._large = True
            if len(responses) < 3:
                return None
            values = responses[2].response_range.kvs
            if not values:
                raise result_missing(id_)
            row.result = values[0].value
        claims = responses[1].response_range.kvs
        alive = claims[0].lease if claims else 0
        return SeenRecord(row, kv.mod_revision, kv.lease, alive, apart, certain=True)
