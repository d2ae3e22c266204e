"""AWS Lambda: batches answer with their failures, groups stop, and the end of the invocation is the deadline."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from twicesafe import Backoff, ConfigurationError, Policy, Receiver, UsageError, current_claim
from twicesafe._core.outbox.requests import Message as Outgoing
from twicesafe._core.sqs_wire import entry_of
from twicesafe.consumers import DeadLetter, Message
from twicesafe.errors import FingerprintMismatchError, StoreError
from twicesafe.integrations.aws_lambda import batch_handler, event_handler

QUEUE = "arn:aws:sqs:eu-central-1:1:orders"
NONE_FAILED: dict[str, list[dict[str, str]]] = {"batchItemFailures": []}
STREAM = "arn:aws:kinesis:eu-central-1:1:stream/orders"
TABLE = "arn:aws:dynamodb:eu-central-1:1:table/orders/stream/2026-01-01T00:00:00.000"


class Context:
    def __init__(self, *millis: int) -> None:
        self.millis = list(millis) or [60_000]

    def get_remaining_time_in_millis(self) -> int:
        return self.millis.pop(0) if len(self.millis) > 1 else self.millis[0]


def sqs(id_: str, body: str = "{}", count: int = 1, **known: Any) -> dict[str, Any]:
    return {
        "messageId": id_,
        "receiptHandle": f"r-{id_}",
        "body": body,
        "attributes": {"ApproximateReceiveCount": str(count)},
        "messageAttributes": known.get("attributes", {}),
        "eventSource": "aws:sqs",
        "eventSourceARN": QUEUE,
    }


def fifo(id_: str, group: str, dedup: str | None = None) -> dict[str, Any]:
    record = sqs(id_, body=f'"{dedup or id_}"')
    record["attributes"] |= {"MessageGroupId": group, "MessageDeduplicationId": dedup or id_}
    return record | {"eventSourceARN": f"{QUEUE}.fifo"}


def kinesis(number: str, key: str = "k") -> dict[str, Any]:
    data = base64.b64encode(number.encode()).decode()
    return {
        "kinesis": {"partitionKey": key, "sequenceNumber": number, "data": data},
        "eventSource": "aws:kinesis",
        "eventID": f"shardId-0:{number}",
        "eventSourceARN": STREAM,
    }


def change(number: str, item: str) -> dict[str, Any]:
    return {
        "eventID": f"e{number}",
        "eventName": "INSERT",
        "eventSource": "aws:dynamodb",
        "eventSourceARN": TABLE,
        "dynamodb": {"Keys": {"id": {"S": item}}, "SequenceNumber": number},
    }


def failed(answer: dict[str, Any]) -> list[str]:
    return [one["itemIdentifier"] for one in answer["batchItemFailures"]]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    policy = Policy(max_attempts=2, backoff=Backoff(first=0))
    with Receiver.open("memory://", policy=policy) as opened:
        yield opened


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def handler(receiver: Receiver, ran: list[str]) -> Any:
    @batch_handler(receiver, scope=("test",))
    def handle(message: Message) -> None:
        ran.append(message.position)
        if b"bad" in message.body:
            raise ValueError(message.body)

    return handle


def test_only_failed_messages_are_delivered_again(handler: Any, ran: list[str]) -> None:
    event = {"Records": [sqs("a"), sqs("b", "bad"), sqs("c")]}
    assert failed(handler(event, Context())) == ["b"]
    assert failed(handler(event, Context())) == ["b"]
    assert sorted(ran) == ["a", "b", "b", "c"]


def test_a_message_without_a_usable_key_goes_to_the_dead_letters(
    receiver: Receiver, ran: list[str]
) -> None:
    """Delivered again, it would have none again."""
    dead: list[tuple[str, str]] = []

    def key(message: Message) -> str:
        if message.position == "b":
            raise UsageError("no key can be made")
        return message.position

    @batch_handler(
        receiver,
        scope=("test",),
        key=key,
        dead_letter=lambda message, error: dead.append((message.position, str(error))),
    )
    def handle(message: Message) -> None:
        ran.append(message.position)

    event = {"Records": [sqs("a"), sqs("b"), sqs("c")]}
    assert handle(event, Context()) == NONE_FAILED
    assert (ran, dead) == (["a", "c"], [("b", "no key can be made")])


@pytest.mark.parametrize("limit", [None, 60])
def test_what_is_claimed_with_others_starts_only_while_there_is_time(
    receiver: Receiver, limit: float | None
) -> None:
    """It did not start, so it has used up no attempt."""
    receiver = receiver.options(policy=receiver.policy.replace(timeout=limit))
    started: list[tuple[str, int]] = []
    context = Context(5_000)

    @batch_handler(receiver, scope=("test",))
    def handle(message: Message) -> None:
        claim = current_claim()
        assert claim is not None
        started.append((message.position, claim.attempt))
        context.millis = [900]

    event = {"Records": [sqs("a"), sqs("b")]}
    assert failed(handle(event, context)) == ["b"]
    context.millis = [5_000]
    assert failed(handle(event, context)) == []
    assert started == [("a", 1), ("b", 1)]


def test_after_the_last_attempt_it_is_listed_and_not_run(handler: Any, ran: list[str]) -> None:
    for count in (1, 2, 3, 4):
        event = {"Records": [sqs("b", "bad", count)]}
        assert failed(handler(event, Context())) == ["b"]
    assert ran == ["b", "b"]


def test_a_failure_stops_its_group_and_no_other(handler: Any, ran: list[str]) -> None:
    records = [
        fifo("1", "x"),
        fifo("2", "x", "bad"),
        fifo("3", "y"),
        fifo("4", "x"),
        fifo("5", "y"),
    ]
    assert failed(handler({"Records": records}, Context())) == ["2", "4"]
    assert ran == ["1", "3", "2", "5"]


def test_the_producers_repeat_has_the_deduplication_id(handler: Any, ran: list[str]) -> None:
    assert failed(handler({"Records": [fifo("1", "x", "d")]}, Context())) == []
    assert failed(handler({"Records": [fifo("2", "x", "d")]}, Context())) == []
    assert ran == ["1"]


def test_a_group_of_a_standard_queue_has_no_order(handler: Any, ran: list[str]) -> None:
    records = [sqs("1", "bad"), sqs("2")]
    for record in records:
        record["attributes"]["MessageGroupId"] = "tenant"
    assert failed(handler({"Records": records}, Context())) == ["1"]
    assert ran == ["1", "2"]


def test_an_idempotency_key_of_the_producer_decides(handler: Any, ran: list[str]) -> None:
    attributes = {"Idempotency-Key": {"stringValue": '"o-1"', "dataType": "String"}}
    records = [sqs("1", attributes=attributes), sqs("2", attributes=attributes)]
    assert failed(handler({"Records": records}, Context())) == []
    assert ran == ["1"]


def test_another_body_under_a_known_id_is_not_a_repeat(receiver: Receiver) -> None:
    letters: list[Exception] = []

    @batch_handler(
        receiver,
        key=lambda message: message.json()["id"],
        scope=("test",),
        dead_letter=lambda _, error: letters.append(error),
    )
    def handle(message: Message) -> None: ...

    records = [sqs("1", '{"id": 1}'), sqs("2", '{"id": 1, "cents": 2}'), sqs("3", "{}")]
    assert failed(handle({"Records": records}, Context())) == []
    assert {type(letter) for letter in letters} == {FingerprintMismatchError, KeyError}


def test_streams_keep_the_order_of_a_key(handler: Any, ran: list[str]) -> None:
    records = [kinesis("1"), kinesis("2 bad"), kinesis("3"), kinesis("4", "other")]
    assert failed(handler({"Records": records}, Context())) == ["2 bad", "3"]
    assert ran == ["shardId-0:1", "shardId-0:4", "shardId-0:2 bad"]


def test_changes_of_a_table(receiver: Receiver) -> None:
    seen: list[tuple[str, str]] = []

    @batch_handler(receiver, scope=("test",))
    def handle(message: Message) -> None:
        seen.append((message.topic, message.json()["eventName"]))
        if message.id == "e1":
            raise ValueError

    records = [change("1", "a"), change("2", "a"), change("3", "b")]
    assert failed(handle({"Records": records}, Context())) == ["1", "2"]
    assert seen == [("table/orders/stream/2026-01-01T00:00:00.000", "INSERT")] * 2


def test_a_dead_letter_ends_the_message_once_it_was_taken(receiver: Receiver) -> None:
    letters: list[str] = []

    def send(message: Message, error: Exception) -> None:
        letters.append(str(error))
        if len(letters) == 1:
            raise OSError("the queue of dead letters does not answer")

    @batch_handler(receiver, scope=("test",), dead_letter=send)
    def handle(message: Message) -> None:
        raise DeadLetter("no address")

    event = {"Records": [sqs("a")]}
    assert failed(handle(event, Context())) == ["a"]
    assert failed(handle(event, Context())) == []
    assert letters[0] == "no address"


def test_nothing_starts_when_the_invocation_is_about_to_end(handler: Any, ran: list[str]) -> None:
    event = {"Records": [fifo("1", "x"), fifo("2", "x"), fifo("3", "x")]}
    assert failed(handler(event, Context(5000, 5000, 900))) == ["2", "3"]
    assert ran == ["1"]
    assert failed(handler(event, Context())) == []
    assert ran == ["1", "2", "3"]


def test_a_claim_ends_with_the_invocation(receiver: Receiver) -> None:
    seen: list[tuple[float, float]] = []

    @batch_handler(receiver, scope=("test",))
    def handle(message: Message) -> None:
        claim = current_claim()
        assert claim is not None
        seen.append((claim.lease, claim.max_lease))

    handle({"Records": [sqs("a")]}, Context(5000))
    handle({"Records": [sqs("b")]}, Context(900_000))
    assert seen == [(5, 5), (30, 900)]


def test_a_redelivered_message_is_claimed_alone(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that a dead invocation leaves behind counts: innocents must not share it again."""
    rounds: list[int] = []
    plain = receiver.store.perform_many

    def counted(requests: Any, *rest: Any, **more: Any) -> Any:
        rounds.append(len(requests))
        return plain(requests, *rest, **more)

    monkeypatch.setattr(receiver.store, "perform_many", counted)

    @batch_handler(receiver, scope=("test",))
    def handle(message: Message) -> None: ...

    handle({"Records": [sqs("a"), sqs("b")]}, Context())
    handle({"Records": [sqs("c", count=2), sqs("d", count=2)]}, Context())
    assert rounds == [2, 2, 1, 1, 1, 1]


