"""Each publisher against its real server: the message arrives as it was, in order, under its id."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import msgspec
import pytest

from tests.outbox.hook import Hook, Raw
from tests.servers import free_port
from twicesafe import BrokerUnavailableError, ConfigurationError
from twicesafe._core.outbox.requests import Message
from twicesafe.outbox.publishers import NOT_TRIED, NotNow, open_publisher, webhook
from twicesafe.outbox.publishers.kafka import KafkaPublisher
from twicesafe.outbox.publishers.webhook import WebhookPublisher, verify_signature
from twicesafe.propagation import extract


def message(body: str, key: str | None = "k", topic: str = "orders") -> Message:
    id_ = str(uuid.uuid4())
    headers = {"idempotency-key": id_, "content-type": "text/plain", "x": "ä"}
    return Message(id_, topic, body.encode(), key, headers)


def option(url: str, name: str) -> str:
    return parse_qs(urlsplit(url).query)[name][0]


# --- Redis Streams -----------------------------------------------------------------------------------


def test_redis_streams(valkey: Any, valkey_url: str):
    prefix = option(valkey_url, "prefix")
    publisher: Any = open_publisher(f"{valkey.url}?prefix={prefix}:")
    sent = [message(f"{n}") for n in range(5)] + [message("alone", None)]
    assert publisher.publish(sent) == [None] * 6
    with valkey.client() as client:
        entries = [fields for _, fields in client.xrange(f"{prefix}:orders")]
    assert [fields[b"id"].decode() for fields in entries] == [m.id for m in sent]
    assert [fields[b"body"] for fields in entries] == [m.body for m in sent]
    assert entries[0][b"key"] == b"k"
    assert b"key" not in entries[5]
    assert json.loads(entries[0][b"headers"])["x"] == "ä"
    publisher.close()


def test_redis_refuses_a_key_that_is_no_stream(valkey: Any, valkey_url: str):
    prefix = option(valkey_url, "prefix")
    with valkey.client() as client:
        client.set(f"{prefix}:text", "no stream")
    publisher: Any = open_publisher(f"{valkey.url}?prefix={prefix}:")
    good, bad = publisher.publish([message("1"), message("2", "k2", "text")])
    assert good is None
    assert "WRONGTYPE" in str(bad)
    publisher.close()


def test_redis_away():
    publisher: Any = open_publisher(f"redis://127.0.0.1:{free_port()}/0")
    (answer,) = publisher.publish([message("1")])
    assert isinstance(answer, BrokerUnavailableError)
    assert "Redis accepted none of 1" in str(answer)
    publisher.close()


# --- NATS JetStream ------------------------------------------------------------------------------------


async def test_jetstream(nats: Any, nats_url: str):
    import nats as driver

    prefix = option(nats_url, "prefix")
    connection = await driver.connect(nats.url)
    stream = connection.jetstream()
    await stream.add_stream(name=prefix.rstrip("."), subjects=[f"{prefix}>"])
    publisher: Any = open_publisher(nats_url)
    sent = [message(f"{n}") for n in range(20)]
    assert await publisher.publish(sent) == [None] * 20
    assert await publisher.publish(sent[:3]) == [None] * 3  # the same ids: dropped over there
    consumer = await stream.subscribe(f"{prefix}orders", ordered_consumer=True)
    got = [await consumer.next_msg(timeout=120) for _ in range(20)]
    assert [m.data for m in got] == [m.body for m in sent]
    assert got[0].headers is not None
    assert got[0].headers["Nats-Msg-Id"] == sent[0].id
    assert extract(got[0].headers) == sent[0].id
    with pytest.raises(TimeoutError):
        await consumer.next_msg(timeout=0.2)
    await publisher.close()
    await connection.close()


async def test_jetstream_without_a_stream_says_which_one_is_missing(nats_url: str):
    publisher: Any = open_publisher(nats_url)
    (first,) = await publisher.publish([message("1")])
    await publisher.close()
    assert isinstance(first, NotNow)
    assert f"no JetStream stream listens to {option(nats_url, 'prefix')}orders" in str(first)


@pytest.mark.parametrize("topic", ["with a space", "with.*", "with.>", "with..nothing", "ends."])
async def test_jetstream_refuses_topics_that_are_no_subjects(nats_url: str, topic: str):
    """The server hangs up on a space, and takes the others for wild cards."""
    publisher: Any = open_publisher(nats_url)
    (answer,) = await publisher.publish([message("1", topic=topic)])
    await publisher.close()
    assert "cannot use this topic" in str(answer)


async def test_jetstream_counts_headers_as_the_server_does(nats_url: str):
    """nats-py counts the body alone; the server hung up on the whole."""
    publisher: Any = open_publisher(nats_url)
    large = Message("1", "orders", b"x" * 1_048_500, "k", {"x": "x" * 100})
    (answer,) = await publisher.publish([large])
    await publisher.close()
    assert type(answer).__name__ == "MaxPayloadError"


async def test_nats_away_and_back(own_server: Any):
    server = own_server("nats")
    publisher: Any = open_publisher(f"{server.url}?timeout=1")
    server.kill()
    with pytest.raises(BrokerUnavailableError, match="NATS cannot be reached"):
        await publisher.publish([message("1")])
    server.start()
    import nats as driver

    connection = await driver.connect(server.url)
    await connection.jetstream().add_stream(name="s", subjects=["orders"])
    assert await publisher.publish([message("1")]) == [None]
    await connection.close()
    await publisher.close()


# --- RabbitMQ ------------------------------------------------------------------------------------------


async def test_rabbitmq(rabbitmq: Any, rabbitmq_url: str):
    import aio_pika

    connection = await aio_pika.connect(rabbitmq.url)
    channel = await connection.channel()
    exchange = await channel.get_exchange(option(rabbitmq_url, "exchange"))
    queue = await channel.declare_queue(exclusive=True)
    await queue.bind(exchange, "orders")
    publisher: Any = open_publisher(rabbitmq_url)
    sent = [message(f"{n}") for n in range(20)]
    assert await publisher.publish(sent) == [None] * 20
    got = [await queue.get(timeout=60) for _ in range(20)]
    assert [m.body for m in got] == [m.body for m in sent]
    assert got[0].message_id == sent[0].id
    assert got[0].headers["twicesafe-key"] == "k"
    assert got[0].delivery_mode == aio_pika.DeliveryMode.PERSISTENT
    # No queue takes this topic: it comes back, and says nothing about others.
    first, other = await publisher.publish([message("1", topic="absent"), message("3", "k2")])
    assert type(first).__name__ == "PublishError"
    assert other is None
    assert (await queue.get(timeout=60)).body == b"3"
    await publisher.close()
    await connection.close()


async def test_rabbitmq_away():
    publisher: Any = open_publisher(f"amqp://guest:guest@127.0.0.1:{free_port()}/?timeout=1")
    with pytest.raises(BrokerUnavailableError, match="RabbitMQ"):
        await publisher.publish([message("1")])
    await publisher.close()


# --- Kafka ---------------------------------------------------------------------------------------------


def test_a_failed_connection_to_rabbitmq_is_closed(monkeypatch: pytest.MonkeyPatch):
    """Otherwise its finalizer closes it, which fails in a thread without the loop, with a warning."""
    from aio_pika import Connection

    close, closed = Connection.close, []

    async def noted(self: Any, *args: Any) -> None:
        closed.append(self)
        await close(self, *args)

    monkeypatch.setattr(Connection, "close", noted)
    publisher = open_publisher(f"amqp://guest:guest@127.0.0.1:{free_port()}/?timeout=2")
    with pytest.raises(BrokerUnavailableError):
        asyncio.run(publisher.check())
    assert [connection.is_closed for connection in closed] == [True]


@pytest.mark.parametrize("scheme", ["amqp", "nats"])
async def test_a_cancelled_connection_is_closed(scheme: str):
    """The relay gives up a call that takes too long; the next one connects again."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        publisher = open_publisher(f"{scheme}://127.0.0.1:{port}/?timeout=60")
        waiting = asyncio.ensure_future(publisher.publish([Message("m-1", "orders", b"{}")]))
        accepted = await asyncio.to_thread(silent.accept)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        accepted[0].close()
    with pytest.raises(BrokerUnavailableError):
        await publisher.publish([Message("m-1", "orders", b"{}")])


