"""The SQS source: visibility, deletion, groups, ids, and what the settings of a queue will do.

On an emulator (tests.servers.ministack). It refuses an expired receipt where AWS may accept it.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from lab.field.proxy import Proxy
from tests.consumers.proxied import BehindProxies
from tests.polling import until
from tests.servers import free_port
from twicesafe import BrokerUnavailableError, ConfigurationError
from twicesafe._core.consuming.message import Received, key_of
from twicesafe._core.consuming.source import ConsumerSettings
from twicesafe.consumers.sources._sqs_settings import check_queue
from twicesafe.consumers.sources.sqs import SqsSource
from twicesafe.outbox.publishers import Message as OutboxMessage
from twicesafe.outbox.publishers import open_publisher
from twicesafe.testing import ConsumerConformance

SETTINGS = ConsumerSettings(30, 1_000_000, 5, 60, 8, 100, True)


class Queue:
    """A queue that no other test uses."""

    def __init__(self, server: Any, suffix: str = "", **settings: str) -> None:
        self.server, self.client = server, server.client()
        self.name = f"orders-{uuid.uuid4().hex[:8]}{suffix}"
        fifo = {"FifoQueue": "true"} if suffix else {}
        self.url = self.client.create_queue(QueueName=self.name, Attributes=settings | fifo)[
            "QueueUrl"
        ]

    def put(self, *bodies: str, group: str | None = None, **more: Any) -> None:
        for body in bodies:
            fifo = {"MessageGroupId": group} if group else {}
            if group and "MessageDeduplicationId" not in more:
                fifo["MessageDeduplicationId"] = uuid.uuid4().hex
            self.client.send_message(QueueUrl=self.url, MessageBody=body, **fifo, **more)

    def left(self) -> int:
        """Messages that are not deleted, hidden or not."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        return sum(int(found["Attributes"][name]) for name in names)

    def source(self, port: int = 0) -> SqsSource:
        endpoint = f"http://127.0.0.1:{port or self.server.port}"
        return SqsSource.open(f"sqs://{self.name}?region=us-east-1&endpoint={endpoint}&timeout=2")


@pytest.fixture
def queue(ministack: Any) -> Iterator[Callable[..., Queue]]:
    made: list[Queue] = []

    def queue(suffix: str = "", **settings: str) -> Queue:
        made.append(Queue(ministack, suffix, **settings))
        return made[-1]

    yield queue
    for one in made:
        one.client.close()


def fetched(source: SqsSource, count: int, most: int = 100) -> list[Received]:
    found: list[Received] = []
    until(lambda: found.extend(source.fetch(most, 1)) or len(found) >= count)
    assert len(found) == count
    return found


def bodies(found: list[Received]) -> list[str]:
    return [received.message.body.decode() for received in found]


def receipts(found: list[Received]) -> list[Any]:
    return [received.receipt for received in found]


class TestSqs(BehindProxies, ConsumerConformance):
    """The rules of all sources. The emulator keeps nothing when it restarts."""

    restarts = False
    ordered = False  # a standard queue

    @pytest.fixture(autouse=True)
    def _broker(self, _proxies: None, ministack: Any) -> Iterator[None]:
        self.port = ministack.port
        self.queue = Queue(ministack, VisibilityTimeout="3")
        yield
        self.queue.client.close()

    def open_source(self) -> SqsSource:
        return self.through_proxy(self.queue.source)

    def publisher_url(self) -> str:
        return f"sqs://?region=us-east-1&endpoint=http://127.0.0.1:{self.port}"

    def topic(self) -> str:
        return self.queue.name

    def dead_letters(self) -> list[str]:
        dead = self.queue.client.get_queue_url(QueueName=f"{self.queue.name}-dead")["QueueUrl"]
        found: list[str] = []
        while len(found) < 2:
            got = self.queue.client.receive_message(
                QueueUrl=dead,
                MaxNumberOfMessages=10,
                MessageAttributeNames=["All"],
                VisibilityTimeout=60,
            )
            found += [one["MessageAttributes"]["id"]["StringValue"] for one in got["Messages"]]
        return found

    def unsettled(self) -> int:
        return self.queue.left()

    def test_ordinary_settings_pass_the_check(self) -> None:
        """The queue of the other rules hides messages for so short a time that the check says so."""
        self.queue = Queue(self.queue.server)
        super().test_ordinary_settings_pass_the_check()

    def consumer_settings(self) -> ConsumerSettings:
        return replace(super().consumer_settings(), retention=345_600)