def test_a_store_that_fails_lists_every_message(
    receiver: Receiver, handler: Any, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = StoreError("the disk is full")
    monkeypatch.setattr(receiver.store, "perform_many", lambda asks: [refused] * len(asks))
    assert failed(handler({"Records": [sqs("a"), sqs("b")]}, Context())) == ["a", "b"]
    assert ran == []


@pytest.mark.parametrize(
    "event, told",
    [
        ({"id": "e"}, "no Records"),
        ({"Records": [{"eventSource": "aws:s3"}]}, "eventSource='aws:s3'"),
    ],
)
def test_other_events_are_refused(handler: Any, event: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        handler(event, Context())


def test_an_empty_batch_has_no_failures(handler: Any) -> None:
    assert handler({"Records": []}, Context()) == {"batchItemFailures": []}


def test_running_without_a_store_is_refused(receiver: Receiver) -> None:
    with pytest.raises(ConfigurationError, match="outage='run'"):
        batch_handler(receiver.options(policy=Policy(outage="run")))


# -- single events ----------------------------------------------------------------------------


def test_a_repeated_event_gets_the_first_answer(receiver: Receiver) -> None:
    ran: list[str] = []

    @event_handler(receiver, key=lambda event: event["id"], scope=("test",))
    def handle(event: dict[str, Any], context: Any) -> dict[str, int]:
        ran.append(event["id"])
        return {"charged": event["cents"]}

    event = {"id": "e-1", "cents": 5}
    assert handle(event, Context()) == handle(event, Context()) == {"charged": 5}
    assert ran == ["e-1"]
    with pytest.raises(FingerprintMismatchError):
        handle({"id": "e-1", "cents": 6}, Context())


def test_the_fingerprint_can_be_a_part_of_the_event(receiver: Receiver) -> None:
    @event_handler(
        receiver,
        key=lambda event: event["id"],
        fingerprint=lambda event: event["cents"],
        scope=("test",),
    )
    def handle(event: dict[str, Any], context: Any) -> int:
        return int(event["cents"])

    assert handle({"id": "e", "cents": 5, "try": 1}, Context()) == 5
    assert handle({"id": "e", "cents": 5, "try": 2}, Context()) == 5


def test_an_error_is_raised_as_it_is(receiver: Receiver) -> None:
    @event_handler(receiver, key=lambda event: event["id"], scope=("test",))
    def handle(event: dict[str, Any], context: Any) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        handle({"id": "e"}, Context())


def test_an_event_is_not_started_too_late(receiver: Receiver) -> None:
    @event_handler(receiver, key=lambda event: event["id"], scope=("test",))
    def handle(event: dict[str, Any], context: Any) -> None:
        raise AssertionError

    with pytest.raises(TimeoutError, match="not started"):
        handle({"id": "e"}, Context(500))


def test_equal_bodies_are_two_messages_if_only_sqs_says_that_they_are_one(
    handler: Any, ran: list[str]
) -> None:
    """Content-based deduplication covers five minutes; a record would cover a day."""
    body = '"coffee"'
    for id_ in ("1", "2"):
        record = fifo(id_, "table-1", hashlib.sha256(body.encode()).hexdigest())
        assert handler({"Records": [record | {"body": body}]}, Context()) == NONE_FAILED
    assert ran == ["1", "2"]


def test_a_message_of_our_outbox_is_read_as_it_was_written(receiver: Receiver) -> None:
    """With a body of bytes, and with more headers than SQS has attributes."""
    headers = {f"header-{n}": str(n) for n in range(20)}
    entry = entry_of(Outgoing("o-1", "orders", b"\xff\x00", None, headers), "orders", 1)
    attributes = {
        name: {"stringValue": value["StringValue"], "dataType": "String"}
        for name, value in entry["MessageAttributes"].items()
    }
    attributes["raw"] = {"binaryValue": "/wA=", "dataType": "Binary"}
    seen: list[Message] = []
    handle = batch_handler(receiver, scope=("bytes",))(seen.append)
    for id_ in ("1", "2"):  # the producer's repeat has another id in SQS
        record = sqs(id_, entry["MessageBody"], attributes=attributes)
        assert handle({"Records": [record]}, Context()) == NONE_FAILED
    (message,) = seen
    assert (message.id, message.body) == ("o-1", b"\xff\x00")
    assert message.headers == {**headers, "id": "o-1", "raw": "0xff00"}


def test_an_async_dead_letter_function_ends_no_message(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    async def send(message: Message, error: Exception) -> None:
        raise AssertionError("never awaited")

    @batch_handler(receiver, scope=("async",), dead_letter=send)
    def handle(message: Message) -> None:
        raise DeadLetter("no")

    assert handle({"Records": [sqs("1")]}, Context()) != NONE_FAILED
    assert "was not sent" in caplog.text


def test_a_queue_decides_when_it_delivers_again_and_a_stream_waits_for_the_back_off(
    receiver: Receiver, ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    slow = receiver.options(policy=Policy(max_attempts=2, backoff=Backoff(first=3600, jitter=0)))

    @batch_handler(slow, scope=("test",))
    def broken(message: Message) -> None:
        ran.append(message.position)
        raise ValueError("no such customer")

    for count in (1, 2, 3):
        assert failed(broken({"Records": [sqs("a", count=count)]}, Context())) == ["a"]
        assert failed(broken({"Records": [kinesis("7")]}, Context())) == ["7"]
    assert ran == ["a", "shardId-0:7", "a"]
    told = [record for record in caplog.records if "was not handled" in record.message]
    assert len(told) == 6
    assert told[0].exc_info is not None
    assert told[0].message.endswith(
        "the message a was not handled, and it is delivered again: no such customer"
    )


def test_an_invocation_that_is_too_short_says_so(
    handler: Any, ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert failed(handler({"Records": [sqs("a"), sqs("b")]}, Context(900))) == ["a", "b"]
    assert "2 messages were not started" in caplog.text


@pytest.mark.parametrize("decorate", [batch_handler, lambda r: event_handler(r, key=str)])
def test_a_function_whose_work_would_not_run_is_refused(receiver: Receiver, decorate: Any) -> None:
    async def later(*_: Any) -> None: ...

    def items(*_: Any) -> Iterator[int]:
        yield 1

    with pytest.raises(UsageError, match=r"asyncio\.run"):
        decorate(receiver)(later)
    with pytest.raises(UsageError, match="generator"):
        decorate(receiver)(items)
