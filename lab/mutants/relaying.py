"""Mutants of the outbox relay: its keeper, its carrier, and what the store does for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from twicesafe.core import carrying, relaying
from twicesafe.core.carrying import _Carrier
from twicesafe.core.outbox import Settle
from twicesafe.core.publishing import NOT_TRIED
from twicesafe.core.relaying import Desk, Listen, Publish
from twicesafe.stores.outbox import OutboxPrograms
from twicesafe.stores.sql import Change, Query

from .registry import Patch, mutant

STUDY = "relays"


def _tampering(flow: Callable[..., Any], handle: Callable[..., Any]) -> Any:
    """The flow or program with its commands tampered with: `handle` performs one of them."""

    def tampered(*args: Any, **kwargs: Any) -> Any:
        steps = flow(*args, **kwargs)
        reply: Any = None
        error: Exception | None = None
        while True:
            try:
                command = steps.send(reply) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            try:
                reply, error = (yield from handle(args[0], command)), None
            except Exception as trouble:
                reply, error = None, trouble

    return tampered


# --- the keeper: who holds a slot, and until when --------------------------------------------------


@mutant("a relay whose lease may be over goes on publishing", STUDY)
def publishes_past_its_deadline(patch: Patch) -> None:
    def usable(self: Any) -> dict[int, int]:
        return {slot: fence for slot, fence in self.slots.items() if slot not in self.unwanted}

    patch(Desk, "usable", usable)


@mutant("a relay's deadline counts from the answer to its renewal, not from the sending", STUDY)
def deadline_from_the_answer(patch: Patch) -> None:
    def handle(desk: Any, command: Any) -> Any:
        if type(command) is relaying.Pause:
            desk.deadline = desk.clock() + desk.lease * 0.9
        return (yield command)

    patch(relaying, "keep", _tampering(relaying.keep, handle))


@mutant("a slot is given back while a call with its messages is under way", STUDY)
def gives_back_what_is_under_way(patch: Patch) -> None:
    let_go = _Carrier._let_go

    def all_at_once(self: Any) -> None:
        let_go(self)
        self.desk.drained = (self.desk.unwanted, self.desk.unwanted)

    patch(_Carrier, "_let_go", all_at_once)


@mutant("a slot is given back before what was published of it is settled", STUDY)
def gives_back_what_is_unsettled(patch: Patch) -> None:
    let_go = _Carrier._let_go

    def owing(self: Any) -> None:
        owed, self.owed = self.owed, set()
        let_go(self)
        self.owed = owed

    patch(_Carrier, "_let_go", owing)


def _taking(change: Callable[[str], str]) -> Any:
    """The store's way to give out free slots, in other words."""

    def handle(outbox: Any, command: Any) -> Any:
        return (yield type(command)(change(command.sql), command.args))

    return _tampering(OutboxPrograms._take, handle)


@mutant("a slot is given to another relay 0.2 s before its lease ends", STUDY)
def early_takeover_of_a_slot(patch: Patch) -> None:
    def early(sql: str) -> str:
        return sql.replace("lease_until <=", "lease_until - 200 <=")

    patch(OutboxPrograms, "_take", _taking(early))


@mutant("a slot is given to whoever asks, also while another relay holds it", STUDY)
def slots_for_two(patch: Patch) -> None:
    def anyone(sql: str) -> str:
        return sql.replace("lease_until <=", "lease_until <> 1 OR lease_until <=")

    patch(OutboxPrograms, "_take", _taking(anyone))


@mutant("the slots of a dead relay are never free again", STUDY)
def slots_of_the_dead(patch: Patch) -> None:
    def free(sql: str) -> str:
        return sql.replace("lease_until <=", "owner = x'' AND lease_until <=")

    patch(OutboxPrograms, "_take", _taking(free))


@mutant("a slot that changes hands keeps its fence", STUDY)
def slot_keeps_its_fence(patch: Patch) -> None:
    take = OutboxPrograms._take

    def unfenced(self: Any, *args: Any) -> Any:
        taken = yield from take(self, *args)
        which, numbers = self.among("slot", list(taken))
        yield Change(f"UPDATE {self.t}_slots SET fence = fence - 1 WHERE {which}", numbers)
        return {slot: fence - 1 for slot, fence in taken.items()}

    patch(OutboxPrograms, "_take", unfenced)


# --- the carrier: which rows go when ---------------------------------------------------------------


@mutant("rows that were fetched before a slot was lost are published when it is won back", STUDY)
def rows_of_an_earlier_holding(patch: Patch) -> None:
    patch(carrying, "_is_ours", lambda row, usable: row.slot in usable)


