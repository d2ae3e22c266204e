"""The shipped suite for publishers, on each publisher, with its real server.

Kafka and SQS: see tests.servers for what stands for them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.field.proxy import Proxy
from tests.outbox.hook import Hook
from tests.outbox.test_kafka import id_of, log_of
from tests.polling import until
from tests.servers import free_port, launch
from tests.servers.rabbitmq import LARGEST
from twicesafe._core.outbox.requests import Message
from twicesafe.outbox.publishers import open_publisher
from twicesafe.outbox.publishers.webhook import WebhookPublisher
from twicesafe.testing import PublisherConformance

_numbers = itertools.count(1)


def poison(topic: str, body: bytes = b"poison", headers: dict[str, str] | None = None) -> Message:
    return Message(str(uuid.uuid4()), topic, body, None, headers or {})


class BehindProxy(PublisherConformance):
    """A broker that is reached through a proxy, which can cut, refuse and swallow."""

    proxy: Proxy

    @contextmanager
    def outage(self) -> Iterator[None]:
        behind, self.proxy.behind = self.proxy.behind, free_port()
        self.proxy.cut()
        yield
        self.proxy.behind = behind

    @contextmanager
    def silence(self) -> Iterator[None]:
        self.proxy.held = True
        try:
            yield
        finally:
            self.proxy.held = False

    def hang_up(self) -> None:
        self.proxy.cut()


class TestRedisStreams(BehindProxy):
    @pytest.fixture(autouse=True)
    def _broker(self, valkey: Any) -> Iterator[None]:
        self.client = valkey.client()
        self.prefix = f"conform{next(_numbers)}_{os.getpid()}:"
        self.client.acl_setuser(
            self.prefix, enabled=True, passwords=["+word"], keys=[f"{self.prefix}may*"],
            commands=["+@all"],
        )  # fmt: skip
        with Proxy(valkey.port) as self.proxy:
            yield
        self.client.acl_deluser(self.prefix)
        self.client.close()

    def open_publisher(self) -> Any:
        user = self.prefix.replace(":", "%3A")
        place = f"redis://{user}:word@127.0.0.1:{self.proxy.port}/0"
        return open_publisher(f"{place}?prefix={self.prefix}&timeout=1")

    def topic(self, name: str) -> str:
        return f"may-{name}"

    def taken(self, topic: str) -> list[str]:
        return [entry[b"id"].decode() for _, entry in self.client.xrange(self.prefix + topic)]

    def poison(self) -> Sequence[Message]:
        self.client.set(f"{self.prefix}may-text", "no stream")
        return [poison("may-text"), poison("forbidden")]


class TestJetStream(BehindProxy):
    makes_topics = False

    @pytest.fixture(autouse=True)
    def _broker(self, nats: Any) -> Iterator[None]:
        self.url, self.prefix = nats.url, f"conform{next(_numbers)}_{os.getpid()}."
        with Proxy(nats.port) as self.proxy:
            yield

    def ask(self, question: Any) -> Any:
        import nats

        async def asked() -> Any:
            connection = await nats.connect(self.url)
            try:
                return await question(connection.jetstream())
            finally:
                await connection.close()

        return asyncio.run(asked())

    def open_publisher(self) -> Any:
        url = f"nats://127.0.0.1:{self.proxy.port}"
        return open_publisher(f"{url}?prefix={self.prefix}&timeout=1")

    def topic(self, name: str) -> str:
        subject = self.prefix + name
        self.ask(lambda js: js.add_stream(name=subject.replace(".", "_"), subjects=[subject]))
        return name

    def taken(self, topic: str) -> list[str]:
        stream = (self.prefix + topic).replace(".", "_")

        async def all_of_it(js: Any) -> list[str]:
            last = (await js.stream_info(stream)).state.last_seq
            got = [await js.get_msg(stream, seq) for seq in range(1, last + 1)]
            return [message.headers["Nats-Msg-Id"] for message in got]

        return self.ask(all_of_it)  # type: ignore[no-any-return]

    def poison(self) -> Sequence[Message]:
        topic = self.topic(f"poison{next(_numbers)}")
        padding = {f"x-{n}": "x" * 4000 for n in range(7)}
        return [
            poison("with a space"),
            poison("with.*"),
            poison(topic, b"x" * 1_100_000),  # nats-py counts the body
            poison(topic, b"x" * 1_040_000, padding),  # the server counts the headers, too
        ]

    def missing_topic(self) -> str:
        return "without.listeners"


class TestRabbit(BehindProxy):
    @pytest.fixture(autouse=True)
    def _broker(self, rabbitmq: Any) -> Iterator[None]:
        self.url = rabbitmq.url
        self.got: dict[str, list[str]] = {}
        with Proxy(rabbitmq.port) as self.proxy:
            yield

    def ask(self, question: Any) -> Any:
        import aio_pika

        async def asked() -> Any:
            async with await aio_pika.connect(self.url) as connection:
                return await question(await connection.channel())

        return asyncio.run(asked())

    def open_publisher(self) -> Any:
        return open_publisher(f"amqp://guest:guest@127.0.0.1:{self.proxy.port}/?timeout=1.5")

    def topic(self, name: str) -> str:
        queue = f"{name}-{uuid.uuid4().hex[:8]}"
        self.ask(lambda channel: channel.declare_queue(queue, durable=True))
        return queue

    def taken(self, topic: str) -> list[str]:
        async def rest(channel: Any) -> list[str]:
            queue = await channel.get_queue(topic)
            found = []
            while (message := await queue.get(no_ack=True, fail=False)) is not None:
                found.append(message.message_id)
            return found

        mine = self.got.setdefault(topic, [])
        mine += self.ask(rest)
        return mine

    def poison(self) -> Sequence[Message]:
        large = b"x" * (LARGEST + 1)
        return [poison("no such queue"), poison(self.topic("large"), large)]


class TestKafka(PublisherConformance):
    hangs_up = False  # a broker of one process has no way to, but to die

    @pytest.fixture(autouse=True)
    def _broker(self, kafka_broker: str) -> Iterator[None]:
        if kafka_broker == "given":
            pytest.skip("kafka: given, not our own broker to mistreat")
        self.server = launch("kafka")
        yield
        self.server.remove()

    def open_publisher(self) -> Any:
        return open_publisher(f"{self.server.url}?prefix=c.&timeout=1.5&message.max.bytes=2000")

    def topic(self, name: str) -> str:
        return f"{name}-{uuid.uuid4().hex[:8]}"

    def taken(self, topic: str) -> list[str]:
        return [id_of(record) for record in log_of(self.server.bootstrap, f"c.{topic}")]

    def poison(self) -> Sequence[Message]:
        return [poison(self.topic("large"), os.urandom(5000))]

    @contextmanager
    def silence(self) -> Iterator[None]:
        self.server.pause()
        until(lambda: " T " in Path(f"/proc/{self.server.pid}/stat").read_text())
        try:
            yield
        finally:
            self.server.resume()

    outage = silence


class TestSqsFifo(BehindProxy):
    """On an emulator: see tests.servers.ministack."""

    makes_topics = False
    suffix = ".fifo"

    @pytest.fixture(autouse=True)
    def _broker(self, ministack: Any) -> Iterator[None]:
        self.client = ministack.client()
        self.got: dict[str, list[str]] = {}
        with Proxy(ministack.port) as self.proxy:
            yield
        self.client.close()

    def open_publisher(self) -> Any:
        place = f"endpoint=http://127.0.0.1:{self.proxy.port}"
        return open_publisher(f"sqs://?{place}&region=us-east-1&timeout=1")

    def topic(self, name: str) -> str:
        queue = f"{name}-{uuid.uuid4().hex[:8]}{self.suffix}"
        attributes = {"FifoQueue": "true"} if self.suffix else {}
        self.client.create_queue(QueueName=queue, Attributes=attributes)
        return queue

    def taken(self, topic: str) -> list[str]:
        url = self.client.get_queue_url(QueueName=topic)["QueueUrl"]
        mine = self.got.setdefault(topic, [])
        while found := self.client.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["id"]
        ).get("Messages"):
            for message in found:
                mine.append(message["MessageAttributes"]["id"]["StringValue"])
                self.client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return mine

    def poison(self) -> Sequence[Message]:
        small = self.topic(f"small{next(_numbers)}")
        self.client.set_queue_attributes(
            QueueUrl=self.client.get_queue_url(QueueName=small)["QueueUrl"],
            Attributes={"MaximumMessageSize": "1024"},
        )
        return [
            poison(self.topic("large"), b"x" * (1 << 20)),  # too large with its attributes
            poison(small, b"x" * 2000),  # the queue's own limit
            poison("no name for a queue"),
        ]

    def missing_topic(self) -> str:
        return f"missing{self.suffix}"


class TestSqsStandard(TestSqsFifo):
    """The emulator keeps the order of a standard queue; AWS does not promise it."""

    suffix = ""


class TestWebhook(BehindProxy):
    @pytest.fixture(autouse=True)
    def _broker(self) -> Iterator[None]:
        with ExitStack() as stack:
            self.hook = Hook()
            stack.callback(self.hook.close)
            self.hook.refuses = {b"refused": 400, b"gateway": 502}
            self.hook.drops = {b"dropped"}
            self.proxy = stack.enter_context(Proxy(self.hook.port))
            yield

    def open_publisher(self) -> Any:
        return WebhookPublisher(f"http://127.0.0.1:{self.proxy.port}/", timeout=1)

    def topic(self, name: str) -> str:
        return f"{name}-{uuid.uuid4().hex[:8]}"

    def taken(self, topic: str) -> list[str]:
        return [
            head["twicesafe-id"] for head, _ in self.hook.got if head["twicesafe-topic"] == topic
        ]

    def poison(self) -> Sequence[Message]:
        return [
            poison("orders", b"refused"),
            poison("orders", b"gateway"),
            poison("orders", b"dropped"),
        ]

    def lone_poison(self) -> Sequence[Message]:
        return self.poison()[:1]  # the others look like a gateway without its service
