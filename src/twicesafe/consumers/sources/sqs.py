"""SQS: messages are hidden while they are handled, and deleted when they are done.

    sqs://orders?region=eu-central-1
    sqs://orders.fifo?endpoint=http://127.0.0.1:4566&region=us-east-1

Credentials are those that boto3 finds. The visibility timeout is the queue's: if this process dies,
other consumers get its messages after that time. While a handler runs, the flow extends it.

**Ids.** The id is the attribute ``id`` (our outbox sends it), or on a FIFO queue the deduplication id. A
deduplication id that SQS computed from the body is not used: two orders with equal bodies would be one.
Otherwise it is SQS's own id, which is the same for every redelivery. On a standard queue, a producer
that sends again gets another one, so let the producer send an id.

**Order.** The ordering key is the message group of a FIFO queue. SQS delivers nothing of a group while
one of its messages is hidden. A message that is given back with a delay holds its group. A standard
queue keeps no order.

A message of SNS without raw delivery is left as it is: its body is SNS's envelope.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

import msgspec

from ..._core.consuming.message import Message, Received
from ..._core.consuming.source import ConsumerSettings, Revoke, SourceProblem, SourceStatus
from ..._core.sqs_wire import (
    BODY,
    ID,
    KEY,
    OURS,
    TOPIC,
    body_of,
    deduplication_id,
    headers_of,
)
from ..._values.settings import expect
from ...errors import BrokerUnavailableError, ConfigurationError
from ...outbox.publishers._sqs_client import (
    MISSING,
    PLACE,
    SqsClient,
    code_of,
    is_fifo,
    outage_of,
    place_of,
    server_of,
)
from ._connection import with_query
from ._sqs_settings import LONGEST_HIDING, check_queue

__all__ = ["SqsSource"]

MOST: Final = 10
"""Messages in one request; a limit of SQS."""

LONGEST_POLL: Final = 20
"""Seconds; a limit of SQS."""

DEFAULT_VISIBILITY: Final = 30.0


class SqsSource:
    """Blocking, by boto3."""

    broker = "SQS"
    can_delay = True
    most_held = 100_000
    """SQS allows 120,000 messages in flight."""

    def __init__(self, client: SqsClient, queue: str, dead_url: str) -> None:
        self._client = client
        self.name = queue
        self.dead_url = dead_url
        self.ack_wait = DEFAULT_VISIBILITY
        """The queue's, once it was asked: before the first message."""
        self._held: set[str] = set()
        """Receipts that are not settled. SQS would accept a deletion after a message was given back."""
        self._settings: dict[str, str] | None = None
        self._closing = threading.Event()

    @classmethod
    def open(cls, url: str) -> Self:
        queue, options = place_of(url, PLACE)
        expect(queue, "the queue", queue, "an SQS URL is sqs://queue?region=…")
        longer = options | {"timeout": options["timeout"] + LONGEST_POLL}
        return cls(SqsClient(longer), queue, with_query(server_of(options), deduplicate="false"))

    # -- messages -----------------------------------------------------------------------------------

    def fetch(self, most: int, seconds: float) -> list[Received]:
        self._ask()
        found: list[Received] = []
        while len(found) < most and not self._closing.is_set():
            asked = min(MOST, most - len(found))
            wait = 0 if found else min(math.ceil(seconds), LONGEST_POLL)
            try:
                got = self._receive(asked, wait)
            except BrokerUnavailableError:
                if not found:
                    raise
                break  # what is here would be hidden, unhandled, until its visibility timeout
            found += got
            if len(got) < asked:
                break
        if self._closing.is_set() and found:
            self.give_back([received.receipt for received in found], 0)
            return []
        return found

    def _receive(self, most: int, wait: int) -> list[Received]:
        reply = self._call(
            self._client.calls.receive_message,
            MaxNumberOfMessages=most,
            WaitTimeSeconds=wait,
            VisibilityTimeout=round(self.ack_wait),
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )
        found = [
            Received(self._message(got), got["ReceiptHandle"]) for got in reply.get("Messages", ())
        ]
        self._held.update(one.receipt for one in found)
        return found

    def _message(self, got: dict[str, Any]) -> Message:
        headers = headers_of(got.get("MessageAttributes", {}))
        system = got.get("Attributes", {})
        body = body_of(got["Body"], headers.get(BODY))
        group = system.get("MessageGroupId") if is_fifo(self.name) else None
        return Message(
            id=headers.get(ID) or deduplication_id(system, got["Body"]) or got["MessageId"],
            topic=headers.get(TOPIC, self.name),
            body=body,
            key=headers.get(KEY, group),
            headers={name: value for name, value in headers.items() if name not in OURS},
            deliveries=int(system.get("ApproximateReceiveCount", 0)) or None,
            position=f"{self.name}/{got['MessageId']}",
        )

    # -- settling: a receipt that has expired is not an error: the message is redelivered----------------

    def acknowledge(self, receipts: Sequence[str]) -> None:
        self._settle(self._client.calls.delete_message_batch, receipts)
        self._held.difference_update(receipts)

    def give_back(self, receipts: Sequence[str], seconds: float) -> None:
        self._hide(receipts, math.ceil(seconds))
        self._held.difference_update(receipts)

    def extend(self, receipts: Sequence[str]) -> None:
        self._hide(receipts, round(self.ack_wait))

    def _hide(self, receipts: Sequence[str], seconds: int) -> None:
        self._settle(
            self._client.calls.change_message_visibility_batch,
            receipts,
            VisibilityTimeout=min(seconds, LONGEST_HIDING),
        )

    def _settle(self, call: Callable[..., Any], receipts: Sequence[str], **more: int) -> None:
        live = [receipt for receipt in receipts if receipt in self._held]
        for start in range(0, len(live), MOST):
            part = live[start : start + MOST]
            entries = [
                {"Id": str(place), "ReceiptHandle": receipt, **more}
                for place, receipt in enumerate(part)
            ]
            reply = self._call(call, Entries=entries)
            failed = [one for one in reply.get("Failed", ()) if not one.get("SenderFault")]
            if failed:
                raise BrokerUnavailableError(
                    f"SQS did not settle {len(failed)} messages: {failed[0].get('Code')}"
                )

    # -- no partitions ------------------------------------------------------------------------------

    def listen(self, revoke: Revoke | None) -> None:
        """SQS takes nothing away."""

    def release(self, partitions: frozenset[str]) -> None:
        """SQS takes nothing away."""

    # -- the queue ----------------------------------------------------------------------------------

    def check(self, consumer: ConsumerSettings) -> list[SourceProblem]:
        self._settings = None
        return list(check_queue(self.name, self._ask(), consumer))

    def status(self) -> SourceStatus:
        """SQS counts roughly, and knows no consumers."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        reply = self._call(self._client.calls.get_queue_attributes, AttributeNames=names)
        waiting, hidden = (int(reply["Attributes"][name]) for name in names)
        return SourceStatus(waiting, hidden)

    def scope(self, topic: str) -> tuple[str, ...]:
        return (self.name,)

    def origin(self, topic: str) -> str:
        return topic

    @property
    def place(self) -> str:
        return self.name

    def replay_url(self, place: str) -> str:
        return self.dead_url.replace("sqs://", f"sqs://{place}", 1)

    def dead_topic(self, topic: str) -> str:
        """The queue's own dead-letter queue if it has one; else ``<queue>-dead``."""
        redrive = msgspec.json.decode(self._ask().get("RedrivePolicy", "{}"))
        if "deadLetterTargetArn" in redrive:
            return str(redrive["deadLetterTargetArn"].rpartition(":")[2])
        suffix = ".fifo" if is_fifo(self.name) else ""
        return f"{self.name.removesuffix('.fifo')}-dead{suffix}"

    def prepare_dead_letters(self) -> None:
        """If this user may not create it, the publisher of dead letters says that it is missing."""
        from botocore.exceptions import BotoCoreError, ClientError

        queue = self.dead_topic(self.name)
        try:
            self._client.address(queue)
        except (BotoCoreError, ClientError) as error:
            if code_of(error) not in MISSING:
                raise _meaning(error, self.name) from error
            settings = {"MessageRetentionPeriod": "1209600"}  # 14 days, the longest
            if is_fifo(queue):
                settings["FifoQueue"] = "true"
            with contextlib.suppress(ClientError):
                self._client.calls.create_queue(QueueName=queue, Attributes=settings)

    def close(self) -> None:
        self._closing.set()
        self._client.close()

    def _ask(self) -> dict[str, str]:
        """The queue's settings, asked for once; none if this user may not see them."""
        if self._settings is None:
            try:
                reply = self._call(self._client.calls.get_queue_attributes, AttributeNames=["All"])
                settings = reply.get("Attributes", {})
            except ConfigurationError as error:
                if "AccessDenied" not in str(error):
                    raise
                settings = {}
            self.ack_wait = float(settings.get("VisibilityTimeout", 0)) or DEFAULT_VISIBILITY
            self._settings = settings
        return self._settings

    def _call(self, call: Callable[..., Any], **given: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return call(QueueUrl=self._client.address(self.name), **given)
        except (BotoCoreError, ClientError) as error:
            self._client.forget(self.name)
            raise _meaning(error, self.name) from error


def _meaning(error: Exception, queue: str) -> Exception:
    if code_of(error) in MISSING:
        return BrokerUnavailableError(f"SQS has no queue {queue}: create it", blames="none")
    return outage_of(error) or ConfigurationError(
        f"SQS refuses this consumer of {queue}: {code_of(error)}: {error}"
    )
