"""Failovers between two Kafkas: consumers move to the mirrored cluster while MirrorMaker still copies.

    python -m tests.regions.kafka_failovers --failovers 200

Each failover has its own topic. Its consumer in the first cluster is stopped in the middle of the messages;
at once another one starts in the second cluster and handles all of them. What must be true: a message runs
in both clusters only if its id was not in the mirrored log when the second consumer started. Such a message
is counted. Needs `make kafka` and `make mirrormaker`.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.consumers.kafka_group import Topic, handle_all, read_topic
from tests.consumers.test_kafka_processed import Handler, log_of, url_of
from tests.polling import until
from tests.regions.test_mirrored_kafka import LONG, Mirrored
from tests.servers import launch
from twicesafe.consumers import Consumer

__all__ = ["main"]

MESSAGES = 12
AT_ONCE = 10


def one_failover(eu: str, us: str) -> dict[str, int]:
    here = Topic(eu)
    for number in range(MESSAGES):
        here.put(f"m{number}", partition=number % 4, headers=[("id", f"id-{number}")])
    first, enough = Handler(here), random.randrange(1, MESSAGES)
    with Consumer.open(url_of(here)) as consumer:
        handle_all(consumer, first, lambda: len(first.ran) >= enough)
    there = Mirrored(us, here)
    until(lambda: {here.name, log_of(here)} <= there.known(), LONG)
    known = {_message_of(entry) for entry in read_topic(us, log_of(here))}
    second = Handler(there)
    with Consumer.open(url_of(there)) as consumer:
        handle_all(consumer, second, lambda: sum(there.committed().values()) >= MESSAGES)
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
        for found in pool.map(
            lambda _: one_failover(eu.bootstrap, us.bootstrap), range(asked.failovers)
        ):
            counts.update(found)
            if counts["failovers"] % 20 == 0:
                print(json.dumps(counts), flush=True)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
