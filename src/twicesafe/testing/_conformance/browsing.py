"""Browsing: pages of rows and counts, for operators. The rules of its conditions are in `searching`."""

from __future__ import annotations

from typing import Any, Final

from ..._core.protocol import Ack, AuditLog, Browse, Count, Survey
from ..._values.keys import Key
from ..._values.records import Row, State
from .bench import Advance, Corrupt, Script
from .requests import HOUR, STATES, A, forget, reach, release, won
from .retention import expiring
from .rules import StoreRules, rule

__all__ = ["BrowsingRules"]

SCOPES: Final[list[tuple[str, ...]]] = [
    (),
    ("a",),
    ("ab",),
    ("a", "b"),
    ("a", "bc"),
    ("a", "b", "c"),
    ("a,b",),
    ('a","b',),
    ('a"',),
    ('"a"',),
    ("a'",),
    ("a%",),
    ("a_",),
    ("a\\",),
    ("a\0",),
    ("a\n",),
    ("A",),
    ("\u00e9",),
    ("e\u0301",),
    ("🙂", "a"),
    ("🙂🙂",),
    ("[",),
    ("x" * 255,),
]
"""All different. A prefix consists of whole parts."""


def browse_all(limit: int, **conditions: Any) -> Script[list[Row]]:
    rows: list[Row] = []
    after = ""
    while True:
        page = yield Browse(limit, **conditions, after=after)
        assert len(page.rows) <= limit
        rows += page.rows
        after = page.after
        if not after:
            return rows
        assert page.rows or page.unreadable, "a page that is not the last has rows"


DAMAGED: Final = Key("key-2")


def with_one_damaged() -> Script[None]:
    """Five records, the one in the middle of which cannot be read."""
    for number in range(5):
        yield from reach(State.HELD, Key(f"key-{number}"))
        yield Advance(1)
    yield Corrupt(DAMAGED.id)


