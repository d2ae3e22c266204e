"""Searching: the conditions of `Browse` and `Count`, and the audit log of all keys.

A page of records and a count answer the same question, so every rule asks both.
"""

from __future__ import annotations

from typing import Any, Final

from ..._core.protocol import AuditLog, Count
from ..._values.keys import Key
from ..._values.records import Cause, State
from .bench import Advance, Script
from .browsing import browse_all
from .requests import HOUR, KEY, OTHER, STATES, A, B, forget, reach, read, release, resolve, won
from .retention import expiring
from .rules import StoreRules, rule

__all__ = ["SearchingRules"]

VALUES: Final = [
    "tx",
    "TX",
    "tx ",
    " tx",
    "tx%",
    "t_",
    "tx-1",
    "t\u00e9",
    "te\u0301",
    "🙂",
    "x" * 255,
]
"""All different: equal is equal byte by byte."""

ERRORS: Final = ["TimeoutError", "Timeout", "timeout", "T%", "T_meout", "Bank.Refused", "a Timeout"]


def found(expected: set[str], **conditions: Any) -> Script[None]:
    """Exactly the records with these values match, in pages of any size, and their count is right."""
    for limit in (1, 100):
        rows = yield from browse_all(limit, **conditions)
        assert sorted(row.value for row in rows) == sorted(expected), conditions
    assert (yield Count(1000, **conditions)) == len(expected), conditions


