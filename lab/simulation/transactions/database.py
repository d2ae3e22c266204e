"""The virtual database: rows of the inbox and of the business, transactions, row locks, one clock.

It behaves as PostgreSQL does at READ COMMITTED, as far as the inbox can tell: a statement sees what
is committed and its own writes; a statement that would insert or change a row that another open transaction
wrote waits for its end, up to a lock time-out; a commit is atomic; an error aborts the transaction;
a session that ends is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from twicesafe._core import inbox_requests as inbox
from twicesafe._core import lifecycle
from twicesafe._core.protocol import Ack, Read, Sweep
from twicesafe._values.records import Row, SweepReport

from .sessions import Locks, Opened, Session
from .statements import (
    Commit,
    DriverError,
    Finish,
    Floor,
    Insert,
    Load,
    Rollback,
    Save,
    Write,
    Wrong,
)  # fmt: skip

if TYPE_CHECKING:
    from .world import World

__all__ = ["Database"]

Reply = Callable[..., None]

EPOCH = 1_700_000_000_000


class Database:
    def __init__(self, world: World) -> None:
        self._world = world
        self.rows: dict[bytes, Row] = {}
        self.floor = 0
        self.offset = self.furthest = EPOCH
        self.down_until = 0.0
        self._numbers = count(1)
        self.locks = Locks(world, self.fail)
        self.sessions: dict[Session, None] = {}

    def now(self) -> int:
        return int(self._world.now * 1000) + self.offset

    # -- sessions -----------------------------------------------------------------------------

    def perform(self, session: Session, statement: Any, reply: Reply) -> None:
        if session.over or self._world.now < self.down_until:
            self.end(session)
            reply(None, DriverError("08006", "the connection is gone"))
            return
        opened = session.opened
        if opened is None:
            opened = session.opened = Opened(next(self._numbers))
            self.sessions[session] = None
        kind = type(statement)
        if opened.failed and kind is not Commit and kind is not Rollback:
            reply(None, DriverError("25P02", "the transaction is aborted"))
            return
        getattr(self, _ACTS[kind])(session, opened, statement, reply)

    def end(self, session: Session) -> None:
        """The server notices that the client has gone, or ends the session by itself."""
        session.over = True
        self._rollback(session)
        waits, session.waits = session.waits, None
        if waits is not None:
            waits(None, DriverError("08006", "the server ended the connection"))

    def fail(self, session: Session) -> None:
        """A deadlock, or a serialisation failure: the transaction takes no more statements."""
        if session.opened is not None:
            opened = session.opened
            opened.failed, opened.rows, opened.effects = True, {}, []
            self.locks.drop(opened)

    def restart(self, seconds: float) -> None:
        self.down_until = self._world.now + seconds
        for session in list(self.sessions):
            self.end(session)

    def _rollback(self, session: Session) -> None:
        opened, session.opened = session.opened, None
        self.sessions.pop(session, None)
        if opened is not None:
            self.locks.drop(opened)

    # -- statements ---------------------------------------------------------------------------

    def _seen(self, opened: Opened, id: bytes) -> Row | None:  # noqa: A002
        return opened.rows.get(id) or self.rows.get(id)

    def _look(self, session: Session, id: bytes) -> None:  # noqa: A002
        session.looked = self._world.monitor.truth(id), self.now()

    def _insert(self, session: Session, opened: Opened, ask: Insert, reply: Reply) -> None:
        id_ = ask.ask.id
        session.time_limit = ask.wait
        self._look(session, id_)
        row = self._seen(opened, id_)
        if row is not None:
            reply((self.now(), opened.number, None, row))
            return

        def insert() -> None:
            self._look(session, id_)
            if id_ in self.rows:  # whom we waited for has committed: this statement cannot see it
                self.locks.give_back(opened, id_)
                reply((self.now(), opened.number, None, None))
                return
            answer, new = inbox.decide(None, ask.ask, self.now(), self.floor)
            assert new is not None
            self.write(session, opened, new)
            reply((self.now(), opened.number, answer.fence, None))

        self.locks.take(session, opened, id_, reply, insert)

    def _load(self, session: Session, opened: Opened, ask: Load, reply: Reply) -> None:
        if self._seen(opened, ask.id) is None:  # there is nothing that could be locked
            self._look(session, ask.id)
            reply((None, self.now()))
            return

        def load() -> None:
            self._look(session, ask.id)
            reply((self._seen(opened, ask.id), self.now()))

        self.locks.take(session, opened, ask.id, reply, load)

    def _floor(self, session: Session, opened: Opened, ask: Floor, reply: Reply) -> None:
        reply(self.floor)

    def _save(self, session: Session, opened: Opened, ask: Save, reply: Reply) -> None:
        row = ask.row

        def save() -> None:
            if ask.new and row.id in self.rows:
                self.fail(session)
                reply(None, DriverError("23505", "duplicate key value violates unique constraint"))
                return
            self.write(session, opened, row)
            reply(1)

        self.locks.take(session, opened, row.id, reply, save)

    def write(self, session: Session, opened: Opened, row: Row) -> None:
        """Into this transaction: no other one sees it before the commit."""
        self._world.monitor.writes(session, opened, row, self.sessions)
        opened.rows[row.id] = row

    def _finish(self, session: Session, opened: Opened, ask: Finish, reply: Reply) -> None:
        end = ask.leave.ask
        row = self._seen(opened, end.id)
        if not self.is_entered(opened, ask) or row is None:
            reply(False)
            return
        ack, after = lifecycle.complete(row, end, self.now())
        if after is not None:
            self.write(session, opened, after)
        reply(ack is Ack.OK)

    def is_entered(self, opened: Opened, ask: Finish) -> bool:
        """Is this the transaction that the record was entered in?"""
        return opened.number == ask.leave.mark

    def _write(self, session: Session, opened: Opened, ask: Write, reply: Reply) -> None:
        opened.effects.append(ask.effect)
        reply(1)

    def _wrong(self, session: Session, opened: Opened, ask: Wrong, reply: Reply) -> None:
        self.fail(session)
        reply(None, DriverError("42601", "syntax error"))

    def _commit(self, session: Session, opened: Opened, ask: Commit, reply: Reply) -> None:
        if not opened.failed:
            self._world.monitor.commits(session, opened, ask.by, self.rows)
            self.rows.update(opened.rows)
        self._rollback(session)
        reply(None)

    def _roll_back(self, session: Session, opened: Opened, ask: Rollback, reply: Reply) -> None:
        self._rollback(session)
        reply(None)

    # -- operators and upkeep, each in its own short transaction --------------------------

    def operate(self, ask: Any) -> Any:
        now, row = self.now(), self.rows.get(ask.id)
        if type(ask) is Read:
            return None if row is None or lifecycle.is_expired(row, now) else row
        ack, after = getattr(lifecycle, ask.op)(row, ask, now)
        if after is not None:
            self.rows[ask.id] = after
        self._world.monitor.operated(ask, row, ack, after, now)
        return ack

    def is_due(self, row: Row, now: int) -> bool:
        return lifecycle.is_expired(row, now)

    def sweep(self, ask: Sweep) -> tuple[SweepReport, str]:
        now = self.now()
        rows = [row for row in self.rows.values() if row.id not in self.locks]
        gone = [row for row in rows if self.is_due(row, now)]
        for row in gone:
            self.floor = max(self.floor, row.fence)
            del self.rows[row.id]
            self._world.monitor.swept(row, now)
        return SweepReport(removed=len(gone), examined=len(rows), more=False), ""


_ACTS: dict[type, str] = {
    Insert: "_insert",
    Load: "_load",
    Floor: "_floor",
    Save: "_save",
    Finish: "_finish",
    Write: "_write",
    Wrong: "_wrong",
    Commit: "_commit",
    Rollback: "_roll_back",
}
