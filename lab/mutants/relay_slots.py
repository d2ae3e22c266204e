"""Mutants of the outbox relay: its slot keeper, and what the store records about slots and lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from twicesafe._core.outbox import relay_lease
from twicesafe._core.outbox.relay_lease import RelayState
from twicesafe._core.outbox.relay_publish import _PublishLoop
from twicesafe._core.outbox.requests import Heartbeat
from twicesafe._engines.sql.commands import Change, Query
from twicesafe._engines.sql.outbox_programs import OutboxPrograms

from .registry import Patch, mutant, tampered

STUDY = "relays"


# --- the keeper: who holds a slot, and until when --------------------------------------------------


@mutant("a relay whose lease may be over goes on publishing", STUDY)
def publishes_past_its_deadline(patch: Patch) -> None:
    def usable(self: Any) -> dict[int, int]:
        return {slot: fence for slot, fence in self.slots.items() if slot not in self.unwanted}

    patch(RelayState, "usable", usable)


@mutant("a relay's deadline counts from the answer to its renewal, not from the request", STUDY)
def deadline_from_the_answer(patch: Patch) -> None:
    def handle(state: Any, command: Any) -> Any:
        if type(command) is relay_lease.KeeperPause and state.__dict__.pop("heard", False):
            state.deadline = state.clock() + state.lease * 0.9
        reply = yield command
        state.heard = type(command) is Heartbeat
        return reply

    patch(relay_lease, "keep_slots", tampered(relay_lease.keep_slots, handle))


@mutant("a slot is released while a publish call with its messages is running", STUDY)
def gives_back_what_is_under_way(patch: Patch) -> None:
    let_go = _PublishLoop._let_go

    def all_at_once(self: Any) -> None:
        let_go(self)
        self.state.drained = (self.state.unwanted, self.state.unwanted)

    patch(_PublishLoop, "_let_go", all_at_once)


@mutant("a slot is released before its published messages are settled", STUDY)
def gives_back_what_is_unsettled(patch: Patch) -> None:
    let_go = _PublishLoop._let_go

    def owing(self: Any) -> None:
        owed, self.owed = self.owed, set()
        let_go(self)
        self.owed = owed

    patch(_PublishLoop, "_let_go", owing)


def _taking(change: Callable[[str], str]) -> Any:
    """The store's way to give out free slots, in other words."""

    def handle(outbox: Any, command: Any) -> Any:
        return (yield type(command)(change(command.sql), command.args))

    return tampered(OutboxPrograms._take, handle)


@mutant("a slot is given to another relay 0.2 s before its lease ends", STUDY)
def early_takeover_of_a_slot(patch: Patch) -> None:
    def early(sql: str) -> str:
        return sql.replace("lease_until <=", "lease_until - 200 <=")

    patch(OutboxPrograms, "_take", _taking(early))


@mutant("a slot is given to every relay that asks, even while another relay holds it", STUDY)
def slots_for_two(patch: Patch) -> None:
    def anyone(sql: str) -> str:
        return sql.replace("lease_until <=", "lease_until <> 1 OR lease_until <=")

    patch(OutboxPrograms, "_take", _taking(anyone))


@mutant("the slots of a crashed relay are never released", STUDY)
def slots_of_the_dead(patch: Patch) -> None:
    def free(sql: str) -> str:
        return sql.replace("lease_until <=", "owner = x'' AND lease_until <=")

    patch(OutboxPrograms, "_take", _taking(free))


@mutant("a new holder of a slot gets the old fence", STUDY)
def slot_keeps_its_fence(patch: Patch) -> None:
    take = OutboxPrograms._take

    def unfenced(self: Any, *args: Any) -> Any:
        taken = yield from take(self, *args)
        which, numbers = self.among("slot", list(taken))
        yield Change(f"UPDATE {self.t}_slots SET fence = fence - 1 WHERE {which}", numbers)
        return {slot: fence - 1 for slot, fence in taken.items()}

    patch(OutboxPrograms, "_take", unfenced)


# --- the store: troubles, and who may note them ----------------------------------------------------


@mutant("a relay that has lost its slot still records refusals", STUDY)
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

    return tampered(OutboxPrograms.outbox_fetch, handle)


@mutant("a lane is fetched although it rests after a refusal", STUDY)
def rest_is_not_kept(patch: Patch) -> None:
    def restless(outbox: Any, sql: str) -> str:
        return sql.replace("t.not_before <=", "0 <")

    patch(OutboxPrograms, "outbox_fetch", _fetching(restless))