class SearchingRules(StoreRules):
    @rule()
    def test_an_empty_store_has_no_match(self) -> Script[None]:
        yield from found(set(), value="tx", states=(State.HELD,), stuck=True)
        assert (yield AuditLog(10)) == []

    @rule()
    def test_records_in_one_of_several_states(self) -> Script[None]:
        for state in STATES:
            if state is not State.FORGOTTEN:
                yield from reach(state, Key(state.value))
        yield from found({"held", "parked"}, states=(State.HELD, State.PARKED))
        yield from found({"completed"}, states=(State.COMPLETED, State.FORGOTTEN))

    @rule()
    def test_a_value_is_found_in_every_scope(self) -> Script[None]:
        for value in VALUES:
            for scope in ((), ("a",), ("b", "c")):
                yield from won(A, Key(value, scope))
        for value in VALUES:
            rows = yield from browse_all(2, value=value)
            assert [row.value for row in rows] == [value] * 3, value
            assert {row.scope for row in rows} == {(), ("a",), ("b", "c")}
            assert (yield Count(100, value=value)) == 3
        yield from found({"tx"}, value="tx", scope=("b",))
        yield from found(set(), value="t")
        yield from found(set(), value="t" * 300)  # longer than a key may be

    @rule()
    def test_the_value_of_a_forgotten_key_is_not_found(self) -> Script[None]:
        yield from reach(State.FORGOTTEN, Key("secret"))
        yield from found(set(), value="secret")

    @rule()
    def test_records_by_the_beginning_of_their_error(self) -> Script[None]:
        for error in ERRORS:
            mine = yield from won(A, Key(error))
            yield mine.fail(error=error)
        yield from won(A, Key("none"))
        yield from found({"TimeoutError", "Timeout"}, error="Timeout")
        yield from found({"T%"}, error="T%")
        yield from found({"T_meout"}, error="T_")
        yield from found({"Bank.Refused"}, error="Bank.Refused", states=(State.RELEASED,))
        yield from found(set(), error="Timeout  ")
        yield from found({*ERRORS, "none"}, error="")

    @rule()
    def test_records_by_their_last_change(self) -> Script[None]:
        at = []
        for number in range(4):
            mine = yield from won(A, Key(f"key-{number}"))
            yield Advance(5)
            if number % 2:
                yield mine.complete()
            at.append((yield read(Key(f"key-{number}"))).changed_at)
            yield Advance(5)
        yield from found({"key-2", "key-3"}, changed_after=at[2])
        yield from found({"key-3"}, changed_after=at[2] + 1)
        yield from found({"key-0", "key-1"}, changed_before=at[2])
        yield from found({"key-1", "key-2"}, changed_after=at[0] + 1, changed_before=at[3])
        yield from found({"key-1"}, changed_before=at[2], states=(State.COMPLETED,))
        yield from found(set(), changed_after=at[1], changed_before=at[1])

    @rule()
    def test_stuck_is_in_progress_with_an_expired_lease(self) -> Script[None]:
        yield from won(A, Key("stuck"), lease=self.tick)
        yield from won(A, Key("alive"), lease=HOUR)
        mine = yield from won(A, Key("resting"), lease=HOUR)
        yield mine.fail(delay=self.tick)
        yield from reach(State.COMPLETED, Key("done"))
        yield Advance(self.tick)
        yield from found({"stuck"}, stuck=True)
        yield from found({"stuck"}, stuck=True, states=(State.IN_PROGRESS, State.HELD))
        yield from found(set(), stuck=True, states=(State.HELD,))

    @rule()
    def test_records_by_the_cause_of_their_last_start(self) -> Script[None]:
        yield from won(A, Key("taken over"), lease=self.tick)
        mine = yield from won(A, Key("failed"))
        yield mine.fail()
        yield from won(A, Key("first"))
        yield Advance(self.tick)
        for name in ("taken over", "failed"):
            yield from won(B, Key(name))
        yield from found({"taken over"}, cause=Cause.LEASE_EXPIRED)
        yield from found({"failed"}, cause=Cause.FAILED)
        yield from found(set(), cause=Cause.OPERATOR)

    @rule()
    def test_a_record_by_the_first_digits_of_its_id(self) -> Script[None]:
        for number in range(20):
            yield from won(A, Key(f"key-{number}"))
        digits = Key("key-7").id.hex()
        for length in (8, 9, 31, 32, 33, 64):
            yield from found({"key-7"}, digits=digits[:length])
        for length in (9, 31, 32):  # each of these counts; an engine may leave out the others
            other = "0" if digits[length - 1] != "0" else "1"
            yield from found(set(), digits=digits[: length - 1] + other)
        same = {f"key-{n}" for n in range(20) if Key(f"key-{n}").id.hex()[0] == digits[0]}
        yield from found(same, digits=digits[0])

    @rule()
    def test_a_forgotten_record_is_found_by_its_id(self) -> Script[None]:
        yield from reach(State.FORGOTTEN)
        for length in (8, 32, 64):
            [row] = yield from browse_all(10, digits=KEY.id.hex()[:length])
            assert row.state is State.FORGOTTEN

    @rule()
    def test_expired_records_are_neither_shown_nor_counted(self) -> Script[None]:
        yield from expiring(State.COMPLETED, self.tick, Key("old"))
        yield from expiring(State.COMPLETED, HOUR, Key("young"))
        yield Advance(self.tick)
        yield from found({"young"})
        yield from found(set(), value="old")

    @rule()
    def test_counting_stops_at_its_limit(self) -> Script[None]:
        for number in range(5):
            yield from won(A, Key(f"key-{number}", ("a",)))
        for limit, expected in ((1, 1), (4, 4), (5, 5), (6, 5)):
            assert (yield Count(limit, scope=("a",))) == expected

    # -- the audit log ------------------------------------------------------------------------

    @rule()
    def test_the_audit_log_has_the_acts_on_all_keys_newest_first(self) -> Script[None]:
        yield from reach(State.HELD)
        yield from reach(State.PARKED, OTHER)
        for act in (release(), resolve(OTHER), resolve()):
            yield act
            yield Advance(2)
        log = yield AuditLog(10)
        assert [(e.action, e.by, e.why, e.state_before, e.key) for e in log] == [
            ("resolve", "ben", "asked the bank", State.RELEASED, KEY),
            ("resolve", "ben", "asked the bank", State.PARKED, OTHER),
            ("release", "ann", "ticket 7", State.HELD, KEY),
        ]
        assert [entry.id for entry in log] == [KEY.id, OTHER.id, KEY.id]
        assert (yield AuditLog(2)) == log[:2]
        recent = round(log[1].at.timestamp() * 1000)
        assert (yield AuditLog(10, recent)) == log[:2]

    @rule()
    def test_the_audit_log_keeps_no_text_of_a_forgotten_key(self) -> Script[None]:
        yield from reach(State.COMPLETED)
        yield forget()
        [entry] = yield AuditLog(10)
        assert (entry.action, entry.scope, entry.value) == ("forget", (), "")
        assert KEY.id.startswith(entry.id) and len(entry.id) >= 16
