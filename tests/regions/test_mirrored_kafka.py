"""Two Kafkas and MirrorMaker: the mirrored log of ids absorbs what the second cluster gets again.

Needs `make kafka` and `make mirrormaker`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.consumers.kafka_group import Topic, handle_all, read_topic
from tests.consumers.test_kafka_processed import IDS, Handler, ids_of, log_of, put, url_of
from tests.polling import until
from tests.servers.kafka import broker
from twicesafe.consumers import Consumer

MESSAGES = 12
LONG = 150.0
"""Seconds: two brokers and a MirrorMaker on Java."""


class Mirrored(Topic):
    """The same topic and group in the other cluster, where MirrorMaker has made it."""

    def __init__(self, bootstrap: str, original: Topic) -> None:
        super().__init__(bootstrap, original.partitions, original.name)

    def _exists(self) -> bool:
        return True  # MirrorMaker makes it, later

    def known(self) -> set[str]:
        """Asked for all of them: who asks for one by its name creates it."""
        return set(self._asker.list_topics(timeout=120).topics)


def test_what_was_processed_does_not_run_in_the_other_cluster(own_server: Callable[..., Any]):
    if broker() != "real":
        pytest.skip("needs two real Kafka brokers: make kafka")
    eu, us = own_server("kafka"), own_server("kafka")
    mirror = own_server("mirrormaker", source=eu.bootstrap, target=us.bootstrap)
    here = Topic(eu.bootstrap)
    for number in range(MESSAGES):
        here.put(f"m{number}", partition=number % 4, headers=[("id", f"id-{number}")])
    handler = Handler(here)
    with Consumer.open(url_of(here)) as consumer:
        assert handle_all(consumer, handler, MESSAGES).ran == MESSAGES
    put(here, ids_of(here), IDS[0], commit=False)  # of a worker that died before its commit

    there = Mirrored(us.bootstrap, here)
    mirrored = {here.name, log_of(here)}
    until(lambda: mirrored <= there.known(), LONG)
    for topic in mirrored:
        until(lambda topic=topic: len(read_topic(us.bootstrap, topic)) == MESSAGES, LONG)
    mirror.stop()
    eu.kill()

    ids = ids_of(there)
    ids.load(f"{there.name}/0")
    assert ids.find(f"{there.name}/0", IDS[0]) is None
    for number in range(MESSAGES):  # as a MirrorMaker does that has lost its own offsets
        there.put(f"m{number}", partition=number % 4, headers=[("id", f"id-{number}")])
    there.put("new", headers=[("id", "new")])
    second = Handler(there)
    with Consumer.open(url_of(there)) as consumer:
        # How many of the first ones come again is up to the offsets that were mirrored.
        handle_all(consumer, second, lambda: consumer.report.replayed >= MESSAGES and second.ran)
    assert second.ran == ["new"]
    here.close()
    there.close()