def test_kafka(kafka: Any, kafka_url: str):
    from confluent_kafka import Consumer

    publisher: Any = open_publisher(kafka_url)
    sent = [message(f"{n}") for n in range(50)]
    assert publisher.publish(sent) == [None] * 50
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([option(kafka_url, "prefix") + "orders"])
    got: list[Any] = []
    while len(got) < 50:
        polled = consumer.poll(1)
        if polled is not None and polled.error() is None:
            got.append(polled)
    assert [m.value() for m in got] == [m.body for m in sent]
    assert {m.key() for m in got} == {b"k"}
    assert dict(got[0].headers())["id"] == sent[0].id.encode()
    consumer.close()
    publisher.close()


def test_kafka_refuses_what_is_too_large(kafka_url: str):
    publisher: Any = open_publisher(f"{kafka_url}&message.max.bytes=2000")
    large = message("x" * 5000)
    first, behind, other = publisher.publish([large, message("2"), message("3", "k2")])
    assert "MSG_SIZE_TOO_LARGE" in str(first)
    assert behind is NOT_TRIED
    assert other is NOT_TRIED
    publisher.close()


def test_kafka_away():
    publisher: Any = open_publisher(f"kafka://127.0.0.1:{free_port()}?timeout=1.5")
    (answer,) = publisher.publish([message("1")])
    assert isinstance(answer, BrokerUnavailableError)
    assert "Kafka did not" in str(answer)
    publisher.close()