# --- settling --------------------------------------------------------------------------------------


def test_more_than_ten_come_in_one_fetch_and_are_deleted(queue: Callable[..., Queue]):
    orders = queue()
    orders.put(*(str(n) for n in range(25)))
    source = orders.source()
    found = source.fetch(23, 1)
    assert len(found) == 23
    source.acknowledge(receipts(found))
    assert orders.left() == 2
    assert source.fetch(0, 0) == []
    assert len(source.fetch(10, 0)) == 2


def test_an_outage_after_the_first_ten_keeps_them(queue: Callable[..., Queue]):
    """Else they would stay hidden and unhandled until their visibility timeout."""
    orders = queue()
    orders.put(*map(str, range(12)))
    source = orders.source()
    receive, asked = source._receive, []

    def once(most: int, wait: int) -> list[Received]:
        asked.append(most)
        if len(asked) > 1:
            raise BrokerUnavailableError("gone")
        return receive(most, wait)

    source._receive = once  # type: ignore[method-assign]
    assert len(source.fetch(100, 1)) == 10
    source.close()


def test_what_is_not_acknowledged_comes_again_and_is_counted(queue: Callable[..., Queue]):
    orders = queue(VisibilityTimeout="1")
    orders.put("a")
    source = orders.source()
    assert [one.message.deliveries for one in fetched(source, 1)] == [1]
    (again,) = fetched(source, 1)
    assert again.message.deliveries == 2
    assert source.ack_wait == 1


def test_the_ack_wait_is_the_queues_before_the_first_message(queue: Callable[..., Queue]):
    source = queue(VisibilityTimeout="77").source()
    source.fetch(1, 0)
    assert source.ack_wait == 77


def test_what_is_given_back_is_there_at_once_or_later(queue: Callable[..., Queue]):
    orders = queue()
    orders.put("a", "b")
    source = orders.source()
    a, b = sorted(fetched(source, 2), key=lambda one: one.message.body)
    source.give_back([a.receipt], 0)
    source.give_back([b.receipt], 0.2)  # SQS counts in seconds
    assert bodies(source.fetch(10, 0)) == ["a"]
    assert bodies(fetched(source, 1)) == ["b"]


def test_extended_messages_stay_hidden(queue: Callable[..., Queue]):
    orders = queue(VisibilityTimeout="2")
    orders.put("a", "b")
    source = orders.source()
    a, b = sorted(fetched(source, 2), key=lambda one: one.message.body)
    source.ack_wait = 600.0
    source.extend([a.receipt])
    assert bodies(fetched(source, 1)) == ["b"]  # its two seconds are over
    assert source.fetch(10, 0) == []
    source.acknowledge([a.receipt, b.receipt])


@pytest.mark.parametrize("what", ["acknowledge", "extend", "give_back"])
def test_a_receipt_that_has_expired_is_no_error(queue: Callable[..., Queue], what: str):
    orders = queue(VisibilityTimeout="1")
    orders.put("a", "b")
    source = orders.source()
    old = receipts(fetched(source, 2))
    new = receipts(fetched(source, 2))
    more = (0,) if what == "give_back" else ()
    getattr(source, what)([*old, "no receipt at all"], *more)
    source.acknowledge(new)
    assert orders.left() == 0


def test_what_comes_after_close_goes_back(queue: Callable[..., Queue]):
    orders = queue()
    source = orders.source()
    source.fetch(1, 0)
    ended: list[list[Received]] = []
    waiting = threading.Thread(target=lambda: ended.append(source.fetch(5, 20)))
    waiting.start()
    source._closing.set()  # what `close` does first
    orders.put("a")
    waiting.join()
    assert ended == [[]]
    assert bodies(fetched(orders.source(), 1)) == ["a"]


