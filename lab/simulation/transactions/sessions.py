"""Sessions and their open transactions, as the server sees them; and the row locks that they hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twicesafe._values.records import Row

from .statements import DriverError, Effect

if TYPE_CHECKING:
    from .monitor import Truth
    from .world import World

__all__ = ["Locks", "Opened", "Session"]

Reply = Callable[..., None]

TIME_LIMIT = 1.0
"""Seconds for which a session waits for a lock unless told otherwise."""


class Opened:
    """An open transaction."""

    __slots__ = ("based", "effects", "failed", "locks", "number", "rows")

    def __init__(self, number: int) -> None:
        self.number = number
        self.rows: dict[bytes, Row] = {}
        self.effects: list[Effect] = []
        self.locks: list[bytes] = []
        self.failed = False
        self.based: dict[bytes, tuple[Truth, int]] = {}
        """What was true of a row, and when, as this transaction decided to write it."""


class Session:
    """A connection, as the server sees it."""

    __slots__ = ("about", "looked", "name", "opened", "over", "time_limit", "waits", "worker")

    def __init__(self, name: str, worker: Any, note: bytes | None = None) -> None:
        self.name = name
        self.worker = worker
        self.about = note
        """The key of its deferred write; None: it is a consumer's."""
        self.opened: Opened | None = None
        self.over = False
        self.time_limit = TIME_LIMIT
        self.waits: Reply | None = None
        """Whom to tell if it ends while a statement of it waits for a lock."""
        self.looked: tuple[Truth, int] | None = None
        """What was true, and when, of the record that it last looked at."""


class Locks:
    """One holder per row; the others wait in line, each as long as its session may wait."""

    def __init__(self, world: World, fail: Callable[[Session], None]) -> None:
        self._world = world
        self._fail = fail
        self._holders: dict[bytes, Session] = {}
        self._lines: dict[bytes, deque[tuple[Session, Opened, Callable[[], None]]]] = {}

    def __contains__(self, id: bytes) -> bool:  # noqa: A002
        return id in self._holders

    def take(
        self, session: Session, opened: Opened, id: bytes, reply: Reply, then: Callable[[], None]  # noqa: A002
    ) -> None:  # fmt: skip
        holder = self._holders.get(id)
        if holder is None or holder is session:
            self._grant(session, opened, id, then)
            return
        self._world.seen["lock", "waited for"] += 1
        session.waits = reply
        waiter = (session, opened, then)
        self._lines.setdefault(id, deque()).append(waiter)

        def late() -> None:
            if session.opened is opened and waiter in self._lines[id]:
                self._lines[id].remove(waiter)
                session.waits = None
                self._world.seen["lock", "not given in time"] += 1
                self._fail(session)
                reply(None, DriverError("55P03", "canceling statement due to lock timeout"))

        self._world.after(max(0.001, session.time_limit), None, late)

    def _grant(
        self, session: Session, opened: Opened, id: bytes, then: Callable[[], None]  # noqa: A002
    ) -> None:  # fmt: skip
        session.waits = None
        if self._holders.get(id) is not session:
            self._holders[id] = session
            opened.locks.append(id)
        then()

    def drop(self, opened: Opened) -> None:
        """Its transaction is over."""
        locks, opened.locks = opened.locks, []
        for id_ in locks:
            self._next(id_)

    def give_back(self, opened: Opened, id: bytes) -> None:  # noqa: A002
        opened.locks.remove(id)
        self._next(id)

    def _next(self, id: bytes) -> None:  # noqa: A002
        del self._holders[id]
        line = self._lines.get(id)
        while line and id not in self._holders:
            session, opened, then = line.popleft()
            if session.opened is opened:
                self._grant(session, opened, id, then)