@mutant("a lane with more rows goes on before the answer for its first ones is there", STUDY)
def two_groups_of_a_lane(patch: Patch) -> None:
    take_off = _Carrier._take_off

    def eager(self: Any) -> Any:
        yield from take_off(self)
        flying = {row.n for rows in self.flying.values() for row in rows}
        for lane, rows in self.lanes.items():
            waiting = [row for row in rows if row.n not in flying]
            if waiting and lane not in self.ready and len(self.flying) < self.desk.concurrency:
                self.tickets += 1
                self.flying[self.tickets] = waiting[:1]
                self.in_flight += 1
                yield Publish(self.tickets, [waiting[0].message])

    patch(_Carrier, "_take_off", eager)


@mutant(
    "rows are looked for behind the highest number seen: what commits late is passed over", STUDY
)
def remembers_the_last_number(patch: Patch) -> None:
    sort_in = _Carrier._sort_in

    def behind(self: Any, rows: Any, slots: Any) -> None:
        met = self.__dict__.setdefault("met", set())
        new = [row for row in rows if row.n in met or row.n > max(met, default=0)]
        met.update(row.n for row in new)
        sort_in(self, new, slots)

    patch(_Carrier, "_sort_in", behind)


@mutant("a refused message is passed over, and its lane goes on without it", STUDY)
def refused_is_passed_over(patch: Patch) -> None:
    refused = _Carrier._refused

    def passed(self: Any, row: Any, error: Exception) -> None:
        rest = deque(list(self.lanes.get(row.lane, ()))[1:])
        refused(self, row, error)
        if rest:
            self.lanes[row.lane] = rest

    patch(_Carrier, "_refused", passed)


@mutant("a row is settled before it is published, so a death in between loses it", STUDY)
def settled_before_published(patch: Patch) -> None:
    def handle(carrier: Any, command: Any) -> Any:
        rows = carrier.flying[command.ticket]
        yield Settle(carrier.desk.owner, [row.n for row in rows], [], [], {})
        return (yield command)

    patch(_Carrier, "_take_off", _tampering(_Carrier._take_off, handle))


@mutant("the answers for a group are taken for those of other messages in it", STUDY)
def answers_out_of_place(patch: Patch) -> None:
    land = _Carrier._land

    def turned(self: Any, ended: Any) -> None:
        land(
            self,
            [
                (one, a[::-1] if isinstance(a, list) and NOT_TRIED not in a else a)
                for one, a in ended
            ],
        )

    patch(_Carrier, "_land", turned)


@mutant("a broker that is away counts as a refusal of each message", STUDY)
def outages_count(patch: Patch) -> None:
    failed = _Carrier._broker_failed

    def blamed(self: Any, rows: Any, error: Exception) -> None:
        for row in {row.lane: row for row in reversed(rows)}.values():
            self._refused(row, error)
        failed(self, rows, error)

    patch(_Carrier, "_broker_failed", blamed)


@mutant("refusals are not counted, so poison is tried for ever", STUDY)
def poison_never_parks(patch: Patch) -> None:
    refused = _Carrier._refused

    def forgetful(self: Any, row: Any, error: Exception) -> None:
        self.desk.max_attempts = 1_000
        refused(self, row, error)

    patch(_Carrier, "_refused", forgetful)


@mutant("a failed settlement is forgotten, and its rows are fetched and published again", STUDY)
def failed_settlement_is_forgotten(patch: Patch) -> None:
    outage = _Carrier._outage

    def forgetful(self: Any, what: str, error: Exception) -> None:
        if what == "outbox_settle":
            self.todo = Settle(self.desk.owner, [], [], [], {})
        outage(self, what, error)

    patch(_Carrier, "_outage", forgetful)


@mutant("while settlements fail, a relay goes on publishing: more than a batch is unsettled", STUDY)
def more_than_a_batch(patch: Patch) -> None:
    patch(_Carrier, "_room", lambda self: self.desk.batch)


@mutant("a relay that is told to stop leaves what it has published unsettled", STUDY)
def stop_settles_nothing(patch: Patch) -> None:
    settle = _Carrier._settle

    def impatient(self: Any, patient: bool = False) -> Any:
        if not self.desk.stopping:
            yield from settle(self, patient)

    patch(_Carrier, "_settle", impatient)


@mutant("a relay that is told to stop does not wait for the calls that are under way", STUDY)
def stop_drops_calls(patch: Patch) -> None:
    carry = carrying.carry

    def hasty(desk: Any) -> Any:
        flow = carry(desk)
        reply: Any = None
        while not desk.stopping:
            try:
                reply = yield flow.send(reply)
            except StopIteration:
                return
            except Exception as error:
                reply = yield flow.throw(error)
        desk.carried = True

    patch(carrying, "carry", hasty)


