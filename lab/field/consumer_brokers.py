"""The brokers of the trials of consumers: where messages go, where they come from, and what they promise.

A broker that has two kinds of queues or protocols shows them in turn: a trial with an odd variant has the other one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from tests.consumers.kafka_group import group_offsets, read_topic
from tests.polling import until
from tests.servers import launch
from tests.servers.kafka import broker as kafka_kind
from twicesafe._core.consuming.source import Source
from twicesafe._core.outbox.requests import Message
from twicesafe._runtime.adapting import for_threads
from twicesafe.consumers import DeadLetters
from twicesafe.consumers.sources import open_source
from twicesafe.consumers.sources.kafka import KafkaSource
from twicesafe.outbox.publishers import open_publisher

from .consumer_worker import ORIGIN

__all__ = ["BROKERS", "Broker", "Kafka", "RedisStreams"]


class Broker:
    """A server with one queue, stream or topic for one trial."""

    engine: ClassVar[str]
    modules: ClassVar[tuple[str, ...]]
    """What a consumer of it imports. It is imported once, because workers start often."""
    settings: dict[str, str] = {}  # noqa: RUF012 - each kind of broker has its own
    variants: ClassVar[tuple[str, str]] = ("", "")
    keeps: bool = True
    """Its messages survive a restart."""
    orders: bool = False
    """It keeps the order of a key, also when several consumers share it and one of them dies."""
    topic: str = "orders"

    def __init__(self, number: int = 0) -> None:
        self.variant = self.variants[number % 2]
        self.server: Any = launch(self.engine, **self.settings)
        self.prepare()
        self._publisher: Any = for_threads(open_publisher(self.publisher), "publish")

    def prepare(self) -> None:
        """Create what the source needs."""

    @property
    def source(self) -> str:
        raise NotImplementedError

    @property
    def dead_source(self) -> str:
        raise NotImplementedError

    @property
    def publisher(self) -> str:
        return str(self.server.url)

    def send(self, messages: Sequence[Message]) -> None:
        refused = [one for one in self._publisher.publish(messages) if one is not None]
        if refused:
            raise refused[0]

    def dead(self) -> list[str]:
        """The ids of all dead letters."""
        self._prepared(open_source(self.source))
        with DeadLetters.open(self.dead_source) as letters:
            return [letter.id for letter in letters.look(100_000)]

    def _prepared(self, source: Source) -> None:
        adapted = for_threads(source, "fetch")
        adapted.prepare_dead_letters()
        adapted.close()

    def close(self) -> None:
        self._publisher.close()
        self.server.remove()


class Kafka(Broker):
    """A real one after `make kafka`. The mock cluster forgets its messages, and enforces no transactions."""

    engine = "kafka"
    modules = ("confluent_kafka.admin", "twicesafe.outbox.publishers.kafka")
    variants = ("cooperative", "KIP-848")
    orders = True

    def __init__(self, number: int = 0) -> None:
        self.kind = kafka_kind()
        self.keeps = self.kind == "real"
        if self.kind == "real":  # it notices a death in a second and a half
            names = ("group.min.session", "group.consumer.session", "group.consumer.min.session")
            self.settings = {f"{name}.timeout.ms": "1500" for name in names}
        super().__init__(number if self.kind == "real" else 0)

    def prepare(self) -> None:
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.server.bootstrap, "log_level": 0})

        def exists(topic: str) -> object:
            """To ask for one creates it."""
            return admin.list_topics(topic, timeout=20).topics[topic].partitions

        for topic in (self.topic, self.out):
            until(partial(exists, topic))

    out = "booked"

    @property
    def source(self) -> str:
        classic = "session.timeout.ms=1500&heartbeat.interval.ms=200"
        protocol = classic if self.variant == "cooperative" else "group.protocol=consumer"
        return f"{self.server.url}?topics={self.topic}&group=trial&{protocol}"

    @staticmethod
    def without_transactions() -> bool:
        return kafka_kind() == "mock"

    def published(self) -> list[str]:
        """What was published in transactions that were committed, partition by partition."""
        return [record.value().decode() for record in read_topic(self.server.bootstrap, self.out)]

    def published_twice(self) -> dict[str, list[str]]:
        """The offset of a message → where it was published, if more than once. What the producer sent
        twice has two offsets: these are two messages."""
        places: dict[str, list[str]] = {}
        for record in read_topic(self.server.bootstrap, self.out):
            origin = dict(record.headers())[ORIGIN].decode()
            places.setdefault(origin, []).append(f"{record.partition()}/{record.offset()}")
        return {origin: some for origin, some in places.items() if len(some) > 1}

    def is_read(self) -> bool:
        """The group's offsets are at the ends of the topic."""
        return KafkaSource.open(self.source).status().waiting == 0

    def not_ended(self) -> int:
        """Transactions that were reported as committed although a partition without a leader has no marker."""
        return str(self.server.log()).count("while trying to send transaction markers")

    def went_back(self) -> list[str]:
        """Commits that moved an offset of the group back."""
        last: dict[str, int] = {}
        found = []
        for partition, offset in group_offsets(self.server.bootstrap, "trial"):
            if offset < last.get(partition, 0):
                found.append(f"{partition} from {last[partition]} to {offset}")
            last[partition] = offset
        return found

    def dead(self) -> list[str]:
        self._prepared(open_source(self.source))
        found = read_topic(self.server.bootstrap, f"{self.topic}.dead")
        return [dict(record.headers())["id"].decode() for record in found]