def test_kafka_settings_are_checked():
    with pytest.raises(ConfigurationError, match="kafka://host"):
        open_publisher("kafka://user:password@host:9092")
    with pytest.raises(ConfigurationError, match=r"no\.such='1' is not valid: librdkafka refused"):
        open_publisher("kafka://localhost:1?no.such=1")
    # Each is valid, and they contradict each other.
    with pytest.raises(ConfigurationError, match="librdkafka refused"):
        open_publisher("kafka://localhost:1?max.in.flight=9")
    publisher = KafkaPublisher({"bootstrap.servers": "localhost:1", "no.such": "1"})
    with pytest.raises(ConfigurationError, match="librdkafka refused"):
        publisher.publish([message("1")])


@pytest.mark.parametrize(
    "url, meant",
    [
        ("amqp://h/?exchnge=x", "exchange"),
        ("nats://h?dedup=false", "deduplicate"),
        ("redis://h/0?straem=x", "stream"),
        ("kafka://h?prefx=x", "prefix"),
        ("sqs://?regon=x", "region"),
    ],
)
def test_an_option_that_does_not_exist_is_refused(url: str, meant: str):
    with pytest.raises(ConfigurationError, match=f"did you mean '{meant}'"):
        open_publisher(url)


@pytest.mark.parametrize("url", ["amqp://host:x/", "nats://host:x", "amqp://", "nats://u:p@"])
def test_a_host_that_cannot_be_one_is_refused(url: str):
    with pytest.raises(ConfigurationError, match="host:port"):
        open_publisher(url)


# --- web hooks -----------------------------------------------------------------------------------------


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.close()


