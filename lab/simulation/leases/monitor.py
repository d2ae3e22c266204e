"""The monitor: sees every request that reaches the store, its answer and what it did to the row.

It keeps its own history per key (who was granted what, until when, what was recorded) and
compares. It does not ask the lifecycle what is right: a mutant of the lifecycle must not be its
own judge. Times are the store's milliseconds at the moment of the request.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from twicesafe._core.protocol import Ack, Claimed, ClaimRequest, Complete, Fail, Verdict
from twicesafe._core.transitions import TRANSITIONS, RecordEvent
from twicesafe._values.keys import is_ahead
from twicesafe._values.records import Cause, Row, State

from .invariants import broken

__all__ = ["Monitor", "Past"]

_KEPT = (State.IN_PROGRESS, State.HELD, State.PARKED)


class Past:
    """All that the monitor knows about one key."""

    __slots__ = (
        "abandoned", "attempts", "by", "cause", "expires", "fence", "fingerprint", "granted",
        "granted_at", "hold", "known", "lease", "life", "owner", "prints", "recorded", "rest",
        "result", "starts", "state", "top",
    )  # fmt: skip

    def __init__(self) -> None:
        self.top = 0
        self.granted: dict[int, bytes] = {}
        """fence → owner, of every claim ever won."""
        self.abandoned: set[bytes] = set()
        self.recorded: dict[bytes | None, int] = {}
        """Every result ever recorded → its fence."""
        self.prints: dict[int, bytes | None] = {}
        """fence → fingerprint, of every result ever recorded."""
        self.life = 0
        self.new_life()

    def new_life(self) -> None:
        self.state: State | None = None
        self.life += 1
        self.owner = b""
        self.fence = self.attempts = self.lease = self.rest = self.expires = 0
        self.granted_at = 0.0
        self.hold = False
        self.starts = 0
        """Handler starts under hold that may still have happened."""
        self.cause: Cause | None = None
        self.fingerprint: bytes | None = None
        self.result: tuple[State, bytes | None] | None = None
        self.by: tuple[bytes, int] | None = None


class Monitor:
    def __init__(self, seen: Counter[Any]) -> None:
        self.keys: dict[bytes, Past] = {}
        self._seen = seen

    def past(self, id: bytes) -> Past:  # noqa: A002
        found = self.keys.get(id)
        if found is None:
            found = self.keys[id] = Past()
        return found

    def observe(
        self, ask: Any, before: Row | None, answer: Any, after: Row | None, now: int, **when: float
    ) -> None:
        """One request was applied."""
        past = self.past(ask.id)
        if past.expires and now >= past.expires and ask.op != "complete":
            self._expired(past, ask, answer)
        if ask.op == "claim":
            self._claim(past, ask, before, answer, after, now, when["world"])
            self._seen["verdict", answer.verdict.name.lower()] += 1
        elif ask.op == "read":
            if answer is not None and past.expires and now >= past.expires:
                broken("expiry is seen", "a record past its retention was read")
        else:
            self._seen[ask.op, answer.name.lower()] += 1
            if before is None and after is not None:
                broken("rows begin with a claim", f"{ask.op} made one")
            if before is not after and answer is not Ack.OK:
                broken("stale owners change nothing", f"{ask.op} said {answer.name} and wrote")
            _WRITES[ask.op](self, past, ask, before, answer, after, now, when)
        if before is not after and after is not None:
            self._changed(ask, before, after, now)
            past.top = max(past.top, after.fence)
            if after.state is not past.state:
                broken(
                    "transitions follow the table", f"{ask.op} left {after.state}, not {past.state}"
                )

    def swept(self, row: Row, now: int) -> None:
        past = self.past(row.id)
        if past.state in _KEPT:
            broken("live work is kept", f"a record that is {past.state} was swept")
        if not past.expires or now < past.expires:
            broken("live work is kept", f"a record was swept {past.expires - now} ms too early")
        self._seen["transition", row.state, RecordEvent.EXPIRE] += 1
        past.new_life()

    # -- claims -------------------------------------------------------------------------------

    def _expired(self, past: Past, ask: Any, answer: Any) -> None:
        if isinstance(answer, Claimed) and answer.verdict is not Verdict.WON:
            broken("expiry is seen", f"{answer.verdict.name} from a record past its retention")
        if ask.op in ("release", "resolve", "forget") and answer is not Ack.MISSING:
            broken("expiry is seen", f"{ask.op} of a record past its retention said {answer.name}")

    def _claim(
        self, past: Past, ask: ClaimRequest, before: Row | None, answer: Claimed, after: Row | None,
        now: int, world: float,
    ) -> None:  # fmt: skip
        verdict = answer.verdict
        working = past.state is State.IN_PROGRESS
        mine = working and past.owner == ask.owner
        if verdict is Verdict.WON:
            if after is None or after.owner != ask.owner or after.fence != answer.fence:
                broken("won has a row", "there is none with this owner and fence")
            if mine:
                if answer.fence != past.fence:
                    broken("same owner, same fence", f"{past.fence}, now {answer.fence}")
                return
            self._granted(past, ask, before, answer, now, world)
            return
        if mine:
            broken("same owner, same fence", f"the present owner got {verdict.name}")
        differs = None not in (past.fingerprint, ask.fingerprint) and (
            past.fingerprint != ask.fingerprint
        )
        # An owner that asks again about what it ended itself is not a stranger.
        if past.owner != ask.owner and differs != (verdict is Verdict.MISMATCH):
            broken(
                "mismatch first", f"fingerprints {'differ' if differs else 'agree'}: {verdict.name}"
            )
        if verdict is Verdict.REPLAY:
            if past.result is None:
                broken("replays are exact", "a replay, and nothing was recorded")
            if past.result != (answer.state, answer.result):
                broken("replays are exact", f"{past.result} recorded, {answer.result!r} replayed")
        elif verdict is Verdict.BUSY:
            if not working or past.lease <= now or answer.wait > past.lease - now:
                broken(
                    "waiting answers are true", "busy, and no worker has a live claim for that long"
                )
        elif verdict is Verdict.RESTING:
            if past.state is not State.RELEASED or past.rest <= now:
                broken("waiting answers are true", "resting, and its rest is over")
        elif verdict is Verdict.HELD:
            if working and past.hold and past.lease <= now:
                past.state = State.HELD
            if past.state is not State.HELD:
                broken("waiting answers are true", f"held, but it is {past.state}")
        elif verdict is Verdict.PARKED:
            over = past.attempts - (working and is_ahead(past.owner)) >= ask.max_attempts
            if past.state is State.RELEASED and over and past.rest <= now:
                past.state, past.expires = State.PARKED, 0
            elif working and past.lease <= now and over:
                past.state = State.PARKED
            if past.state is not State.PARKED:
                broken("waiting answers are true", f"parked, but it is {past.state}")
        elif verdict is Verdict.FORGOTTEN and past.state is not State.FORGOTTEN:
            broken("waiting answers are true", f"forgotten, but it is {past.state}")

    def _granted(
        self,
        past: Past,
        ask: ClaimRequest,
        before: Row | None,
        answer: Claimed,
        now: int,
        world: float,
    ) -> None:
        """A new claim was given out: was the way free, and is everything in it true?"""
        state, cause, attempts = past.state, past.cause, past.attempts
        if past.expires and now >= past.expires:
            if state is not State.RELEASED:
                cause = Cause.RETENTION_EXPIRED
            if before is not None:
                self._seen["transition", before.state, RecordEvent.EXPIRE] += 1
            past.new_life()
            state, attempts = None, 0
        elif state is State.IN_PROGRESS:
            if past.lease > now:
                broken("one live claim", f"another one has it for {past.lease - now} ms more")
            if past.hold:
                broken("hold means once", "taken over, although its outcome is unknown")
            cause = Cause.LEASE_EXPIRED
        elif state is State.RELEASED:
            if past.rest > now:
                broken("waiting answers are true", "won during the rest after a failure")
        elif state is not None:
            what = "one result" if past.result else "closed keys stay closed"
            broken(what, f"a claim of a record that is {state} was won")
        differs = None not in (past.fingerprint, ask.fingerprint) and (
            past.fingerprint != ask.fingerprint
        )
        if differs and past.owner != ask.owner:
            broken("mismatch first", "won with another fingerprint")
        if answer.fence <= past.top:
            broken("fences grow", f"fence {answer.fence} after {past.top}")
        if answer.cause is not cause:
            broken("every start has a cause", f"{answer.cause} recorded, {cause} is true")
        if state is State.IN_PROGRESS and is_ahead(past.owner):
            attempts -= 1  # it was claimed ahead, so it does not count
        if answer.attempt != attempts + 1:
            broken("attempts count", f"start {attempts + 1} is called attempt {answer.attempt}")
        if answer.attempt > ask.max_attempts:
            broken("attempts count", f"attempt {answer.attempt} of {ask.max_attempts}")
        past.state, past.owner, past.fence = State.IN_PROGRESS, ask.owner, answer.fence
        past.attempts, past.cause, past.hold = attempts + 1, cause, ask.hold
        past.lease, past.expires, past.granted_at = now + ask.lease, 0, world
        past.fingerprint = ask.fingerprint or past.fingerprint
        past.granted[answer.fence] = ask.owner
        self._seen["cause", str(cause)] += 1

    # -- writes -------------------------------------------------------------------------------

    def _owns(self, past: Past, ask: Any, answer: Any, states: tuple[State, ...]) -> bool:
        """Is this the present owner? Then it must be heard; else it must not be."""
        owns = past.owner == ask.owner and past.fence == ask.fence and past.state in states
        if owns and answer is not Ack.OK:
            broken("the owner may act", f"{ask.op} by the present owner: {answer.name}")
        return owns

    def _renew(
        self, past: Past, ask: Any, before: Any, answer: Ack, after: Any, now: int, when: Any
    ) -> None:
        if not self._owns(past, ask, answer, (State.IN_PROGRESS,)):
            if answer is Ack.OK:
                broken("stale owners change nothing", "a renewal was granted to one")
            return
        past.lease = max(past.lease, now + ask.lease)
        held_for = when["world"] + ask.lease / 1000 - past.granted_at
        if held_for > when["max_lease"] + when["transit"] + 0.1:
            broken("max_lease ends it", f"renewed up to {held_for:.2f} s after the claim")

    def _complete(
        self, past: Past, ask: Complete, before: Any, answer: Ack, after: Any, now: int, when: Any
    ) -> None:
        if self._owns(past, ask, answer, _KEPT):
            if after is None or (after.state, after.result) != (ask.state, ask.result):
                broken("one result", "OK was said and the result is not in the row")
            past.state, past.result = ask.state, (ask.state, ask.result)
            past.by, past.expires = (ask.owner, ask.fence), now + ask.retention
            past.recorded[ask.result] = ask.fence
            past.prints[ask.fence] = past.fingerprint
        elif answer is Ack.OK and past.by != (ask.owner, ask.fence):
            broken("one result", "OK was said to one whose result is not the recorded one")
        elif before is not after:
            broken("one result", "a recorded result was written again")

    def _fail(
        self, past: Past, ask: Fail, before: Any, answer: Ack, after: Any, now: int, when: Any
    ) -> None:
        if not self._owns(past, ask, answer, (State.IN_PROGRESS,)):
            if before is not after:
                broken("stale owners change nothing", "a failure was taken from one")
            return
        if ask.hold:
            past.state, past.expires = State.HELD, 0
        elif past.attempts >= ask.max_attempts:
            past.state, past.expires = State.PARKED, 0
        else:
            past.state, past.cause, past.starts = State.RELEASED, Cause.FAILED, 0
            past.rest, past.expires = now + ask.delay, now + ask.retention

    def _abandon(
        self, past: Past, ask: Any, before: Any, answer: Ack, after: Any, now: int, when: Any
    ) -> None:
        owns = past.owner == ask.owner and past.state is State.IN_PROGRESS
        if not owns:
            if before is not after:
                broken("stale owners change nothing", "a claim was given back by one")
            return
        if answer is not Ack.OK:
            broken("the owner may act", f"abandon by the present owner: {answer.name}")
        past.state, past.rest, past.expires = State.RELEASED, now, now + ask.retention
        past.attempts -= 1
        past.abandoned.add(ask.owner)

    def _operate(
        self, past: Past, ask: Any, before: Any, answer: Ack, after: Any, now: int, when: Any
    ) -> None:
        if before is after:
            return
        if after.fence <= past.top or after.owner:
            broken("fences grow", f"{ask.op} left the owner its fence {after.fence}")
        least = 0 if ask.op == "release" else past.expires
        past.owner, past.fence, past.expires = b"", after.fence, max(least, now + ask.retention)
        past.rest, past.starts = now, 0
        if ask.op == "release":
            if past.state is State.COMPLETED and not ask.force:
                broken("one result", "a release without force dropped it")
            past.state, past.cause, past.attempts = State.RELEASED, Cause.OPERATOR, 0
            past.result = past.by = None
        elif ask.op == "resolve":
            if past.state is State.COMPLETED:
                broken("one result", "a resolve replaced it")
            past.state, past.result, past.by = State.COMPLETED, (State.COMPLETED, ask.result), None
            past.recorded[ask.result] = after.fence
            past.prints[after.fence] = past.fingerprint
        else:
            if past.state is State.IN_PROGRESS:
                broken("live work is kept", "work in progress was forgotten")
            past.state, past.result, past.by, past.fingerprint = State.FORGOTTEN, None, None, None

    # -- the table ----------------------------------------------------------------------------

    def _changed(self, ask: Any, before: Row | None, after: Row, now: int) -> None:
        state = None if before is None or 0 < before.expires_at <= now else before.state
        event = _event(ask, state, after.state)
        if TRANSITIONS.get((state, event)) is not after.state:
            broken("transitions follow the table", f"{state} —{event}→ {after.state}")
        self._seen["transition", state, event] += 1


def _event(ask: Any, before: State | None, after: State) -> RecordEvent:
    if after is State.HELD:
        return RecordEvent.HOLD
    if after is State.PARKED:
        return RecordEvent.PARK
    if ask.op == "claim":
        return RecordEvent.TAKE_OVER if before is State.IN_PROGRESS else RecordEvent.CLAIM
    if ask.op == "complete":
        return RecordEvent.COMPLETE if after is State.COMPLETED else RecordEvent.REMEMBER
    return RecordEvent(ask.op)


_WRITES = {
    "renew": Monitor._renew,
    "complete": Monitor._complete,
    "fail": Monitor._fail,
    "abandon": Monitor._abandon,
    "release": Monitor._operate,
    "resolve": Monitor._operate,
    "forget": Monitor._operate,
}
