"""A worker's connection to the virtual database, and all that can happen to a statement on its way.

Whatever goes wrong, the worker sees one of two things: an answer, perhaps late, or a driver's error.
Whether a COMMIT that was cut was applied is another matter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .fibers import Resume, ask
from .sessions import Session
from .statements import Commit, DriverError, Rollback

if TYPE_CHECKING:
    from ..plans import Fault
    from .worker import Worker

__all__ = ["Connection"]

TIMEOUT = 0.2
"""Seconds after which a driver gives up a connection that does not answer."""
CLOSED = 0.005
"""Seconds after which the server knows that a connection was closed: later than all that was sent."""


class Connection:
    __slots__ = ("_fault", "lost", "name", "session", "worker")

    def __init__(
        self, worker: Worker, name: str, fault: Callable[[], Fault | None],
        note: bytes | None = None,
    ) -> None:  # fmt: skip
        self.worker = worker
        self.name = name
        self.session = Session(name, worker, note)
        self.lost = False
        self._fault = fault
        worker.connections[self] = None

    # -- inside a fibre -----------------------------------------------------------------------

    def call(self, statement: Any) -> Any:
        if self.lost:
            raise DriverError("08003", "the connection is closed")
        return ask(partial(self._carry, statement))

    def commit(self, by: str = "caller") -> None:
        self.call(Commit(by))

    def rollback(self) -> None:
        """What can be said; a connection that is lost is rolled back by the server."""
        try:
            self.call(Rollback())
        except DriverError:
            self.close()

    def close(self, linger: float = CLOSED) -> None:
        """The session has lost its client; the server notices a little later."""
        self.lost = True
        self.worker.connections.pop(self, None)
        world = self.worker.world
        world.after(max(linger, CLOSED), None, world.database.end, self.session)

    # -- on the way ---------------------------------------------------------------------------

    def _carry(self, statement: Any, resume: Resume) -> None:
        world = self.worker.world
        fault = self._fault() if world.faulty else None
        if fault is None:
            world.after(next(world.latency), None, self._reach, statement, resume)
            return
        world.seen["fault", fault.kind] += 1
        if type(statement) is Commit:
            world.seen["COMMIT", fault.kind] += 1
        if world.say:
            world.say(f"~~ {self.name} {type(statement).__name__}: {fault.kind} {fault.seconds:g}")
        _FAULTS[fault.kind](self, statement, resume, fault.seconds)

    def _reach(self, statement: Any, resume: Resume | None, late: float = 0.0) -> None:
        world = self.worker.world

        def reply(value: Any = None, error: DriverError | None = None) -> None:
            if world.say:
                told = error or value
                world.say(f"→  {self.name} {type(statement).__name__}: {_short(told)}")
            if error is not None and error.sqlstate.startswith("08"):
                self.lost = True
            if resume is not None:
                world.after(next(world.latency) + late, self.worker, resume, value, error)

        world.database.perform(self.session, statement, reply)

    def _cut(self, resume: Resume, seconds: float, state: str = "08006") -> None:
        self.close(seconds)
        cut = DriverError(state, "the connection was cut")
        self.worker.world.after(TIMEOUT, self.worker, resume, None, cut)

    def _request_lost(self, statement: Any, resume: Resume, seconds: float) -> None:
        self._cut(resume, seconds)

    def _reply_lost(self, statement: Any, resume: Resume, seconds: float) -> None:
        world = self.worker.world
        world.after(next(world.latency), None, self._reach, statement, None)
        self._cut(resume, seconds)

    def _request_late(self, statement: Any, resume: Resume, seconds: float) -> None:
        self.worker.world.after(seconds, None, self._reach, statement, resume)

    def _reply_late(self, statement: Any, resume: Resume, seconds: float) -> None:
        world = self.worker.world
        world.after(next(world.latency), None, self._reach, statement, resume, seconds)

    def _session_ended(self, statement: Any, resume: Resume, seconds: float) -> None:
        self.worker.world.database.end(self.session)
        self._cut(resume, 0.0, "57P01")

    def _conflict(self, statement: Any, resume: Resume, seconds: float) -> None:
        world = self.worker.world
        world.database.fail(self.session)
        clash = DriverError("40001", "could not serialize access")
        world.after(next(world.latency), self.worker, resume, None, clash)

    def _crash_before(self, statement: Any, resume: Resume, seconds: float) -> None:
        self.worker.world.crash(self.worker, seconds)

    def _crash_after(self, statement: Any, resume: Resume, seconds: float) -> None:
        world = self.worker.world
        world.after(next(world.latency), None, self._reach, statement, None)
        world.crash(self.worker, seconds)

    def _crash_at_reply(self, statement: Any, resume: Resume, seconds: float) -> None:
        world = self.worker.world

        def die(value: Any = None, error: DriverError | None = None) -> None:
            world.crash(self.worker, seconds)

        world.after(next(world.latency), None, self._reach, statement, die)


def _short(told: Any) -> str:
    if isinstance(told, tuple):
        return ", ".join(_short(one) for one in told if one is not None)
    state = getattr(told, "state", None)
    return str(told)[:60] if state is None else f"{state} fence {told.fence} attempt {told.attempt}"


_FAULTS: dict[str, Callable[..., None]] = {
    "request lost": Connection._request_lost,
    "reply lost": Connection._reply_lost,
    "request late": Connection._request_late,
    "reply late": Connection._reply_late,
    "session ended": Connection._session_ended,
    "conflict": Connection._conflict,
    "crash before": Connection._crash_before,
    "crash after": Connection._crash_after,
    "crash at reply": Connection._crash_at_reply,
}
