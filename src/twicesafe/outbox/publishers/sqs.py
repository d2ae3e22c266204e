"""SQS: standard and FIFO queues, in batches.

    sqs://?region=eu-central-1&prefix=shop-       the queue is the topic's name, with the prefix
    sqs://orders.fifo?region=eu-central-1         all messages go to this queue

On a FIFO queue the ordering key is the message group, and the id is the deduplication id: SQS drops a
repeat within five minutes. A standard queue keeps no order and drops no repeat. The id is also sent as
the attribute ``id``, so that consumers deduplicate on both. While a queue does not exist, its messages
wait: their lanes back off, and no attempt is counted.

``deduplicate=false`` gives each message on a FIFO queue a new deduplication id. Dead letters and
replays need that: they use the same id again, perhaps within the five minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Self

from ..._core.outbox.publisher import NOT_TRIED, Answer, NotNow
from ..._core.outbox.requests import Message
from ..._core.sqs_wire import entry_of, size_of
from ...errors import BrokerUnavailableError
from ._sqs_client import MISSING, PLACE, SqsClient, code_of, outage_of, place_of

__all__ = ["SqsPublisher"]

OPTIONS: Final = {**PLACE, "prefix": "", "deduplicate": True}

MOST: Final = 10
"""Messages in one batch; a limit of SQS."""

LARGEST_BATCH: Final = 262_144
"""Bytes in a batch of several messages; a larger message is sent alone."""

LARGEST_MESSAGE: Final = 1_048_576
"""Bytes, with attributes; a limit of SQS. A queue may have a smaller one."""


class SqsPublisher:
    """Blocking, by boto3."""

    batch = MOST
    concurrency = 8

    def __init__(
        self, client: SqsClient, *, queue: str = "", prefix: str = "", deduplicate: bool = True
    ) -> None:
        self._client = client
        self._queue, self._prefix, self._deduplicate = queue, prefix, deduplicate

    @classmethod
    def open(cls, url: str) -> Self:
        queue, options = place_of(url, OPTIONS)
        names = ("prefix", "deduplicate")
        return cls(SqsClient(options), queue=queue, **{name: options[name] for name in names})

    def publish(self, messages: Sequence[Message]) -> list[Answer]:
        answers: list[Answer] = [NOT_TRIED] * len(messages)
        queues: dict[str, list[int]] = {}
        for place, message in enumerate(messages):
            queues.setdefault(self._queue or self._prefix + message.topic, []).append(place)
        for queue, places in queues.items():
            entries = [
                entry_of(
                    messages[place],
                    queue,
                    place,
                    with_topic=bool(self._queue),
                    deduplicate=self._deduplicate,
                )
                for place in places
            ]
            for part in _parts(entries):
                for entry, answer in zip(part, self._send(queue, part), strict=True):
                    answers[int(entry["Id"])] = answer
                if any(isinstance(answer, BrokerUnavailableError) for answer in answers):
                    return answers  # the rest would only wait for the same time-out
        return answers

    def _send(self, queue: str, entries: Sequence[dict[str, Any]]) -> list[Answer]:
        from botocore.exceptions import BotoCoreError, ClientError

        size = size_of(entries[0])
        if size > LARGEST_MESSAGE:  # then it is alone
            return [ValueError(f"SQS takes up to {LARGEST_MESSAGE} bytes, and this has {size}")]
        try:
            reply = self._client.calls.send_message_batch(
                QueueUrl=self._client.address(queue), Entries=entries
            )
        except ValueError as error:
            return [error] * len(entries)
        except (BotoCoreError, ClientError) as error:
            if code_of(error) in MISSING:
                self._client.forget(queue)
                return [NotNow(f"SQS has no queue {queue}: create it")] * len(entries)
            outage = outage_of(error)
            if outage is None and len(entries) > 1:  # one of them is to blame: which?
                return [answer for entry in entries for answer in self._send(queue, [entry])]
            refusal = RuntimeError(f"SQS refused the message: {code_of(error)}")
            refusal.__cause__ = error
            return [outage or refusal] * len(entries)
        sent = {done["Id"] for done in reply.get("Successful", ())}
        failed = {failure["Id"]: failure for failure in reply.get("Failed", ())}
        return [
            None if entry["Id"] in sent else _meaning(failed.get(entry["Id"], {}))
            for entry in entries
        ]

    def check(self) -> None:
        """Any answer of SQS will do: this user may be allowed to send only."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._client.calls.list_queues(MaxResults=1)
        except (BotoCoreError, ClientError) as error:
            outage = outage_of(error)
            if outage is not None:
                raise outage from error

    def close(self) -> None:
        self._client.close()


def _parts(entries: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Batches that SQS takes."""
    part: list[dict[str, Any]] = []
    size = 0
    for entry in entries:
        more = size_of(entry)
        if part and (len(part) == MOST or size + more > LARGEST_BATCH):
            yield part
            part, size = [], 0
        part.append(entry)
        size += more
    if part:
        yield part


def _meaning(failure: dict[str, Any]) -> Exception:
    """Why SQS accepted a batch, but not this message of it."""
    if failure.get("SenderFault"):
        return RuntimeError(f"SQS refused the message: {failure.get('Code')}")
    return BrokerUnavailableError(f"SQS did not accept the message: {failure.get('Code')}")
