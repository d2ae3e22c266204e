"""Only the contiguous prefix of a partition is committed, whatever the order of acknowledgements."""

from __future__ import annotations

import sys
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from twicesafe._core.consuming.prefix import Prefix, Prefixes

NAMES = ["orders/0", "orders/1"]


def due(prefixes: Prefixes) -> dict[str, int]:
    return {name: offset for name, _, offset in prefixes.due()}


def ours(*offsets: int) -> tuple[Prefixes, Prefix]:
    prefixes = Prefixes()
    prefixes.assign(["orders/0"])
    prefix = None
    for offset in offsets:
        prefix = prefixes.fetch("orders/0", offset)
    assert prefix is not None
    return prefixes, prefix


def test_nothing_is_due_before_the_first_is_done():
    prefixes, prefix = ours(5, 6, 7)
    prefix.settle(6)
    prefix.settle(7)
    assert due(prefixes) == {}
    prefix.settle(5)
    assert due(prefixes) == {"orders/0": 8}


def test_offsets_that_the_log_has_not_are_no_gaps():
    prefixes, prefix = ours(5, 9, 20)  # compacted, or markers of transactions
    prefix.settle(5)
    assert due(prefixes) == {"orders/0": 9}
    prefix.settle(9)
    prefix.settle(20)
    assert due(prefixes) == {"orders/0": 21}


def test_markers_at_the_end_are_committed_with_the_last_message():
    prefixes, prefix = ours(5, 6)
    prefix.settle(5)
    prefix.commit(6)
    assert not prefixes.end("orders/0", 8), "6 is not done"
    prefix.settle(6)
    assert due(prefixes) == {"orders/0": 8}
    prefix.commit(8)
    assert due(prefixes) == {}
    assert prefixes.end("orders/0", 9), "a marker that came alone"
    assert due(prefixes) == {"orders/0": 9}
    assert prefixes.fetch("orders/0", 9) is prefix
    assert not prefixes.end("orders/1", 9), "not ours"


def test_an_end_commits_nothing_before_the_first_message():
    prefixes = Prefixes()
    prefixes.assign(["orders/0"])
    assert not prefixes.end("orders/0", 8)
    assert due(prefixes) == {}


def test_what_is_committed_is_not_due_again():
    prefixes, prefix = ours(5, 6)
    prefix.settle(5)
    prefix.commit(6)
    assert due(prefixes) == {}


def test_a_commit_that_was_not_accepted_stays_due():
    prefixes, prefix = ours(5, 6)
    prefix.settle(5)
    assert due(prefixes) == due(prefixes) == {"orders/0": 6}


def test_a_revoked_partition_has_nothing_due_and_takes_no_messages():
    prefixes, prefix = ours(5)
    prefixes.revoke(["orders/0"])
    prefix.settle(5)
    assert prefix.due() is None
    assert due(prefixes) == {}
    assert prefixes.fetch("orders/0", 6) is None


def test_a_late_settlement_does_not_count_for_the_next_assignment():
    prefixes, before = ours(5)
    prefixes.assign(["orders/0"])
    now = prefixes.fetch("orders/0", 5)
    before.settle(5)
    assert due(prefixes) == {}
    assert now is not None
    now.settle(5)
    assert due(prefixes) == {"orders/0": 6}


def test_a_log_that_goes_back_starts_anew():
    prefixes, before = ours(5, 6)
    before.settle(5)
    again = prefixes.fetch("orders/0", 2)
    before.settle(6)
    assert again is not None
    assert not before.is_open
    assert due(prefixes) == {}
    again.settle(2)
    assert due(prefixes) == {"orders/0": 3}


def test_one_gap_costs_no_memory():
    prefixes, prefix = ours(0)
    for offset in range(1, 10_000):
        prefixes.fetch("orders/0", offset)
        prefix.settle(offset)
    assert sys.getsizeof(prefix._unsettled) < 10_000


class Log(RuleBasedStateMachine):
    """A partition is read from its commit; what is below a commit must be done."""

    def __init__(self) -> None:
        super().__init__()
        self.prefixes = Prefixes()
        self.committed = dict.fromkeys(NAMES, 0)
        self.position: dict[str, int] = {}
        self.done: dict[str, set[int]] = {name: set() for name in NAMES}
        self.receipts: list[tuple[str, Prefix, int]] = []

    @rule(name=st.sampled_from(NAMES))
    def assign(self, name: str) -> None:
        self.prefixes.assign([name])
        self.position[name] = self.committed[name]

    @rule(name=st.sampled_from(NAMES))
    def revoke(self, name: str) -> None:
        self.prefixes.revoke([name])
        self.position.pop(name, None)

    @rule(name=st.sampled_from(NAMES), gap=st.integers(0, 2))
    def fetch(self, name: str, gap: int) -> None:
        if name not in self.position:
            assert self.prefixes.fetch(name, 0) is None
            return
        start = self.position[name]
        offset = start + gap if (start + gap) % 7 == 0 else start  # multiples of 7 come after holes
        self.done[name] |= set(range(start, offset))  # holes: there is no such message
        prefix = self.prefixes.fetch(name, offset)
        assert prefix is not None
        self.position[name] = offset + 1
        self.receipts.append((name, prefix, offset))

    @rule(data=st.data(), twice=st.booleans())
    def settle(self, data: Any, twice: bool) -> None:
        if self.receipts:
            place = data.draw(st.integers(0, len(self.receipts) - 1))
            name, prefix, offset = self.receipts[place] if twice else self.receipts.pop(place)
            self.done[name].add(offset)
            prefix.settle(offset)

    @rule(accepted=st.booleans())
    def commit(self, accepted: bool) -> None:
        for name, prefix, offset in self.prefixes.due():
            assert offset > self.committed[name], "a commit goes back"
            assert name in self.position, "a commit for a partition that is not ours"
            if accepted:
                prefix.commit(offset)
                self.committed[name] = offset

    @invariant()
    def all_before_a_commit_is_done(self) -> None:
        for name, offset in self.committed.items():
            assert self.done[name] >= set(range(offset))

    def teardown(self) -> None:
        """When all is done, all is committed: nothing stays due for ever."""
        for _, prefix, offset in self.receipts:
            prefix.settle(offset)
        due = {name: offset for name, _, offset in self.prefixes.due()}
        for name, position in self.position.items():
            assert due.get(name, self.committed[name]) == position


TestAnyOrder = Log.TestCase
