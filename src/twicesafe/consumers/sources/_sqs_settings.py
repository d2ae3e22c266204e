"""What goes wrong with the settings of an SQS queue, compared with the consumer's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from ..._core.consuming.source import ConsumerSettings, SourceProblem

__all__ = ["LONGEST_HIDING", "check_queue"]

SHORTEST_VISIBILITY: Final = 10.0
"""Seconds: less leaves no time to extend it."""

LONGEST_HIDING: Final = 43_200
"""Seconds; a limit of SQS, from the moment when the message was received."""


def check_queue(
    queue: str, settings: Mapping[str, str], consumer: ConsumerSettings
) -> Iterator[SourceProblem]:
    """Settings that this user may not see are not checked."""
    yield from _visibility(queue, settings, consumer)
    redrive = msgspec.json.decode(settings.get("RedrivePolicy", "{}"))
    most = int(redrive.get("maxReceiveCount", 0))
    if 0 < most <= consumer.max_attempts:
        yield SourceProblem(
            f"{queue} moves a message to its dead-letter queue after {most} deliveries, and twicesafe "
            f"tries it {consumer.max_attempts} times: it goes there untried, without a reason",
            f"set maxReceiveCount to {2 * consumer.max_attempts} or more, or max_attempts to less than {most}",
        )
    retention = float(settings.get("MessageRetentionPeriod", "inf"))
    retries = (consumer.max_attempts - 1) * consumer.longest_backoff
    if retention < retries:
        yield SourceProblem(
            f"{queue} keeps messages for {retention:g} s, and their retries take up to {retries:g} s: SQS "
            "deletes a message that is still being retried",
            f"set MessageRetentionPeriod to {retries:.0f} or more (at most 14 days)",
        )
    if consumer.retention < retention < float("inf"):
        yield SourceProblem(
            f"{queue} may deliver a message again for {retention:g} s, and its record is kept for "
            f"{consumer.retention:g} s: then it is handled again",
            f"set the policy's retention to {retention:.0f} or more, or a shorter MessageRetentionPeriod",
        )
    if settings.get("ContentBasedDeduplication") == "true":
        yield SourceProblem(
            f"{queue} deduplicates by content: of two messages with equal bodies within 5 minutes SQS "
            "drops one, and a producer's retry after 5 minutes is a new message",
            "let producers choose the MessageDeduplicationId",
        )


def _visibility(
    queue: str, settings: Mapping[str, str], consumer: ConsumerSettings
) -> Iterator[SourceProblem]:
    visibility = float(settings.get("VisibilityTimeout", consumer.lease))
    least = max(SHORTEST_VISIBILITY, consumer.lease)
    if visibility < least:
        yield SourceProblem(
            f"{queue} has a visibility timeout of {visibility:g} s, and the lease is {consumer.lease:g} s: "
            "after a crash the message is redelivered before it may run, and each time counts as a delivery",
            f"set VisibilityTimeout to {least:.0f} or more",
        )
    longest = max(consumer.longest_backoff, consumer.timeout or 0)
    if longest > LONGEST_HIDING:
        yield SourceProblem(
            f"SQS hides a message for 12 hours at most, and a retry or a handler may take {longest:g} s",
            "use a shorter back-off and timeout",
        )
