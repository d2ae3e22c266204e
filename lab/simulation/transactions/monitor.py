"""The monitor: sees every write and every commit, and knows what is true of a key by itself.

What is true of a key is replaced by every commit, never changed: so a decision can be checked
later what it was based on. The monitor does not ask the lifecycle what is right: a mutant of the
lifecycle must not be its own judge. Times are the database's milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from twicesafe._core.inbox_requests import Enter
from twicesafe._core.protocol import Ack, Claimed, Verdict
from twicesafe._values.records import Cause, Row, State

from .invariants import broken
from .policies import KEYS

if TYPE_CHECKING:
    from .sessions import Opened, Session

__all__ = ["Monitor", "Truth", "differs"]

_KEPT = (State.IN_PROGRESS, State.HELD, State.PARKED)
_WHOSE = {
    key.id: (consumer, message)
    for consumer, keys in enumerate(KEYS)
    for message, key in enumerate(keys)
}


class Truth(msgspec.Struct, frozen=True):
    """What is true of one key, as far as it is committed."""

    state: State | None = None
    """In progress: the handler committed half of its work."""
    result: bytes | None = None
    expires: int = 0
    fingerprint: bytes | None = None
    attempts: int = 0
    cause: Cause | None = None
    owner: bytes = b""
    effects: int = 0
    """Of this life: since the key was new, or since an operator let it run again."""
    since: int = 0

    def is_over(self, now: int) -> bool:
        return 0 < self.expires <= now

    def at(self, now: int) -> Truth:
        """What it means at that time: of what is expired, only the cause of a release is left."""
        if not self.is_over(now):
            return self
        kept = self.cause if self.state is State.RELEASED else Cause.RETENTION_EXPIRED
        return Truth(cause=kept)


NOTHING = Truth()


def differs(one: bytes | None, other: bytes | None) -> bool:
    return one is not None and other is not None and one != other


def _set_back(looked: Truth, verdict: Verdict, now: int) -> bool:
    """By a clock that was set back, half done work and what an operator released are of the future."""
    half = verdict is Verdict.BUSY and looked.state is State.IN_PROGRESS
    released = verdict is Verdict.RESTING and looked.cause is Cause.OPERATOR
    return (half or released) and now < looked.since


class Monitor:
    def __init__(self, seen: Counter[Any]) -> None:
        self._seen = seen
        self._truths: dict[bytes, Truth] = {}
        self._rows: dict[bytes, Row] = {}
        self._fences: dict[bytes, int] = {}
        self.results: set[bytes | None] = set()
        """All that were ever committed: no two runs have the same."""
        self.runs: set[int] = set()
        """Handlers whose effect was committed."""
        self.ended: set[tuple[int, int]] = set()
        """(consumer, message) that were done, or ended by an operator or a remembered failure."""
        self.counted: set[bytes] = set()
        """Notes, by their owner, that were committed."""
        self.noted: Counter[tuple[Any, bytes]] = Counter()

    def truth(self, id: bytes) -> Truth:  # noqa: A002
        return self._truths.get(id, NOTHING)

    # -- answers to `Enter` ---------------------------------------------------------------------

    def entered(self, session: Session, ask: Enter, answer: Claimed) -> None:
        assert session.looked is not None
        looked, now = session.looked
        verdict = answer.verdict
        self._seen["verdict", verdict.name.lower()] += 1
        if looked.is_over(now) and verdict is not Verdict.WON:
            broken("waiting answers are true", f"{verdict.name} from a record past its retention")
        looked = looked.at(now)
        if differs(looked.fingerprint, ask.fingerprint) != (verdict is Verdict.MISMATCH):
            broken("mismatch first", f"{looked.fingerprint!r} is kept: {verdict.name}")
        if verdict is Verdict.WON:
            if looked.state not in (None, State.RELEASED):
                broken("closed keys stay closed", f"won, and it is {looked.state}")
            if looked.attempts and looked.attempts >= ask.max_attempts:
                broken("poison parks", f"won after {looked.attempts} of {ask.max_attempts}")
        elif verdict is Verdict.REPLAY:
            if (looked.state, looked.result) != (answer.state, answer.result):
                broken("replays are exact", f"{looked.result!r} is kept, not {answer.result!r}")
        elif verdict is Verdict.HELD:
            if looked.state not in (State.IN_PROGRESS, State.HELD):
                broken("waiting answers are true", f"held, but it is {looked.state}")
        elif verdict is Verdict.PARKED:
            over = looked.state is State.RELEASED and looked.attempts >= ask.max_attempts
            if looked.state is not State.PARKED and not over:
                broken("waiting answers are true", f"parked, but it is {looked.state}")
        elif verdict is Verdict.FORGOTTEN:
            if looked.state is not State.FORGOTTEN:
                broken("waiting answers are true", f"forgotten, but it is {looked.state}")
        elif verdict is not Verdict.MISMATCH and not _set_back(looked, verdict, now):
            broken("waiting answers are true", f"{verdict.name}, and no transaction holds the key")

    # -- writes and commits -------------------------------------------------------------------

    def writes(
        self, session: Session, opened: Opened, row: Row, sessions: Iterable[Session]
    ) -> None:
        """A transaction writes a row that no other one sees yet."""
        assert session.looked is not None
        opened.based.setdefault(row.id, session.looked)
        for other in sessions:
            if other.opened is not opened and other.opened and row.id in other.opened.rows:
                broken("one at a time", f"{other.name} writes the same record")

    def commits(self, session: Session, opened: Opened, by: str, rows: Mapping[bytes, Row]) -> None:
        """All at once, now."""
        if session.about is not None:
            self.noted[session.worker, session.about] += 1
            if not opened.rows:
                self._seen["note", "nothing to add"] += 1
        elif opened.effects and not opened.rows:
            broken("effect and record commit together", "an effect, and no record of it")
        for id_, row in opened.rows.items():
            self.looks(id_, rows)
            base, then = opened.based[id_]
            if self.truth(id_).state is State.IN_PROGRESS and row.state is not State.HELD:
                broken(
                    "half-done work is held", f"half of it is committed, and it becomes {row.state}"
                )
            if base is not self.truth(id_):
                broken("one at a time", "the record is not what the decision was based on")
            base = base.at(then)
            if differs(base.fingerprint, row.fingerprint):
                broken("mismatch first", "another fingerprint was written")
            if session.about is None:
                after = self._entry(base, row, opened, by)
            else:
                after = self._note(base, row)
            self._now(id_, after, row)
        for effect in opened.effects:
            self.runs.add(effect.run)
            self.ended.add((effect.consumer, effect.message))
            self._seen["effect", "committed by the " + by] += 1

    def looks(self, id: bytes, rows: Mapping[bytes, Row]) -> None:  # noqa: A002
        """Is what others see what was committed?"""
        if rows.get(id) is not self._rows.get(id):
            broken("rolled back leaves no trace", "a record changed without a commit")

    def _now(self, id: bytes, after: Truth, row: Row) -> None:  # noqa: A002
        found = row.state in (State.HELD, State.PARKED)  # not claimed for it
        if row.fence < self._fences.get(id, 0) + (not found):
            broken("fences grow", f"fence {row.fence} after {self._fences[id]}")
        self._fences[id] = row.fence
        self._truths[id], self._rows[id] = after, row

    def _entry(self, base: Truth, row: Row, opened: Opened, by: str) -> Truth:
        """A consumer's transaction commits."""
        effects = len(opened.effects)
        if base.state not in (None, State.RELEASED):
            broken("closed keys stay closed", f"entered, and it was {base.state}")
        if base.effects and effects:
            broken("one effect per key and life", f"{base.effects} before this one")
        if by == "handler":
            if row.state is not State.IN_PROGRESS or not row.hold:
                broken(
                    "half-done work is held", f"a handler committed, and its record is {row.state}"
                )
            return Truth(
                *(row.state, None, 0, row.fingerprint, base.attempts + 1, base.cause),
                *(row.owner, effects, row.changed_at),
            )
        if row.state is not State.COMPLETED:
            broken("effect and record commit together", f"the record says {row.state}")
        if effects != 1:
            broken("effect and record commit together", f"done, with {effects} effects")
        [effect] = opened.effects
        if row.result not in (None, b'j"%d#%d"' % (effect.message, effect.run)):
            broken("effect and record commit together", f"{row.result!r} is not this effect's")
        self.results.add(row.result)
        return Truth(
            *(row.state, row.result, row.expires_at, row.fingerprint, base.attempts + 1),
            *(base.cause, row.owner, effects),
        )

    def _note(self, base: Truth, row: Row) -> Truth:
        """What is kept although the consumer rolled back."""
        state = row.state
        if base.state is State.IN_PROGRESS:
            if state is not State.HELD:
                broken("half-done work is held", f"a note made it {state}")
            self._seen["note", "found held"] += 1
            return replace(base, state=state)
        if base.state not in (None, State.RELEASED):
            broken("failures are counted", f"one overwrote a record that is {base.state}")
        if state not in (State.RELEASED, State.PARKED, State.FAILED):
            broken("failures are counted", f"one left {state}")
        counted = row.attempt - base.attempts
        if counted != 1 and not (state is State.PARKED and counted == 0):
            broken("poison parks", f"{row.attempt} attempts after {base.attempts}")
        if row.owner == base.owner and counted:
            broken("poison parks", "one failure was counted twice")
        self.counted.add(row.owner)
        self._seen["note", str(state)] += 1
        if state is State.FAILED:
            self.results.add(row.result)
            self.ended.add(_WHOSE.get(row.id, (-1, -1)))
        cause = Cause.FAILED if state is State.RELEASED else base.cause
        return Truth(
            *(state, row.result, row.expires_at, row.fingerprint, row.attempt, cause),
            *(row.owner, base.effects),
        )

    # -- operators and sweeps -----------------------------------------------------------------

    def operated(self, ask: Any, before: Row | None, ack: Ack, after: Row | None, now: int) -> None:
        self._seen[ask.op, ack.name.lower()] += 1
        if after is None:
            return
        base = self.truth(ask.id)
        if base.is_over(now) or before is not self._rows.get(ask.id):
            broken("operators decide", f"{ask.op} of a record that is not there")
        done = base.state is State.COMPLETED
        if done and (ask.op == "resolve" or (ask.op == "release" and not ask.force)):
            broken("operators decide", f"{ask.op} dropped a result")
        if base.state is State.IN_PROGRESS and ask.op == "forget":
            broken("live work is kept", "half done work was forgotten")
        if after.owner:
            broken("operators decide", f"{ask.op} left the record its owner")
        expires = max(0 if ask.op == "release" else base.expires, now + ask.retention)
        if ask.op == "release":
            kept = base.fingerprint
            truth = Truth(State.RELEASED, None, expires, kept, cause=Cause.OPERATOR, since=now)
        elif ask.op == "resolve":
            truth = replace(
                base, state=State.COMPLETED, result=ask.result, expires=expires, owner=b""
            )
            self.results.add(ask.result)
            self.ended.add(_WHOSE[ask.id])
        else:
            truth = Truth(State.FORGOTTEN, None, expires, effects=base.effects)
            self.ended.add(_WHOSE[ask.id])
        if after.state is not truth.state:
            broken("operators decide", f"{ask.op} left {after.state}")
        self._now(ask.id, truth, after)

    def swept(self, row: Row, now: int) -> None:
        truth = self._truths.pop(row.id, NOTHING)
        self._rows.pop(row.id, None)
        if truth.state in _KEPT:
            broken("live work is kept", f"a record that is {truth.state} was swept")
        if not truth.is_over(now):
            broken("live work is kept", f"swept {truth.expires - now} ms too early")
        self._seen["swept", str(row.state)] += 1