class RedisStreams(Broker):
    engine = "valkey"
    modules = (
        "redis.asyncio", "twicesafe.consumers.sources.redis", "twicesafe.outbox.publishers.redis",
    )  # fmt: skip
    settings: dict[str, str] = {"appendonly": "yes", "appendfsync": "always"}  # noqa: RUF012

    def _url(self, stream: str, group: str) -> str:
        return f"redis://127.0.0.1:{self.server.port}/0?stream={stream}&group={group}&ack_wait=1s"

    @property
    def source(self) -> str:
        return self._url("orders", "trial")

    @property
    def dead_source(self) -> str:
        return self._url("orders.dead", "judge")

    @property
    def publisher(self) -> str:
        return f"redis://127.0.0.1:{self.server.port}/0?stream=orders"


class JetStream(Broker):
    engine = "nats"
    modules = ("nats", "twicesafe.consumers.sources.nats", "twicesafe.outbox.publishers.nats")
    topic = "SHOP.orders"

    def prepare(self) -> None:
        import nats

        async def create() -> None:
            connection = await nats.connect(self.server.url)
            await connection.jetstream().add_stream(name="SHOP", subjects=["SHOP.>"])
            await connection.close()

        asyncio.run(create())

    @property
    def source(self) -> str:
        return f"nats://127.0.0.1:{self.server.port}?stream=SHOP&durable=trial&ack_wait=1s"

    @property
    def dead_source(self) -> str:
        return f"nats://127.0.0.1:{self.server.port}?stream=SHOP_DEAD&durable=judge&ack_wait=60s"


class RabbitMq(Broker):
    engine = "rabbitmq"
    modules = (
        "aio_pika", "twicesafe.consumers.sources.rabbitmq", "twicesafe.outbox.publishers.rabbitmq",
    )  # fmt: skip
    variants = ("quorum", "classic")

    def prepare(self) -> None:
        async def declare(channel: Any) -> None:
            kind = {"x-queue-type": self.variant}
            await channel.declare_queue("orders", durable=True, arguments=kind)

        self._ask(declare)

    def _ask(self, question: Callable[[Any], Awaitable[None]]) -> None:
        import aio_pika

        async def asked() -> None:
            async with await aio_pika.connect(self.server.url) as connection:
                await question(await connection.channel())

        asyncio.run(asked())

    @property
    def source(self) -> str:
        return f"{self.server.url}?queue=orders&prefetch=32"

    @property
    def dead_source(self) -> str:
        return f"{self.server.url}?queue=orders.dead&prefetch=1000"


class Sqs(Broker):
    """On an emulator, which forgets all when it restarts."""

    engine = "ministack"
    modules = ("boto3", "twicesafe.consumers.sources.sqs", "twicesafe.outbox.publishers.sqs")
    variants = ("FIFO", "standard")
    keeps = False

    def prepare(self) -> None:
        self.orders = self.variant == "FIFO"
        self.topic = "orders.fifo" if self.orders else "orders"
        client = self.server.client()
        attributes = {"VisibilityTimeout": "2"} | ({"FifoQueue": "true"} if self.orders else {})
        client.create_queue(QueueName=self.topic, Attributes=attributes)
        client.close()

    def _url(self, queue: str) -> str:
        endpoint = f"http://127.0.0.1:{self.server.port}"
        return f"sqs://{queue}?region=us-east-1&endpoint={endpoint}"

    @property
    def source(self) -> str:
        return self._url(self.topic)

    @property
    def dead_source(self) -> str:
        return self._url("orders-dead.fifo" if self.orders else "orders-dead")


BROKERS: Final[dict[str, type[Broker]]] = {
    kind.engine: kind for kind in (Kafka, RabbitMq, JetStream, RedisStreams, Sqs)
}
