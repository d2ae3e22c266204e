"""Mutants of transaction mode: record and effect, the transaction's mark, locks, what is kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import replace

from twicesafe._core import inbox_flow as core
from twicesafe._core import lifecycle
from twicesafe._core.commands import Invoke, Raised
from twicesafe._core.inbox_requests import Enter, Entered, Leave
from twicesafe._core.protocol import Claimed, ClaimRequest, Verdict
from twicesafe._values import keys as tokens
from twicesafe._values.context import ActiveClaim
from twicesafe._values.keys import Key
from twicesafe._values.records import Row, State
from twicesafe.errors import AtomicityBrokenError
from twicesafe.inbox._base import InboxBase

from ..simulation.transactions.connection import Connection
from ..simulation.transactions.database import Database
from ..simulation.transactions.policies import CONSUMERS
from ..simulation.transactions.sessions import Locks
from ..simulation.transactions.statements import DriverError, Effect, Write
from ..simulation.transactions.worker import Job
from .registry import Patch, tampered
from .registry import mutant as any_mutant

mutant = partial(any_mutant, study="transactions")

_claim = lifecycle.claim
_look = lifecycle.look
_receive = core.receive


# --- record and effect -------------------------------------------------------------------------


@mutant("the record is written in a separate transaction, after the effect")
def record_after_the_effect(patch: Patch) -> None:
    commit = Database._commit

    def apart(self: Any, session: Any, opened: Any, ask: Any, reply: Any) -> None:
        if session.about is None and opened.effects and ask.by == "caller":
            rows, opened.rows = opened.rows, {}
            self._world.after(0.01, None, self.rows.update, rows)
        commit(self, session, opened, ask, reply)

    patch(Database, "_commit", apart)


@mutant("a record is seen as done before its transaction has committed")
def done_before_the_commit(patch: Patch) -> None:
    finish = Database._finish

    def seen_at_once(self: Any, session: Any, opened: Any, ask: Any, reply: Any) -> None:
        finish(self, session, opened, ask, reply)
        self.rows.update(opened.rows)

    patch(Database, "_finish", seen_at_once)


@mutant("the transaction's mark is not compared: a handler that committed by itself is done")
def mark_not_compared(patch: Patch) -> None:
    patch(Database, "is_entered", lambda self, opened, ask: True)


@mutant("half-done work that its handler committed is taken over as if a lease had expired")
def half_runs_again(patch: Patch) -> None:
    def claim(row: Row | None, ask: ClaimRequest, now: int, floor: int = 0) -> Any:
        return _claim(None if row is None else replace(row, hold=False), ask, now, floor)

    patch(lifecycle, "claim", claim)


def _tampering(handle: Callable[[Any, Any], Any]) -> Any:
    return tampered(_receive, handle, Exception)


@mutant("a transaction that the database aborted during its handler is recorded as done")
def aborted_is_done(patch: Patch) -> None:
    def handle(call: Any, command: Any) -> Any:
        try:
            return (yield command)
        except AtomicityBrokenError:
            return True

    patch(core, "receive", _tampering(handle))


@mutant("the handler runs before its record is entered")
def handler_first(patch: Patch) -> None:
    def handle(call: Any, command: Any) -> Any:
        if type(command) is Enter:
            claim = (call.key, command.owner, 1, 1, None, 0.0, 1e9, 1e9, call.clock, 0.0, 1e9)
            yield Invoke(ActiveClaim(*claim), call.run)
        return (yield command)

    patch(core, "receive", _tampering(handle))


@mutant("results are cached in the process and replayed from there, committed or not")
def rolled_back_is_replayed(patch: Patch) -> None:
    kept: list[Any] = [None, {}]

    def handle(call: Any, command: Any) -> Any:
        if kept[0] is not tokens._counter:  # another world
            kept[:] = tokens._counter, {}
        if type(command) is Enter and command.id in kept[1]:
            result = kept[1][command.id]
            return Entered(Claimed(Verdict.REPLAY, 1, 1, state=State.COMPLETED, result=result))
        if type(command) is Leave:
            kept[1][command.ask.id] = command.ask.result
        return (yield command)

    patch(core, "receive", _tampering(handle))


@mutant("a COMMIT without an answer counts as success")
def cut_commit_is_success(patch: Patch) -> None:
    commit = Connection.commit

    def hopeful(self: Any, by: str = "caller") -> None:
        try:
            commit(self, by)
        except DriverError:
            return

    patch(Connection, "commit", hopeful)


@mutant("after a COMMIT without an answer the same statements are sent again on a new connection")
def cut_commit_is_repeated(patch: Patch) -> None:
    consume = Job._consume

    def again(self: Any) -> Any:
        answer = consume(self)
        cut = isinstance(answer, Raised) and isinstance(answer.error, DriverError)
        if cut and self.failed is None and not self.delivery.accepts:
            self.connection = Connection(self.worker, self.name, lambda: None)
            where = self.delivery.consumer, self.delivery.message
            self.connection.call(Write(Effect(*where, self.run)))
            self.connection.commit()
        return answer

    patch(Job, "_consume", again)


@mutant(
    "a done key is claimed again",
    aside=("closed keys stay closed", "every start has a cause", "poison parks"),
)
def done_runs_again(patch: Patch) -> None:
    def claim(row: Row | None, ask: ClaimRequest, now: int, floor: int = 0) -> Any:
        if row is not None and row.state is State.COMPLETED:
            row = replace(row, state=State.RELEASED)
        return _claim(row, ask, now, floor)

    patch(lifecycle, "claim", claim)


# --- deciding ----------------------------------------------------------------------------------


@mutant(
    "a key is selected and then inserted, without waiting for a transaction that inserted it in between"
)
def insert_without_lock(patch: Patch) -> None:
    def at_once(self: Any, session: Any, opened: Any, id_: bytes, reply: Any, then: Any) -> None:
        then()

    patch(Locks, "take", at_once)
    patch(Locks, "give_back", lambda self, opened, id_: None)


@mutant("a transaction that waited for a record decides by what it read before it waited")
def old_snapshot(patch: Patch) -> None:
    def load(self: Any, session: Any, opened: Any, ask: Any, reply: Any) -> None:
        row, now = self._seen(opened, ask.id), self.now()
        self._look(session, ask.id)
        if row is None:
            reply((None, now))
        else:
            self.locks.take(session, opened, ask.id, reply, lambda: reply((row, now)))

    patch(Database, "_load", load)


@mutant("fingerprints are not compared in a transaction")
def fingerprint_not_compared(patch: Patch) -> None:
    def look(row: Row, ask: ClaimRequest, now: int) -> Any:
        return _look(row, replace(ask, fingerprint=None), now)

    patch(lifecycle, "look", look)


@mutant("a record past its retention is replayed until it is swept")
def expired_is_replayed(patch: Patch) -> None:
    patch(lifecycle, "is_expired", lambda row, now: False)


@mutant("the consumer is not part of the key: the second consumer finds the work done")
def consumer_not_in_the_key(patch: Patch) -> None:
    patch(InboxBase, "key", lambda self, key: Key(key, scope=(CONSUMERS[0],)))


@mutant("a repeat is accepted as new")
def repeat_is_accepted(patch: Patch) -> None:
    patch(core, "accepted", lambda call, answer: True)


@mutant("the sweep removes half done, held and parked records after a while")
def sweep_of_half_done_work(patch: Patch) -> None:
    is_due = Database.is_due

    def old_too(self: Any, row: Row, now: int) -> bool:
        stuck = row.state in (State.IN_PROGRESS, State.HELD, State.PARKED)
        return (stuck and row.changed_at + 200 <= now) or is_due(self, row, now)

    patch(Database, "is_due", old_too)


@mutant("the sweep does not keep the highest fence that it removed")
def sweep_without_floor(patch: Patch) -> None:
    sweep = Database.sweep

    def forgetful(self: Any, ask: Any) -> Any:
        report = sweep(self, ask)
        self.floor = 0
        return report

    patch(Database, "sweep", forgetful)