class BrowsingRules(StoreRules):
    @rule("P9", cases={str(limit): limit for limit in (1, 2, 3, 100)}, damages=True)
    def test_a_damaged_record_is_named_and_hides_no_other(self, case: int) -> Script[None]:
        yield from with_one_damaged()
        rows: list[Row] = []
        named: set[str] = set()
        after = ""
        for _ in range(6):
            page = yield Browse(case, after=after)
            rows += page.rows
            named |= set(page.unreadable)
            after = page.after
            if not after:
                break
        assert [row.value for row in rows] == ["key-4", "key-3", "key-1", "key-0"]
        assert {name[:32] for name in named} == {DAMAGED.id.hex()[:32]}

    @rule("P9", damages=True)
    def test_a_damaged_record_is_counted_among_the_others(self) -> Script[None]:
        yield from with_one_damaged()
        stats = yield Survey()
        assert (stats.total, stats.unreadable) == (5, 1)
        assert stats.by_state == {State.HELD: 4}
        assert (yield Count(9, states=(State.HELD,))) == 4
        assert [row.value for row in (yield Browse(9, states=(State.HELD,))).rows][1:3] == [
            "key-3",
            "key-1",
        ]

    @rule("P9", damages=True)
    def test_the_audit_log_shows_what_was_done_beside_a_damaged_record(self) -> Script[None]:
        for number in range(1, 4):
            key = Key(f"key-{number}")
            yield from reach(State.HELD, key)
            yield release(key)
        yield Corrupt(DAMAGED.id)
        log = yield AuditLog(9)
        assert {"key-1", "key-3"} <= {entry.value for entry in log}

    @rule()
    def test_an_empty_store(self) -> Script[None]:
        page = yield Browse(10)
        assert (page.rows, page.after) == ([], "")
        stats = yield Survey()
        assert (stats.total, stats.stuck, stats.expired) == (0, 0, 0)
        assert stats.oldest_in_progress is None

    @rule(cases={str(limit): limit for limit in (1, 2, 5, 6, 7, 100)})
    def test_rows_come_in_pages_newest_first(self, case: int) -> Script[None]:
        for number in range(6):
            yield from won(A, Key(f"key-{number}"))
            yield Advance(1)
        rows = yield from browse_all(case)
        assert [row.value for row in rows] == [f"key-{number}" for number in reversed(range(6))]

    @rule()
    def test_a_full_last_page_is_the_last(self) -> Script[None]:
        for number in range(3):
            yield from won(A, Key(f"key-{number}"))
        assert (yield Browse(3)).after == ""
        assert (yield Browse(2)).after != ""

    @rule()
    def test_a_row_that_is_added_meanwhile_hides_no_other(self) -> Script[None]:
        for number in range(4):
            yield from won(A, Key(f"key-{number}"))
        first = yield Browse(2)
        yield from won(A, Key("late"))
        second = yield Browse(2, after=first.after)
        third = yield Browse(2, after=second.after) if second.after else Browse(2)
        seen = {row.value for page in (first, second, third) for row in page.rows}
        assert seen >= {f"key-{number}" for number in range(4)}

    @rule()
    def test_a_row_that_ceases_to_match_meanwhile_hides_no_other(self) -> Script[None]:
        """An operator releases what a page shows, and continues to the next page."""
        for number in range(4):
            yield from reach(State.HELD, Key(f"key-{number}"))
        seen = set()
        after = ""
        for _ in range(4):
            page = yield Browse(1, states=(State.HELD,), after=after)
            (row,), after = page.rows, page.after
            seen.add(row.value)
            assert (yield release(Key(row.value))) is Ack.OK
        assert (seen, after) == ({f"key-{number}" for number in range(4)}, "")

    @rule()
    def test_browsed_rows_are_complete(self) -> Script[None]:
        yield from reach(State.COMPLETED, fingerprint=b"f" * 32)
        page = yield Browse(10)
        [row] = page.rows
        assert (row.result, row.fingerprint, row.owner) == (b"done", b"f" * 32, A)

    @rule(cases={state.value: state for state in STATES})
    def test_rows_by_state(self, case: State) -> Script[None]:
        for state in STATES:
            yield from reach(state, Key(state.value))
        for limit in (1, 10):
            rows = yield from browse_all(limit, states=(case,))
            assert [Key(case.value).id.startswith(row.id) for row in rows] == [True]

    @rule()
    def test_rows_by_scope_prefix_of_whole_parts(self) -> Script[None]:
        for scope in SCOPES:
            yield from won(A, Key("k", scope))
        for prefix in SCOPES:
            expected = [scope for scope in SCOPES if scope[: len(prefix)] == prefix]
            rows = yield from browse_all(7, scope=prefix)
            assert sorted(row.scope for row in rows) == sorted(expected), prefix

    @rule()
    def test_rows_by_state_and_scope(self) -> Script[None]:
        for scope in (("a",), ("ab",)):
            yield from reach(State.HELD, Key("held", scope))
            yield from reach(State.COMPLETED, Key("done", scope))
        rows = yield from browse_all(1, states=(State.HELD,), scope=("a",))
        assert [(row.scope, row.value) for row in rows] == [(("a",), "held")]

    @rule()
    def test_a_forgotten_row_is_shown_without_its_key(self) -> Script[None]:
        key = Key("secret", ("tenant",))
        yield from reach(State.COMPLETED, key)
        yield forget(key)
        assert (yield Browse(10, scope=("tenant",))).rows == []
        [row] = (yield Browse(10, states=(State.FORGOTTEN,))).rows
        assert (
            row.id == key.id
        )  # all of it: a follower copies it to a store that never knew the key
        assert (row.scope, row.value) == ((), "")

    @rule()
    def test_questions_in_one_batch_get_the_answers_that_each_gets_alone(self) -> Script[None]:
        """A screen asks several at once; a store may answer them all with one look at its records."""
        for state in STATES:
            yield from reach(state, Key(state.value))
        yield from won(A, Key("stuck"), lease=1)
        yield Advance(2)
        yield release(Key(State.HELD.value))
        questions = [
            Survey(),
            Browse(3),
            Browse(2, states=(State.PARKED, State.COMPLETED)),
            Browse(9, stuck=True),
            Count(99, value=State.PARKED.value),
            Count(2),
            AuditLog(9),
        ]
        together = yield questions
        assert not [answer for answer in together if isinstance(answer, Exception)]
        for question, answer in zip(questions, together, strict=True):
            assert answer == (yield question), question

    # -- counts -------------------------------------------------------------------------------

    @rule()
    def test_a_survey_counts_every_state(self) -> Script[None]:
        for count, state in enumerate(STATES, 1):
            for number in range(count):
                yield from reach(state, Key(f"{state.value}-{number}"))
        stats = yield Survey()
        assert stats.by_state == {state: count for count, state in enumerate(STATES, 1)}
        assert stats.total == 28

    @rule()
    def test_a_survey_reports_what_is_stuck(self) -> Script[None]:
        yield from won(A, Key("stuck"), lease=self.tick)
        yield from won(A, Key("alive"), lease=HOUR)
        yield from reach(State.COMPLETED, Key("done"))
        yield Advance(self.tick)
        stats = yield Survey()
        assert stats.stuck == 1

    @rule(exact_time=True)
    def test_a_survey_reports_the_oldest_work(self) -> Script[None]:
        yield from reach(State.COMPLETED, Key("older, but done"))
        yield Advance(1000)
        yield from won(A, Key("old"))
        [row] = (yield Browse(1)).rows
        yield Advance(1000)
        yield from won(A, Key("young"))
        stats = yield Survey()
        assert round(stats.oldest_in_progress.timestamp() * 1000) == row.changed_at

    @rule()
    def test_a_survey_reports_what_a_sweep_would_remove(self) -> Script[None]:
        for number, state in enumerate((State.COMPLETED, State.RELEASED, State.FORGOTTEN)):
            yield from expiring(state, self.tick, Key(f"old-{number}"))
        yield from won(A, Key("stuck"), lease=self.tick)
        yield from expiring(State.COMPLETED, HOUR, Key("young"))
        yield Advance(self.tick)
        stats = yield Survey()
        assert stats.expired == (0 if self.capabilities.native_expiry else 3)
        assert stats.size is None or stats.size > 0

    @rule(exact_time=True)
    def test_a_survey_tells_since_when_a_sweep_is_due(self) -> Script[None]:
        assert (yield Survey()).oldest_expired is None
        for number in (2, 1, 3):
            yield from expiring(State.COMPLETED, number * 1000, Key(f"old-{number}"))
        [first] = [row for row in (yield Browse(9)).rows if row.value == "old-1"]
        yield Advance(2500)
        oldest = (yield Survey()).oldest_expired
        if self.capabilities.native_expiry:
            assert oldest is None
        else:
            assert round(oldest.timestamp() * 1000) == first.expires_at
