"""Failovers between two Kafkas: consumers move to the mirrored cluster while MirrorMaker still copies.

    python -m tests.regions.kafka_failovers --failovers 200

Each failover has its own topic. Its consumer in the first cluster handles some messages, which MirrorMaker
copies; later it handles some more and is stopped. At once another one starts in the second cluster and handles
all of them. What must be true: a message runs in both clusters only if its id was not in the mirrored log when the
second consumer started. Such a message is counted. Needs `make kafka` and `make mirrormaker`.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.consumers.kafka_group import Topic, handle_all, read_topic
from tests.consumers.test_kafka_processed import Handler, log_of, url_of
from tests.polling import until
from tests.regions.test_mirrored_kafka import Mirrored
from tests.servers import launch
from twicesafe.consumers import Consumer

__all__ = ["main"]

MESSAGES = 12
AT_ONCE = 4
TOPICS = 20
"""That are made together: MirrorMaker starts again for every topic that it finds."""
MINUTE = 60.0
"""For the messages of the first cluster: how many it handles is up to chance anyway."""
LONGEST_WAIT = 900.0
"""Seconds: how fast the machine is says nothing about the rule."""


class Failover:
    """One topic, and its consumers in both clusters."""

    def __init__(self, eu: str, us: str) -> None:
        self.here = Topic(eu)
        self._us = us
        self._first = Handler(self.here)
        self._handle_in_first(range(MESSAGES // 2))

    def _handle_in_first(self, numbers: range) -> None:
        """Send these messages, and stop the consumer when it has handled some of them."""
        for number in numbers:
            self.here.put(f"m{number}", partition=number % 4, headers=[("id", f"id-{number}")])
        enough, late = random.choice(numbers) + 1, time.monotonic() + MINUTE

        def is_enough() -> bool:
            return len(self._first.ran) >= enough or time.monotonic() > late

        with Consumer.open(url_of(self.here)) as consumer:
            handle_all(consumer, self._first, is_enough, LONGEST_WAIT)

    def run(self) -> dict[str, int]:
        here, first = self.here, self._first
        there = Mirrored(self._us, here)
        second = Handler(there)

        def is_mirrored() -> bool:
            time.sleep(0.2)
            return {here.name, log_of(here)} <= there.known()

        def is_settled() -> bool:
            time.sleep(0.2)
            return sum(there.committed().values()) >= MESSAGES

        until(is_mirrored, LONGEST_WAIT)
        self._handle_in_first(range(MESSAGES // 2, MESSAGES))
        known = {_message_of(entry) for entry in read_topic(self._us, log_of(here))}
        with Consumer.open(url_of(there)) as consumer:
            report = handle_all(consumer, second, is_settled, LONGEST_WAIT)
        here.close()
        there.close()
        wrong = known & set(second.ran)
        assert not wrong, f"{here.name}: {wrong} were in the mirrored log, and ran again"
        lost = MESSAGES - len({*first.ran, *second.ran})
        assert not lost, f"{here.name}: {lost} messages were lost"
        return {
            "failovers": 1,
            "messages": MESSAGES,
            "known in the second cluster": len(known),
            "delivered again and absorbed": report.replayed,
            "run in both, not mirrored yet": len(set(first.ran) & set(second.ran)),
        }


def _message_of(entry: Any) -> str:
    """Message n is the entry n // 4 of partition n % 4."""
    place, _, offset = json.loads(entry.value())["position"].partition("@")[0].rpartition("/")
    return f"m{int(place.rpartition('/')[2]) + 4 * int(offset)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--failovers", type=int, default=200)
    asked = parser.parse_args()
    eu, us = launch("kafka"), launch("kafka")
    launch("mirrormaker", source=eu.bootstrap, target=us.bootstrap)
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(0, asked.failovers, TOPICS):
            some = range(min(TOPICS, asked.failovers - start))
            ready = list(pool.map(lambda _: Failover(eu.bootstrap, us.bootstrap), some))
            for found in pool.map(Failover.run, ready):
                counts.update(found)
            print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
