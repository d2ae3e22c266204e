"""A cluster of three loses its leader, again and again, under load (C6, C10).

Each time the member that leads gets a kill -9 while callers deliver keys and other clients record a
history. It is started again when the callers have recovered. What was acknowledged must be there afterwards, no
key may have run twice, and a single atomic store could have produced every history.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from tests.servers import launch
from tests.stores.etcd_clients import leader_of
from tests.stores.load import Load, Tasks, Threads

from .histories import Recorder, judge, judge_all, record
from .restarts import answers_are_recorded, until_it_moves
from .trial import Trial, trial

__all__ = ["killed_leaders"]

CLIENTS: Final = 6
OPERATIONS: Final = 240
REPEATS: Final = 2
"""Replies that one call may miss in an election: that of the dead member, and that of one without a leader."""
TIME_LIMIT: Final = 120.0


class ElectionRecorder(Recorder):
    """Notes which calls met an election: the store may have sent them again."""

    def __init__(self) -> None:
        super().__init__(REPEATS)
        self.elections = 0
        self.is_electing = False

    def faults(self) -> int:
        return REPEATS * self.elections

    def begin(self, client: Any, request: Any) -> tuple[Any, int]:
        call, faults = super().begin(client, request)
        return call, faults - REPEATS * self.is_electing


@trial("killed leaders", "C6", "kills", ("etcd",))
def killed_leaders(t: Trial) -> None:
    """The leader of a cluster of three is killed under load, again and again. Is a recorded result lost? Does a
    key run twice? Could a single atomic store have produced every history?"""
    kills = t.size(1, 25)
    with launch("etcd_cluster") as cluster:
        url = f"{cluster.url}/orders?timeout=10"
        for kind in (Threads, Tasks):
            load = kind(url)
            threads = load.start()
            try:
                for _ in range(kills):
                    _kill_one(t, cluster, load)
            finally:
                load.stop.set()
                for thread in threads:
                    thread.join(60)
            load.end()
            answers_are_recorded(t, load, url)
    judge_all(t)


def _kill_one(t: Trial, cluster: Any, load: Load) -> None:
    rng = random.Random(f"{t.seed}/{t.tried}")
    recorder = ElectionRecorder()
    until_it_moves(load)
    with ThreadPoolExecutor(1) as pool:
        url = f"{cluster.url}/history{t.tried}?timeout=10"
        history = pool.submit(record, url, recorder, rng, CLIENTS, OPERATIONS)
        _until_it_has(recorder, OPERATIONS // rng.randrange(4, 12), history)
        leader = leader_of(cluster)
        recorder.elections += 1
        recorder.is_electing = True
        began = time.monotonic()
        leader.kill()
        met = not history.done()
        until_it_moves(load)
        t.most("longest until callers continue, s", time.monotonic() - began)
        recorder.is_electing = False
        leader.start()
        cluster.await_health()
        history.result(TIME_LIMIT)
    t.tried += 1
    t.count("histories that met it", met)
    judge(t, recorder.calls, t.tried)


def _until_it_has(recorder: Recorder, calls: int, history: Any) -> None:
    until = time.monotonic() + TIME_LIMIT
    while len(recorder.calls) < calls and not history.done():
        assert time.monotonic() < until, "the history does not begin"
        time.sleep(0.002)