def test_a_web_hook_is_signed_and_has_its_key(hook: Hook, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOOK_SECRET", "s3cret")
    publisher: Any = open_publisher(f"{hook.url}?secret_env=HOOK_SECRET&a=1")
    sent = message("grüß", "ünï")
    assert publisher.publish([sent]) == [None]
    headers, body = hook.got[0]
    assert body.decode() == "grüß"
    assert headers["idempotency-key"] == sent.id
    assert headers["twicesafe-key"] == "%C3%BCn%C3%AF"
    signature = headers["twicesafe-signature"]
    assert verify_signature("s3cret", signature, sent.id, body)
    assert not verify_signature("other", signature, sent.id, body)
    assert not verify_signature("s3cret", signature, sent.id, body + b"x")
    assert not verify_signature("s3cret", signature, "another", body)
    assert not verify_signature("s3cret", "nonsense", sent.id, body)
    publisher.close()


def test_an_old_signature_is_not_taken():
    publisher = WebhookPublisher("http://x", secret=b"s", clock=lambda: 1000.0)
    header = publisher._headers(message("b"))
    assert verify_signature(
        "s", header["twicesafe-signature"], header["twicesafe-id"], b"b", now=1200
    )
    assert not verify_signature(
        "s", header["twicesafe-signature"], header["twicesafe-id"], b"b", now=1400
    )


def test_a_signature_covers_the_key_that_is_sent_and_it_is_sent_once(hook: Hook):
    publisher = WebhookPublisher(hook.url, secret="s")
    sent = msgspec.structs.replace(message("b"), headers={"Idempotency-Key": "own"})
    assert publisher.publish([sent]) == [None]
    headers, body = hook.got[0]
    assert headers["idempotency-key"] == "own"
    assert verify_signature("s", headers["twicesafe-signature"], "own", body)
    assert not verify_signature("s", headers["twicesafe-signature"], sent.id, body)
    publisher.close()


@pytest.mark.parametrize("status", [429, 503])
def test_a_web_hook_that_is_away_counts_nothing(hook: Hook, status: int):
    hook.answers = [status]
    publisher: Any = open_publisher(hook.url)
    (answer,) = publisher.publish([message("1")])
    assert isinstance(answer, BrokerUnavailableError)
    assert str(status) in str(answer)
    publisher.close()


def test_a_web_hook_that_refuses_a_message(hook: Hook):
    hook.answers = [400]
    publisher: Any = open_publisher(hook.url)
    (answer,) = publisher.publish([message("1")])
    assert "answered 400" in str(answer)
    publisher.close()


def test_what_httpx_refuses_is_that_messages_failure(hook: Hook):
    """It was called an outage, and stopped the whole relay."""
    publisher: Any = open_publisher(hook.url)
    for headers in ({"no name": "x"}, {"content-length": "1"}):
        (answer,) = publisher.publish([Message("1", "orders", b"", "k", headers)])
        assert answer is not None
        assert not isinstance(answer, BrokerUnavailableError)
    padded = Message("2", " t ", b"", " k ", {"x": " y "})
    assert publisher.publish([padded]) == [None]
    publisher.close()
    headers, _ = hook.got[0]
    assert (headers["twicesafe-topic"], headers["twicesafe-key"]) == ("%20t%20", "%20k%20")


def test_a_web_hook_over_a_client_of_httpx2(hook: Hook):
    """Its errors were not known: no connection was called a failure of the message."""
    publisher: Any = WebhookPublisher(hook.url, client=httpx2.Client())
    assert publisher.publish([message("1")]) == [None]
    (answer,) = publisher.publish([Message("2", "orders", b"", "k", {"no name": "x"})])
    assert isinstance(answer, httpx2.LocalProtocolError)
    publisher.close()
    publisher = WebhookPublisher(f"http://127.0.0.1:{free_port()}/", client=httpx2.Client())
    (answer,) = publisher.publish([message("1")])
    assert isinstance(answer, BrokerUnavailableError)
    publisher.close()


def test_a_web_hook_where_only_httpx2_is_installed(hook: Hook, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    publisher: Any = open_publisher(hook.url)
    assert publisher.publish([message("1")]) == [None]
    publisher.close()
    assert hook.got[0][0]["user-agent"].startswith("python-httpx2/")


@pytest.fixture
def answering() -> Iterator[Callable[[bytes, bytes], Raw]]:
    """A server that answers every request with these bytes, and then with these, again and again."""
    with ExitStack() as opened:
        yield lambda head, rest: opened.enter_context(closing(Raw(head, rest)))


@pytest.mark.parametrize(
    "head, rest",
    [
        (b"transfer-encoding: chunked", b"10000\r\n" + bytes(65536) + b"\r\n"),
        (b"content-length: 1000000", b""),
    ],
    ids=["endless", "silent"],
)
@pytest.mark.parametrize("status", [200, 400, 429])
def test_the_status_of_a_web_hook_is_its_answer_whatever_follows(
    answering: Callable[[bytes, bytes], Raw], head: bytes, rest: bytes, status: int
):
    """The whole body was read into memory: an endless one held the call, and the memory, forever."""
    server = answering(b"HTTP/1.1 %d X\r\n%s\r\n\r\n" % (status, head), rest)
    publisher: Any = open_publisher(f"{server.url}?timeout=0.2")
    for _ in range(2):
        (answer,) = publisher.publish([message("1")])
        assert (answer is None) == (status == 200)
        assert answer is None or f"answered {status}" in str(answer)
    publisher.close()


def test_the_connection_to_a_web_hook_is_kept(hook: Hook):
    publisher: Any = open_publisher(hook.url)
    for _ in range(3):
        assert publisher.publish([message("1")]) == [None]
    publisher.close()
    assert hook.connections == 1


def test_a_web_hook_that_sends_elsewhere_refuses_the_message(hook: Hook):
    """The signed message must not go where an answer says."""
    hook.answers = [307]
    publisher: Any = open_publisher(hook.url)
    (answer,) = publisher.publish([message("1")])
    publisher.close()
    assert "answered 307" in str(answer)
    assert len(hook.got) == 1


def test_a_web_hook_that_is_not_there():
    publisher: Any = open_publisher(f"http://127.0.0.1:{free_port()}/")
    (answer,) = publisher.publish([message("1")])
    assert isinstance(answer, BrokerUnavailableError)
    assert "cannot be reached" in str(answer)
    publisher.close()
    with pytest.raises(ConfigurationError, match="not set or empty"):
        open_publisher("https://x/?secret_env=NOT_THERE")
    with pytest.raises(ConfigurationError, match="timeout="):
        open_publisher("https://x/?timeout=never")


def test_the_page_of_webhooks_names_every_status_that_is_not_the_messages_fault() -> None:
    told = set(map(int, re.findall(r"\b[45]\d\d\b", webhook.__doc__ or "")))
    assert told == webhook.BUSY | webhook.AWAY
