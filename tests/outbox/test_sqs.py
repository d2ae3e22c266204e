"""What SQS gets: batches within its limits, groups and ids of FIFO queues, and any body or header."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from twicesafe import BrokerUnavailableError, ConfigurationError
from twicesafe._core.outbox.requests import Message
from twicesafe._core.sqs_wire import (
    _FORBIDDEN,
    BODY,
    KEY,
    MOST_ATTRIBUTES,
    OURS,
    body_of,
    entry_of,
    headers_of,
)
from twicesafe.outbox.publishers import NotNow, open_publisher
from twicesafe.outbox.publishers.sqs import LARGEST_MESSAGE


@pytest.fixture
def client(ministack: Any) -> Iterator[Any]:
    made = ministack.client()
    yield made
    made.close()


@pytest.fixture
def publisher(ministack_url: str) -> Iterator[Any]:
    opened: Any = open_publisher(ministack_url)
    yield opened
    opened.close()


def made_queue(client: Any, publisher: Any, name: str) -> str:
    fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    made = client.create_queue(QueueName=publisher._prefix + name, Attributes=fifo)
    return str(made["QueueUrl"])


def all_of(client: Any, url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while got := client.receive_message(
        QueueUrl=url,
        MaxNumberOfMessages=10,
        MessageAttributeNames=["All"],
        MessageSystemAttributeNames=["All"],
    ).get("Messages"):
        found += got
        for one in got:
            client.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
    return found


def test_a_fifo_queue_gets_group_and_deduplication_id(client: Any, publisher: Any):
    url = made_queue(client, publisher, "orders.fifo")
    sent = [
        Message("m-1", "orders.fifo", b"1", "customer 1", {}),
        Message("m-2", "orders.fifo", b"2", None, {}),
        Message("é" * 100, "orders.fifo", b"3", "ключ", {}),
    ]
    assert publisher.publish(sent) == [None, None, None]
    assert publisher.publish(sent) == [None, None, None]  # SQS drops the repeats
    found = {one["Body"]: one for one in all_of(client, url)}
    groups = {body: one["Attributes"]["MessageGroupId"] for body, one in found.items()}
    assert groups["2"] == "m-2"
    # Hashed: SQS allows neither a space nor Cyrillic.
    assert len(groups["1"]) == len(groups["3"]) == 64
    assert found["1"]["Attributes"]["MessageDeduplicationId"] == "m-1"
    assert found["1"]["MessageAttributes"][KEY]["StringValue"] == "customer 1"
    assert found["3"]["MessageAttributes"]["id"]["StringValue"] == "é" * 100


def test_large_messages_go_in_batches_that_sqs_accepts(client: Any, publisher: Any):
    url = made_queue(client, publisher, "large")
    sizes = [100, 200_000, 200_000, 1_000_000, 900_000, 10, 10]
    sent = [Message(f"m{n}", "large", b"x" * size, None, {}) for n, size in enumerate(sizes)]
    assert publisher.publish(sent) == [None] * len(sent)
    assert sorted(len(one["Body"]) for one in all_of(client, url)) == sorted(sizes)


def test_attributes_count_for_the_size(client: Any, publisher: Any):
    """SQS counts them; the emulator does not, so the publisher must."""
    made_queue(client, publisher, "large")
    largest = Message("m", "large", b"x" * (LARGEST_MESSAGE - len("idStringm")), None, {})
    assert publisher.publish([largest]) == [None]
    (refused,) = publisher.publish([replace(largest, headers={"a": "b"})])
    assert isinstance(refused, ValueError)


def test_one_message_that_is_refused_refuses_no_other(client: Any, publisher: Any):
    url = made_queue(client, publisher, "mixed")
    small = client.create_queue(
        QueueName=f"{publisher._prefix}small", Attributes={"MaximumMessageSize": "1024"}
    )["QueueUrl"]
    sent = [
        Message("a", "mixed", b"1", None, {}),
        Message("b", "small", b"x" * 2000, None, {}),
        Message("c", "small", b"3", None, {}),
        Message("d", "not-there", b"4", None, {}),
        Message("e", "not a name", b"5", None, {}),
    ]
    answers = publisher.publish(sent)
    assert answers[0] is None
    assert isinstance(answers[1], RuntimeError)
    assert answers[2] is None
    assert isinstance(answers[3], NotNow)
    assert isinstance(answers[4], ValueError)
    assert [one["Body"] for one in all_of(client, url)] == ["1"]
    assert [one["Body"] for one in all_of(client, small)] == ["3"]


def test_a_queue_that_is_made_later_is_found(client: Any, publisher: Any):
    sent = [Message("a", "later", b"1", None, {})]
    (answer,) = publisher.publish(sent)
    assert isinstance(answer, NotNow)
    url = made_queue(client, publisher, "later")
    assert publisher.publish(sent) == [None]
    client.delete_queue(QueueUrl=url)
    (answer,) = publisher.publish(sent)
    assert isinstance(answer, NotNow)


def test_a_url_that_names_a_queue_sends_all_there(client: Any, ministack: Any):
    queue = f"all-{os.urandom(4).hex()}"
    url = client.create_queue(QueueName=queue)["QueueUrl"]
    publisher: Any = open_publisher(ministack.url.replace("://", f"://{queue}", 1))
    assert publisher.publish([Message("a", "orders.created", b"1", None, {})]) == [None]
    publisher.close()
    (found,) = all_of(client, url)
    assert found["MessageAttributes"]["twicesafe-topic"]["StringValue"] == "orders.created"


@pytest.mark.parametrize(
    "url, problem",
    [
        ("sqs://orders?regoin=x", "did you mean 'region'"),
        ("sqs://my.queue?region=x", "letters, digits"),
        ("sqs://orders?region=x&endpoint=nowhere", "endpoint"),
    ],
)
def test_a_wrong_url_is_refused(url: str, problem: str):
    with pytest.raises(ConfigurationError, match=problem):
        open_publisher(url)


def test_without_a_server_it_is_an_outage_that_blames_no_message():
    publisher: Any = open_publisher("sqs://?region=x&endpoint=http://127.0.0.1:1&timeout=1")
    (answer,) = publisher.publish([Message("a", "orders", b"1", None, {})])
    assert isinstance(answer, BrokerUnavailableError)
    assert answer.blames == "none"
    with pytest.raises(BrokerUnavailableError):
        publisher.check()
    publisher.close()


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


@given(
    body=st.binary(max_size=50)
    | st.text(max_size=20).map(lambda text: text.encode(errors="ignore")),
    headers=st.dictionaries(NAMES, TEXTS, max_size=15),
    key=TEXTS | st.none(),
)
@example(body=b"", headers={"a": "\uffff"}, key="\ufffe")
def test_any_body_key_and_headers_come_back(body: bytes, headers: dict[str, str], key: str | None):
    """And what SQS gets has no more attributes than it allows, and only characters that it allows."""
    entry = entry_of(Message("id", "orders", body, key, headers), "orders", 0)
    attributes = entry["MessageAttributes"]
    assert 1 <= len(attributes) <= MOST_ATTRIBUTES
    for text in (entry["MessageBody"], *(one["StringValue"] for one in attributes.values())):
        assert text
        assert not _FORBIDDEN.search(text)
    found = headers_of(attributes)
    assert body_of(entry["MessageBody"], found.get(BODY)) == body
    assert found.get(KEY) == key
    assert found["id"] == "id"
    expected = {name.lower(): value for name, value in headers.items() if name.lower() != "id"}
    lower = [name.lower() for name in headers]
    if len(set(lower)) == len(lower):
        assert {n: v for n, v in found.items() if n not in OURS and n != "id"} == expected