@pytest.mark.parametrize(
    "name, value", [("twicesafe-headers", "not json"), ("twicesafe-body", "base64")]
)
def test_an_attribute_that_is_not_ours_stops_no_queue(
    queue: Callable[..., Queue], name: str, value: str
):
    """A message that cannot be read would be fetched again and again, with its neighbours."""
    orders = queue()
    orders.put("!", MessageAttributes={name: {"DataType": "String", "StringValue": value}})
    orders.put("b")
    assert sorted(bodies(fetched(orders.source(), 2))) == ["!", "b"]


# --- FIFO ------------------------------------------------------------------------------------------


def test_a_group_waits_for_its_first_and_comes_in_order(queue: Callable[..., Queue]):
    orders = queue(".fifo")
    orders.put("a1", "a2", group="a")
    source = orders.source()
    (a1,) = fetched(source, 1, most=1)
    orders.put("b1", group="b")
    (b1,) = source.fetch(10, 0)
    assert (a1.message.key, b1.message.key, b1.message.body) == ("a", "b", b"b1")
    source.give_back([a1.receipt], 0)
    assert bodies(source.fetch(10, 0)) == ["a1", "a2"]


# --- ids -------------------------------------------------------------------------------------------


def test_the_id_is_the_producers_if_it_gave_one(queue: Callable[..., Queue]):
    fifo, standard = queue(".fifo"), queue()
    fifo.put("x", group="g", MessageDeduplicationId="order-7")
    assert fetched(fifo.source(), 1)[0].message.id == "order-7"
    standard.put("x", MessageAttributes={"id": {"DataType": "String", "StringValue": "order-8"}})
    assert fetched(standard.source(), 1)[0].message.id == "order-8"


def test_an_id_that_sqs_made_of_the_body_is_not_used(queue: Callable[..., Queue]):
    """A second order with the same body, after five minutes, would be taken for a repeat."""
    orders = queue(".fifo", ContentBasedDeduplication="true")
    orders.client.send_message(QueueUrl=orders.url, MessageBody="tick", MessageGroupId="g")
    (received,) = fetched(orders.source(), 1)
    assert received.message.id != hashlib.sha256(b"tick").hexdigest()
    assert received.message.position == f"{orders.name}/{received.message.id}"


def test_else_it_is_sqss_own_and_the_same_for_every_delivery(queue: Callable[..., Queue]):
    orders = queue()
    orders.put("x")
    source = orders.source()
    (first,) = fetched(source, 1)
    source.give_back([first.receipt], 0)
    (again,) = fetched(source, 1)
    assert first.message.id == again.message.id
    assert first.message.position == again.message.position == f"{orders.name}/{first.message.id}"
    assert key_of(first.message) == key_of(again.message)


def test_attributes_are_headers(queue: Callable[..., Queue]):
    orders = queue()
    orders.put(
        "x",
        MessageAttributes={
            "Trace": {"DataType": "String", "StringValue": "t"},
            "count": {"DataType": "Number", "StringValue": "7"},
            "raw": {"DataType": "Binary", "BinaryValue": b"\xff\x00"},
        },
    )
    message = fetched(orders.source(), 1)[0].message
    assert message.headers == {"trace": "t", "count": "7", "raw": "0xff00"}
    assert (message.topic, message.key) == (orders.name, None)


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_what_the_outbox_publishes_comes_as_it_was(queue: Callable[..., Queue], suffix: str):
    orders = queue(suffix)
    publisher: Any = open_publisher(orders.server.url)
    headers = {f"h{n}": str(n) for n in range(12)}
    sent = OutboxMessage("id 7", orders.name, b"\xff\x00", "customer 1", headers)
    assert publisher.publish([sent]) == [None]
    publisher.close()
    message = fetched(orders.source(), 1)[0].message
    assert (message.id, message.topic, message.body) == ("id 7", orders.name, b"\xff\x00")
    assert message.key == "customer 1"
    assert message.headers == {**headers, "id": "id 7"}