@mutant("a relay that sleeps trusts its bell: when a wake-up is lost, it sleeps on", STUDY)
def trusts_its_bell(patch: Patch) -> None:
    def handle(desk: Any, command: Any) -> Any:
        return (yield replace(command, seconds=1e6) if type(command) is Listen else command)

    patch(carrying, "carry", _tampering(carrying.carry, handle))


# --- the store: troubles, and who may note them ----------------------------------------------------


@mutant("a relay that has lost its slot notes its refusals all the same", STUDY)
def refusals_without_fence(patch: Patch) -> None:
    set_back = OutboxPrograms._set_back

    def anyone(self: Any, owner: bytes, it: Any) -> Any:
        holder = f"SELECT owner, fence FROM {self.t}_slots WHERE slot = {it.slot:d}"
        [(owner, fence)] = yield Query(holder)
        return (yield from set_back(self, owner, replace(it, fence=fence)))

    patch(OutboxPrograms, "_set_back", anyone)


def _fetching(change: Callable[[Any, str], str]) -> Any:
    def handle(outbox: Any, command: Any) -> Any:
        return (yield Query(change(outbox, command.sql), command.args))

    return _tampering(OutboxPrograms.outbox_fetch, handle)


@mutant("a lane that rests after a refusal is fetched at once", STUDY)
def rest_is_not_kept(patch: Patch) -> None:
    def restless(outbox: Any, sql: str) -> str:
        return sql.replace("t.not_before <=", "0 <")

    patch(OutboxPrograms, "outbox_fetch", _fetching(restless))


@mutant("a parked lane freezes its slot: other lanes of it are not fetched", STUDY)
def parked_lane_freezes_its_slot(patch: Patch) -> None:
    def frozen(outbox: Any, sql: str) -> str:
        slots = f"SELECT slot FROM {outbox.t}_parked WHERE skipped_at = 0"
        return sql.replace(" ORDER BY", f" AND o.slot NOT IN ({slots}) ORDER BY")

    patch(OutboxPrograms, "outbox_fetch", _fetching(frozen))


@mutant("new rows of a parked lane are not set aside but published", STUDY)
def parked_lane_goes_on(patch: Patch) -> None:
    def handle(outbox: Any, command: Any) -> Any:
        rows = yield command
        return [(*row[:-1], False) for row in rows]

    patch(OutboxPrograms, "outbox_fetch", _tampering(OutboxPrograms.outbox_fetch, handle))


@mutant("a lane that is retried gets its refused message back, but not those behind it", STUDY)
def retry_brings_one_back(patch: Patch) -> None:
    move = OutboxPrograms._move

    def one(self: Any, source: str, target: str, numbers: Any) -> Any:
        yield from move(self, source, target, numbers[:1] if target == self.t else numbers)

    patch(OutboxPrograms, "_move", one)


@mutant("a skipped message is put back among those that wait", STUDY)
def skipped_comes_back(patch: Patch) -> None:
    def handle(outbox: Any, command: Any) -> Any:
        sql = command.sql.replace(" AND skipped_at = 0", "")
        return (yield type(command)(sql, command.args))

    patch(OutboxPrograms, "_unpark", _tampering(OutboxPrograms._unpark, handle))


@mutant("a settlement sets rows aside without looking whether their lane is still parked", STUDY)
def sets_aside_unlooked(patch: Patch) -> None:
    def handle(outbox: Any, command: Any) -> Any:
        sql = command.sql
        if sql.startswith("SELECT 1") and "parked = TRUE" in sql:
            return [(1,)]
        return (yield command)

    patch(OutboxPrograms, "_settle", _tampering(OutboxPrograms._settle, handle))


@mutant("a settlement that is said again notes its refusals again", STUDY)
def refusals_said_again(patch: Patch) -> None:
    def handle(outbox: Any, command: Any) -> Any:
        if type(command) is Query and "SELECT attempts" in command.sql:
            return [(claimed[-1] - 1,)]
        if type(command) is Query and command.sql.startswith(f"SELECT 1 FROM {outbox.t} WHERE n"):
            return [(1,)]
        return (yield command)

    claimed: list[int] = []
    set_back = _tampering(OutboxPrograms._set_back, handle)

    def trusting(self: Any, owner: bytes, it: Any) -> Any:
        claimed.append(it.attempts)
        return (yield from set_back(self, owner, it))

    patch(OutboxPrograms, "_set_back", trusting)