@mutant("a parked lane stops its slot: its other lanes are not fetched", STUDY)
def parked_lane_freezes_its_slot(patch: Patch) -> None:
    def frozen(outbox: Any, sql: str) -> str:
        slots = f"SELECT slot FROM {outbox.t}_parked WHERE skipped_at = 0"
        return sql.replace(" ORDER BY", f" AND o.slot NOT IN ({slots}) ORDER BY")

    patch(OutboxPrograms, "outbox_fetch", _fetching(frozen))


@mutant("new rows of a parked lane are not set aside but published", STUDY)
def parked_lane_goes_on(patch: Patch) -> None:
    def unlooked(outbox: Any, sql: str) -> str:
        return sql.replace("(t.parked = FALSE AND o.n <= t.n AND", "(t.parked OR o.n <= t.n AND")

    patch(OutboxPrograms, "outbox_fetch", _fetching(unlooked))


@mutant(
    "rows after the refused one are published with it, although earlier ones are set aside", STUDY
)
def rows_behind_go_too(patch: Patch) -> None:
    def all_of_it(outbox: Any, sql: str) -> str:
        return sql.replace("AND o.n <= t.n AND", "AND")

    patch(OutboxPrograms, "outbox_fetch", _fetching(all_of_it))


@mutant("the clock is read for each row: a rest ends in the middle of its lane", STUDY)
def clock_for_each_row(patch: Patch) -> None:
    def read_again(outbox: Any, sql: str) -> str:
        return sql.replace(f"t.not_before <= {outbox.instant()}", f"t.not_before <= {outbox.now}")

    patch(OutboxPrograms, "outbox_fetch", _fetching(read_again))


@mutant("when a lane recovers, only the first part of its rows set aside returns", STUDY)
def one_part_comes_back(patch: Patch) -> None:
    def handle(outbox: Any, command: Any) -> Any:
        if command.sql.startswith("UPDATE"):
            over = f"DELETE FROM {outbox.t}_troubles WHERE lane = ?"
            return (yield type(command)(over, command.args[-1:]))
        return (yield command)

    patch(OutboxPrograms, "_resume", tampered(OutboxPrograms._resume, handle))


@mutant("rows that were set aside return in any order", STUDY)
def comes_back_in_any_order(patch: Patch) -> None:
    def handle(outbox: Any, command: Any) -> Any:
        sql = command.sql.replace("ORDER BY n LIMIT", "ORDER BY n DESC LIMIT")
        return (yield type(command)(sql, command.args))

    patch(OutboxPrograms, "_resume", tampered(OutboxPrograms._resume, handle))


@mutant("a lane that is retried gets its refused message back, but not those behind it", STUDY)
def retry_brings_one_back(patch: Patch) -> None:
    move = OutboxPrograms._move

    def one(self: Any, source: str, target: str, numbers: Any) -> Any:
        yield from move(self, source, target, numbers[:1] if target == self.t else numbers)

    patch(OutboxPrograms, "_move", one)


@mutant("a skipped message becomes pending again", STUDY)
def skipped_comes_back(patch: Patch) -> None:
    def handle(outbox: Any, command: Any) -> Any:
        sql = command.sql.replace(" AND skipped_at = 0", "")
        return (yield type(command)(sql, command.args))

    patch(OutboxPrograms, "_resume", tampered(OutboxPrograms._resume, handle))


@mutant("a settlement sets rows aside without checking that their lane was refused", STUDY)
def sets_aside_unlooked(patch: Patch) -> None:
    def handle(outbox: Any, command: Any) -> Any:
        if command.sql.startswith("SELECT n, parked"):
            return [(0, True)]
        return (yield command)

    patch(OutboxPrograms, "_settle", tampered(OutboxPrograms._settle, handle))


@mutant("a repeated settlement records its refusals again", STUDY)
def refusals_said_again(patch: Patch) -> None:
    def handle(outbox: Any, command: Any) -> Any:
        if type(command) is Query and "SELECT attempts" in command.sql:
            return [(claimed[-1] - 1,)]
        if type(command) is Query and command.sql.startswith(f"SELECT 1 FROM {outbox.t} WHERE n"):
            return [(1,)]
        return (yield command)

    claimed: list[int] = []
    set_back = tampered(OutboxPrograms._set_back, handle)

    def trusting(self: Any, owner: bytes, it: Any) -> Any:
        claimed.append(it.attempts)
        return (yield from set_back(self, owner, it))

    patch(OutboxPrograms, "_set_back", trusting)
