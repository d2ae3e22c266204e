"""Transaction mode: the programs of a SQL store that run in the caller's transaction.

They write the same kind of row to the same table as lease mode, so each mode respects the records
of the other. A key that is claimed, completed, held or parked in one mode has the same state in the
other. `enter` inserts first, and decides in one statement where an engine can. Rare cases load the
row under a lock, decide by the lifecycle table, and save it. Nothing here begins, commits or rolls
back a transaction.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

from ..._core import inbox_requests as inbox
from ..._core import lifecycle
from ..._core.durable.run_requests import RecordStep
from ..._core.inbox_requests import DeferredWrite, Enter, Entered, Leave
from ..._core.protocol import Ack, Claimed, Renew, Verdict
from ..._values.records import Row
from ...stores._base import Program
from .commands import Change
from .programs import SqlPrograms

__all__ = ["InTransaction", "look", "new", "savepoint"]


class InTransaction(abc.ABC):
    """One engine's programs for the caller's transaction."""

    programs: SqlPrograms

    @abc.abstractmethod
    def enter(self, asks: Sequence[Enter], wait: float) -> Program[list[Entered]]:
        """Claim different keys; `wait`: seconds to wait for a row that another transaction locks."""

    def enter_one(self, ask: Enter) -> Program[Entered]:
        """`enter` for one record, with the wait that it asks for."""
        return (yield from self.enter((ask,), ask.wait))[0]

    @abc.abstractmethod
    def leave(self, ask: Leave) -> Program[bool]:
        """Complete the record; False: the transaction that was entered has ended."""

    def begin_step(self, ask: RecordStep) -> Program[Ack]:
        """A step of a durable run begins in this transaction; OK: its worker owns the run."""
        if self.programs.moves:
            yield from self.programs.moves.fetch((ask.id,))
        ack = yield from self.programs.runs.begin_step(ask)
        yield Change(f"SAVEPOINT {savepoint(ask.owner)}")
        return ack

    def rewind_step(self, ask: RecordStep) -> Program[None]:
        """Undo the step so far; `AtomicityBrokenError`: this is not the transaction in which it
        began. Works in a failed transaction, too."""
        yield Change(f"ROLLBACK TO SAVEPOINT {savepoint(ask.owner)}")

    def record_step(self, ask: RecordStep, renewed: int) -> Program[Ack]:
        """Record the step; `AtomicityBrokenError`: this is not the transaction in which it began.

        `renewed`: milliseconds by which the lease is renewed here, too; 0: it is not.
        """
        yield Change(f"RELEASE SAVEPOINT {savepoint(ask.owner)}")
        ack = yield from self.programs.runs.record_step(ask)
        if ack is Ack.OK and renewed:
            yield from self.programs.decide_record(Renew(ask.id, ask.owner, ask.fence, renewed))
        return ack

    def fetch(self, asks: Sequence[Enter]) -> Program[None]:
        """While records are moved: move those of these keys in the caller's transaction."""
        if self.programs.moves:
            yield from self.programs.moves.fetch([ask.id for ask in asks])

    def write_deferred(self, ask: DeferredWrite) -> Program[None]:
        """Write what must be kept although the caller rolled back. Needs a transaction of our own."""
        programs = self.programs
        if programs.moves:
            yield from programs.moves.fetch((ask.claim.id,))
        row, now = yield from programs.load(ask.claim.id, programs.lock)
        floor = 0 if row is not None else (yield from programs.floor())
        after = inbox.apply_deferred(row, ask, now, floor)
        if after is not None:
            yield from programs.save(after, new=row is None)

    def _decide(self, ask: Enter) -> Program[Claimed]:
        """Decide under a row lock what one statement could not decide."""
        programs = self.programs
        row, now = yield from programs.load(ask.id, programs.lock)
        floor = 0 if row is not None else (yield from programs.floor())
        answer, after = inbox.decide(row, ask, now, floor)
        if after is not None:
            yield from programs.save(after, new=row is None)
        return answer

    def _complete(self, ask: Leave) -> Program[bool]:
        """The same for the end of the work."""
        programs = self.programs
        row, now = yield from programs.load(ask.ask.id, programs.lock)
        ack, after = lifecycle.complete(row, ask.ask, now)
        if after is not None:
            yield from programs.save(after)
        return ack is Ack.OK


def look(row: Row, ask: Enter, now: int) -> Claimed | None:
    """The answer from an existing row, if it needs no write; None: decide under a lock."""
    if lifecycle.is_expired(row, now):
        return None
    answer, after = inbox.decide(row, ask, now, 0)
    return None if after is not None or answer.verdict is Verdict.WON else answer


def savepoint(owner: bytes) -> str:
    """A unique name. The savepoint exists only as long as its transaction."""
    return f"twicesafe_{owner.hex()}"


def new(rows: Any) -> Claimed | None:
    """The answer to an insert that returns its fence, if it inserted."""
    return Claimed(Verdict.WON, rows[0][0], 1) if rows else None
