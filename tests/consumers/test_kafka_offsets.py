"""Where a partition goes on, by the answers of a consumer that is made up. The real one is in test_kafka_transactions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from twicesafe.consumers.sources._kafka_offsets import committed_offsets, skip_what_is_done

pytest.importorskip("confluent_kafka")


class Answers:
    """A consumer of one partition."""

    def __init__(self, done: int, end: int = 100, error: Any = None) -> None:
        self.done, self.end, self.error = done, end, error
        self.sought: list[int] = []

    def committed(self, places: list[Any], timeout: float) -> list[Any]:
        return [
            SimpleNamespace(
                topic=one.topic, partition=one.partition, offset=self.done, error=self.error
            )
            for one in places
        ]

    def get_watermark_offsets(self, _: Any, timeout: float) -> tuple[int, int]:
        return 0, self.end

    def seek(self, place: Any) -> None:
        self.sought.append(place.offset)


@pytest.mark.parametrize(
    "done, end, sought",
    [
        pytest.param(-1001, 100, [], id="a new group"),
        pytest.param(40, 100, [], id="where the group is"),
        pytest.param(7, 100, [], id="the log has lost its oldest messages"),
        pytest.param(60, 100, [60], id="the group is further"),
        pytest.param(100, 100, [100], id="all is done"),
        pytest.param(101, 100, [], id="the log was cut"),
    ],
)
def test_what_the_group_has_done_is_skipped(done: int, end: int, sought: list[int]):
    consumer = Answers(done, end)
    assert skip_what_is_done(consumer, "orders/0", 40) == bool(sought)
    assert consumer.sought == sought


def test_an_offset_that_kafka_does_not_tell_is_an_error():
    from confluent_kafka import KafkaError, KafkaException

    untold = Answers(-1001, error=KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT))
    with pytest.raises(KafkaException):
        committed_offsets(untold, ["orders/0"], 1)
    assert committed_offsets(Answers(5), ["orders/0"], 1) == {"orders/0": 5}
