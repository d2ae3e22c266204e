"""The vocabulary of the rules: three owners, two keys, and requests with default settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from ..._core.protocol import (
    Abandon,
    Ack,
    Claimed,
    ClaimRequest,
    Complete,
    Discard,
    Fail,
    Forget,
    Read,
    Release,
    Renew,
    Resolve,
    Rewrite,
    Verdict,
)
from ..._values.keys import AHEAD as OWNERS_AHEAD
from ..._values.keys import Key
from ..._values.records import Row, State
from .bench import Script

__all__ = [
    "AHEAD",
    "HOUR",
    "KEY",
    "OTHER",
    "STATES",
    "A",
    "B",
    "C",
    "Mine",
    "claim",
    "discard",
    "forget",
    "reach",
    "read",
    "release",
    "resolve",
    "rewrite",
    "unchanged",
    "won",
]

HOUR: Final = 3_600_000
"""In milliseconds. No test waits that long, unless it can set the clock."""

STATES: Final = tuple(state for state in State if state is not State.SUSPENDED)
"""The states that every store knows. Only durable runs are suspended: `StepRules`."""

A: Final = b"owner A".ljust(16, b".")
B: Final = b"owner B".ljust(16, b".")
C: Final = b"owner C".ljust(16, b".")

AHEAD: Final = OWNERS_AHEAD + b" of start".ljust(11, b".")
"""The owner of a claim that was made before its handler could start."""

KEY: Final = Key("order-77", scope=("shop", "charge"))
OTHER: Final = Key("order-78", scope=("shop", "charge"))


@dataclass(frozen=True, slots=True)
class Mine:
    """A claim that was won, and the requests of its owner."""

    id: bytes
    owner: bytes
    fence: int
    answer: Claimed

    def replace(self, **changes: Any) -> Mine:
        """The same with another owner or fence, as an impostor has."""
        return replace(self, **changes)

    def renew(self, lease: int = HOUR) -> Renew:
        return Renew(self.id, self.owner, self.fence, lease)

    def complete(
        self,
        result: bytes | None = b"done",
        *,
        retention: int = HOUR,
        state: State = State.COMPLETED,
        error: str = "",
    ) -> Complete:
        return Complete(self.id, self.owner, self.fence, retention, result, state, error)

    def remember(self, failure: bytes = b"no", *, retention: int = HOUR) -> Complete:
        return self.complete(failure, retention=retention, state=State.FAILED, error="Refused")

    def fail(
        self,
        *,
        delay: int = 0,
        max_attempts: int = 5,
        retention: int = HOUR,
        error: str = "Boom",
        hold: bool = False,
    ) -> Fail:
        return Fail(self.id, self.owner, self.fence, delay, max_attempts, retention, error, hold)

    def abandon(self, retention: int = HOUR) -> Abandon:
        return Abandon(self.id, self.owner, retention)


def claim(
    by: bytes,
    key: Key = KEY,
    *,
    lease: int = HOUR,
    max_attempts: int = 5,
    hold: bool = False,
    fingerprint: bytes | None = None,
) -> ClaimRequest:
    return ClaimRequest(key, by, lease, max_attempts, hold, fingerprint)


def read(key: Key = KEY) -> Read:
    return Read(key.id)


def release(
    key: Key = KEY,
    *,
    force: bool = False,
    retention: int = HOUR,
    fence: int | None = None,
    unless_running: bool = False,
) -> Release:
    return Release(key.id, "ann", "ticket 7", retention, force, fence, unless_running)


def resolve(
    key: Key = KEY,
    result: bytes | None = b"by hand",
    retention: int = HOUR,
    fence: int | None = None,
    unless_running: bool = False,
) -> Resolve:
    return Resolve(key.id, "ben", "asked the bank", retention, result, fence, unless_running)


def rewrite(
    before: bytes, after: bytes, *, key: Key = KEY, state: State = State.COMPLETED
) -> Rewrite:
    return Rewrite(key.id, state, before, after)


def forget(key: Key = KEY, *, retention: int = HOUR, fence: int | None = None) -> Forget:
    return Forget(key.id, "cat", "erasure request", retention, fence)


def discard(key: Key = KEY) -> Discard:
    return Discard(key.id, "dan", "a test message", HOUR)


# --- short scripts that longer ones begin with -----------------------------------------------


def won(by: bytes = A, key: Key = KEY, **settings: Any) -> Script[Mine]:
    """A claim that must win."""
    answer = yield claim(by, key, **settings)
    assert answer.verdict is Verdict.WON, answer
    return Mine(key.id, by, answer.fence, answer)


def reach(state: State | None, key: Key = KEY, by: bytes = A, **settings: Any) -> Script[Mine]:
    """Bring a new key into this state; returns its claim."""
    if state is None:
        return Mine(key.id, by, 1, Claimed(Verdict.WON))
    mine = yield from won(by, key, **settings)
    path: dict[State, list[Any]] = {
        State.IN_PROGRESS: [],
        State.COMPLETED: [mine.complete()],
        State.FAILED: [mine.remember()],
        State.RELEASED: [mine.fail()],
        State.HELD: [mine.fail(hold=True)],
        State.PARKED: [mine.fail(max_attempts=1)],
        State.FORGOTTEN: [mine.complete(), forget(key)],
    }
    for step in path[state]:
        assert (yield step) is Ack.OK, step
    row = yield read(key)
    assert row is not None
    assert row.state is state
    return mine


def unchanged(request: Any, expected: Any, key: Key = KEY) -> Script[None]:
    """This request gets this answer and does not change the record."""
    before: Row | None = yield read(key)
    answer = yield request
    assert answer == expected, f"{request} was answered {answer}"
    assert (yield read(key)) == before, f"{request} was refused, but it changed the record"
