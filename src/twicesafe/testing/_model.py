"""Model-based test: Hypothesis sends random requests to a store and to a model, and compares the answers.

The conformance suite tests the rules that we thought of; this finds the others. The model is a
`MemoryStore`, which applies `_core.lifecycle` and nothing else, on the same clock. Requests of several
keys and owners, stale owners and fences, batches, operators, sweeps, time and reopening come in any
order. After each step every row must be the same.

    class SqliteModel(Sqlite, StoreModel):
        pass

    TestSqliteModel = SqliteModel.TestCase
    TestSqliteModel.settings = settings(max_examples=200, stateful_step_count=30)

Fences need not be equal numbers. If the model's fence is new, the store's must be higher than any
before it; otherwise the store's must be the same as before.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, multiple, precondition, rule
from msgspec.structs import replace

from .._core.protocol import (
    Ack,
    Browse,
    Claimed,
    ClaimRequest,
    History,
    Read,
    Request,
    Survey,
    Sweep,
    Verdict,
)
from .._values.keys import Key
from .._values.records import Row
from ..stores.memory import MemoryStore
from ._conformance.bench import Advance, Reopen, open_bench
from ._conformance.hooks import StoreUnderTest
from ._conformance.requests import HOUR, Mine, forget, release, resolve

__all__ = ["StoreModel"]

KEYS: Final = [Key("k"), Key("k", ("shop",)), Key("other", ("shop", "it's"))]
OWNERS: Final = [b"1" * 16, b"2" * 16, b"\0" * 16]
SLACK: Final = 10_000
"""Milliseconds by which two real clocks may differ."""

keys = st.sampled_from(KEYS)
owners = st.sampled_from(OWNERS)
fingerprints = st.sampled_from([None, b"f" * 32, b"g" * 32])
attempts = st.sampled_from([1, 2, 5])
results = st.sampled_from([None, b"", b"x", b"big" * 1000])
lapses = st.integers(0, 2)
"""A duration that is over already, over soon, or not over in this test."""


class StoreModel(StoreUnderTest, RuleBasedStateMachine):
    """Fill in the hooks of `StoreUnderTest`; run its ``TestCase``."""

    mode: ClassVar[str] = "blocking"
    """Or "async"."""

    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(tempfile.mkdtemp(prefix="twicesafe-model-"))
        self._bench = open_bench(self, self.mode, self._folder)
        self._model = MemoryStore(now=None if self.real_clock else self._bench.place.clock)
        self._fences: dict[bytes, dict[int, int]] = {key.id: {} for key in KEYS}
        self._expired: set[bytes] = set()
        """Keys without a record before this request, where the engine removes expired ones by itself."""
        self._causeless: set[bytes] = set()
        """Keys that started again when the engine had removed the record, and with it the cause."""

    def teardown(self) -> None:
        try:
            self._bench.__exit__()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _ms(self, lapse: int) -> int:
        """Milliseconds. On a real clock there is no "soon": it would differ in each run."""
        return (0, 0, HOUR)[lapse] if self.real_clock else (1, 500, HOUR)[lapse]

    # -- what a worker does -------------------------------------------------------------------

    @rule(
        target=claims,
        key=keys,
        by=owners,
        lapse=lapses,
        most=attempts,
        hold=st.booleans(),
        fingerprint=fingerprints,
    )
    def claim(
        self, key: Key, by: bytes, lapse: int, most: int, hold: bool, fingerprint: bytes | None
    ) -> Any:
        ask = ClaimRequest(key, by, self._ms(lapse), most, hold, fingerprint)
        answer = self._ask(ask)
        if answer.verdict is not Verdict.WON:
            return multiple()
        return Mine(key.id, by, answer.fence, answer)

    @rule(
        mine=claims,
        act=st.sampled_from(["renew", "complete", "remember", "fail", "hold", "abandon"]),
        lapse=lapses,
        rest=lapses,
        most=attempts,
        result=results,
        impostor=st.sampled_from([None, None, None, "owner", "fence"]),
        pick=st.integers(0, 20),
    )
    def act(
        self,
        mine: Mine,
        act: str,
        lapse: int,
        rest: int,
        most: int,
        result: bytes | None,
        impostor: str | None,
        pick: int,
    ) -> None:
        if impostor == "owner":
            mine = mine.replace(owner=OWNERS[pick % len(OWNERS)])
        elif impostor == "fence":
            known = [*self._fences[mine.id], max(self._fences[mine.id]) + 1]
            mine = mine.replace(fence=known[pick % len(known)])
        self._ask(self._request(mine, act, self._ms(lapse), self._ms(rest), most, result))

    @rule(
        mine=st.lists(claims, max_size=4, unique_by=lambda mine: mine.id),
        act=st.sampled_from(["renew", "complete", "fail"]),
        lapse=lapses,
        fresh=st.lists(keys, max_size=3, unique=True),
        by=owners,
    )
    def batch(self, mine: list[Mine], act: str, lapse: int, fresh: list[Key], by: bytes) -> None:
        """One request per key, because the requests of a batch have no order."""
        ms = self._ms(lapse)
        taken = {each.id for each in mine}
        asks = [self._request(each, act, ms, ms, 2, b"batch") for each in mine]
        asks += [ClaimRequest(key, by, ms) for key in fresh if key.id not in taken]
        self._note_expired()
        expected = self._model.perform_many(asks)
        found = self._bench.perform([self._translated(ask) for ask in asks])
        assert len(found) == len(expected)
        for ask, ours, theirs in zip(asks, expected, found, strict=True):
            self._compare(ask, ours, theirs)
        self._compare_rows()

    # -- what an operator and a timer do ------------------------------------------------------

    @rule(key=keys, force=st.booleans(), lapse=lapses)
    def release(self, key: Key, force: bool, lapse: int) -> None:
        self._ask(release(key, force=force, retention=self._ms(lapse)))

    @rule(key=keys, result=results, lapse=lapses)
    def resolve(self, key: Key, result: bytes | None, lapse: int) -> None:
        self._ask(resolve(key, result, self._ms(lapse)))

    @rule(key=keys, lapse=lapses)
    def forget(self, key: Key, lapse: int) -> None:
        self._ask(forget(key, retention=self._ms(lapse)))

    @rule(limit=st.integers(1, 3))
    def sweep(self, limit: int) -> None:
        """Sweep to the end: the store chooses which records its first step examines."""
        removed = [_sweep(perform, limit) for perform in (self._model.perform, self._bench.perform)]
        if not self._bench.capabilities.native_expiry:
            assert removed[0] == removed[1], f"swept {removed[1]}, not {removed[0]}"
        self._compare_rows()

    @precondition(lambda self: not self.real_clock)
    @rule(ms=st.sampled_from([0, 1, 499, 500, 501, HOUR]))
    def time_passes(self, ms: int) -> None:
        self._bench.perform(Advance(ms))
        self._compare_rows()

    @precondition(lambda self: self._bench.capabilities.durable)
    @rule()
    def reopen(self) -> None:
        self._bench.perform(Reopen())
        self._compare_rows()

    # -- comparing ----------------------------------------------------------------------------

    def _request(
        self, mine: Mine, act: str, ms: int, rest: int, most: int, result: bytes | None
    ) -> Any:
        match act:
            case "renew":
                return mine.renew(ms)
            case "complete":
                return mine.complete(result, retention=ms)
            case "remember":
                return mine.remember(retention=ms)
            case "fail":
                return mine.fail(delay=rest, max_attempts=most, retention=ms)
            case "hold":
                return mine.fail(hold=True)
        return mine.abandon(ms)

    def _ask(self, ask: Any) -> Any:
        self._note_expired()
        expected = self._model.perform(ask)
        self._compare(ask, expected, self._bench.perform(self._translated(ask)))
        self._compare_rows()
        return expected

    def _translated(self, ask: Any) -> Request:
        """The request with the store's number for the model's fence."""
        if getattr(ask, "fence", None) is None:
            return ask  # type: ignore[no-any-return]
        known = self._fences[ask.id]
        highest = max(known)
        fence = known.get(ask.fence) or known[highest] + ask.fence - highest
        return replace(ask, fence=fence)  # type: ignore[no-any-return]

    def _compare(self, ask: Any, expected: Any, found: Any) -> None:
        if isinstance(expected, (Claimed, Row)) and type(found) is type(expected):
            found = self._without_allowed_differences(ask.id, expected, found)
        if found is Ack.MISSING and ask.id in self._expired:
            found = expected
        assert found == expected, f"{ask}\n  expected {expected}\n  got      {found}"

    def _note_expired(self) -> None:
        if self._bench.capabilities.native_expiry:
            reads = {key.id: self._model.perform(Read(key.id)) for key in KEYS}
            self._expired = {id for id, row in reads.items() if row is None}  # noqa: A001

    def _without_allowed_differences(self, id: bytes, expected: Any, found: Any) -> Any:  # noqa: A002
        """The store's answer, without the differences that are allowed."""
        changes: dict[str, Any] = {}
        if expected.fence:
            known = self._fences[id]
            new = expected.fence not in known
            assert not new or found.fence > max(known.values(), default=0), (
                f"a fence went from {max(known.values())} to {found.fence} (P3)"
            )
            if new and isinstance(expected, Claimed):
                removed = id in self._expired and found.cause is None
                (self._causeless.add if removed else self._causeless.discard)(id)
            if known.setdefault(expected.fence, found.fence) == found.fence:
                changes["fence"] = expected.fence
        if self.real_clock:
            changes |= _same_time(expected, found)
        if id in self._causeless and found.cause is None:
            changes["cause"] = expected.cause
        return replace(found, **changes)

    def _compare_rows(self) -> None:
        ours, theirs = self._model.perform, self._bench.perform
        for key in KEYS:
            self._compare(Read(key.id), ours(Read(key.id)), theirs(Read(key.id)))
            trails = [
                [(entry.action, entry.by, entry.why, entry.state_before) for entry in trail]
                for trail in (ours(History(key.id)), theirs(History(key.id)))
            ]
            assert trails[0] == trails[1] or self._bench.capabilities.native_expiry, trails
        shown = [{row.id[:16] for row in perform(Browse(10)).rows} for perform in (ours, theirs)]
        assert shown[0] == shown[1], f"browsing shows {shown[1]}, not {shown[0]}"
        if not self._bench.capabilities.native_expiry:
            counted = [perform(Survey()) for perform in (ours, theirs)]
            if self.real_clock:
                counted = [stats.by_state for stats in counted]
            assert counted[0] == counted[1], f"counted {counted[1]}, not {counted[0]}"


def _sweep(perform: Any, limit: int) -> int:
    removed: int = 0
    after = ""
    while True:
        report, after = perform(Sweep(limit, after))
        removed += report.removed
        if not after:
            return removed


def _same_time(expected: Any, found: Any) -> dict[str, int]:
    """For two real clocks: durations are about equal, and a time is either set or not in both."""
    changes = {}
    for name in ("wait", "age", "expires_in"):
        span = getattr(expected, name, None)
        if span is not None and abs(span - getattr(found, name)) <= SLACK:
            changes[name] = span
    for name in ("created_at", "changed_at", "lease_until", "expires_at"):
        moment = getattr(expected, name, None)
        if moment is not None and bool(moment) == bool(getattr(found, name)):
            changes[name] = moment
    return changes
