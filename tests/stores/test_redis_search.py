"""A search on Redis: which nodes are asked, and when."""

from __future__ import annotations

from typing import Any

from twicesafe import Receiver
from twicesafe._core.protocol import Count, Survey
from twicesafe._engines.redis.key_search import NODES
from twicesafe._engines.redis.programs import RedisPrograms
from twicesafe._engines.redis.scripts import Scripts
from twicesafe._values.records import State


def test_the_nodes_of_a_cluster_are_searched_at_the_same_time(valkey_cluster_url: str):
    with Receiver.open(valkey_cluster_url) as receiver:
        receiver.process_many([str(n) for n in range(60)], lambda m: m, key=lambda m: m)
        asked: list[set[int]] = []
        receiver.store._tap = lambda when, calls: (  # type: ignore[attr-defined]
            asked.append({call.node for call in calls}) if when == "before" else None
        )
        assert receiver.count() == 60
        assert receiver.stats().by_state == {State.COMPLETED: 60}
        assert len(list(receiver.records(limit=100))) == 60
    # Each search begins at all nodes at once. A node on which other tests left many keys is asked again.
    assert asked.count(set(range(NODES))) == 3


class _Nodes:
    """Nodes with some slices each; every slice has one record in progress."""

    def __init__(self, slices: list[int]) -> None:
        self._slices = slices
        self.round_trips = 0

    def answer(self, program: Any) -> Any:
        try:
            calls = next(program)
            while True:
                self.round_trips += 1
                calls = program.send([self._slice(call) for call in calls])
        except StopIteration as end:
            return end.value

    def _slice(self, call: Any) -> Any:
        if call.node >= len(self._slices):
            return None
        cursor, what = int(call.args[1]), call.args[4]
        following = (cursor + 1) % self._slices[call.node]
        answer = 1 if what == b"count" else [1, *[0] * 15, 0, 1000 + call.node]
        return [5000, b"%d" % following, [], answer]


def test_every_slice_of_every_node_is_searched_once():
    programs = RedisPrograms("ts", Scripts(""))
    for slices in ([1], [3], [1, 5, 2], [2] * NODES, [1] * (NODES + 1), [3] * (2 * NODES + 5)):
        nodes = _Nodes(slices)
        assert nodes.answer(programs.count(Count(10_000))) == sum(slices)
        assert nodes.round_trips <= max(slices) + len(slices) // NODES
        stats = _Nodes(slices).answer(programs.survey(Survey()))
        assert stats.by_state == {State.IN_PROGRESS: sum(slices)}