# --- dead letters ----------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_dead_letters_go_to_a_queue_beside_it(queue: Callable[..., Queue], suffix: str):
    orders = queue(suffix)
    source = orders.source()
    dead = source.dead_topic(orders.name)
    assert dead == f"{orders.name.removesuffix('.fifo')}-dead{suffix}"
    for _ in range(2):
        source.prepare_dead_letters()
    publisher: Any = open_publisher(source.dead_url)
    assert publisher.publish([OutboxMessage("d", dead, b"1", None, {})]) == [None]
    publisher.close()


def test_a_queue_with_a_redrive_policy_has_its_own(queue: Callable[..., Queue]):
    dead = queue()
    arn = f"arn:aws:sqs:us-east-1:000000000000:{dead.name}"
    policy = msgspec.json.encode({"deadLetterTargetArn": arn, "maxReceiveCount": 3}).decode()
    orders = queue(RedrivePolicy=policy)
    source = orders.source()
    assert source.dead_topic(orders.name) == dead.name
    problems = [found.problem for found in source.check(SETTINGS)]
    assert any("after 3 deliveries" in problem for problem in problems)


# --- settings and outages ----------------------------------------------------------------------------


FINE = {"VisibilityTimeout": "30", "MessageRetentionPeriod": "345600"}


@pytest.mark.parametrize(
    "settings, terms, problem",
    [
        ({"VisibilityTimeout": "20"}, {}, "visibility timeout of 20 s, and the lease is 30 s"),
        ({"VisibilityTimeout": "5"}, {"lease": 3.0}, "visibility timeout of 5 s"),
        ({"RedrivePolicy": '{"maxReceiveCount":"5"}'}, {}, "after 5 deliveries"),
        ({"MessageRetentionPeriod": "200"}, {}, "deletes a message that is still being retried"),
        ({}, {"retention": 86400.0}, "its record is kept for 86400 s"),
        ({"ContentBasedDeduplication": "true"}, {}, "deduplicates by content"),
        ({}, {"longest_backoff": 50_000.0}, "12 hours at most"),
        ({}, {"timeout": 50_000.0}, "12 hours at most"),
    ],
)
def test_the_check_finds_a_wrong_setting(
    settings: dict[str, str], terms: dict[str, float], problem: str
):
    (found,) = check_queue("orders", FINE | settings, replace(SETTINGS, **terms))
    assert problem in found.problem
    assert found.remedy


def test_the_check_finds_nothing_wrong_with_a_new_queue(queue: Callable[..., Queue]):
    assert queue().source().check(SETTINGS) == []


def test_settings_that_may_not_be_seen_are_not_checked():
    assert list(check_queue("orders", {}, SETTINGS)) == []


@pytest.mark.parametrize(
    "url, problem",
    [
        ("sqs://?region=x", "an SQS URL is"),
        ("sqs://orders?regoin=x", "did you mean 'region'"),
        ("sqs://my.queue?region=x", "letters, digits"),
    ],
)
def test_a_wrong_url_is_refused(url: str, problem: str):
    with pytest.raises(ConfigurationError, match=problem):
        SqsSource.open(url)


def test_a_queue_that_is_missing_is_waited_for(queue: Callable[..., Queue], ministack: Any):
    orders = queue()
    source = orders.source()
    orders.client.delete_queue(QueueUrl=orders.url)
    with pytest.raises(BrokerUnavailableError, match="create it"):
        source.fetch(1, 0)
    orders.client.create_queue(QueueName=orders.name)
    orders.put("a")
    assert bodies(fetched(source, 1)) == ["a"]


def test_an_outage_is_an_outage_and_passes(queue: Callable[..., Queue]):
    orders = queue()
    orders.put("a")
    with Proxy(orders.server.port) as proxy:
        source = orders.source(proxy.port)
        found = fetched(source, 1)
        behind, proxy.behind = proxy.behind, free_port()
        proxy.cut()
        for act in (
            lambda: source.fetch(1, 0),
            lambda: source.acknowledge(receipts(found)),
            lambda: source.extend(receipts(found)),
            lambda: source.give_back(receipts(found), 0),
            lambda: source.check(SETTINGS),
        ):
            with pytest.raises(BrokerUnavailableError):
                act()
        proxy.behind = behind
        source.acknowledge(receipts(found))
        assert orders.left() == 0
