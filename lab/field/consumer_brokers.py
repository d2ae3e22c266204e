"""The brokers of the trials of consumers: where messages go, where they come from, and what they promise.

Kafka is not among them: its mock cluster takes many seconds to notice that a member died, so few deaths fit
into a trial. tests/consumers/test_kafka_source.py has its rebalances.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final

from tests.servers import launch
from twicesafe._core.consuming.source import Source
from twicesafe._core.outbox_requests import Message
from twicesafe._runtime.adapting import for_threads
from twicesafe.consumers import DeadLetters
from twicesafe.consumers.sources import open_source
from twicesafe.outbox.publishers import open_publisher

__all__ = ["BROKERS", "Broker", "RedisStreams"]


class Broker:
    """A server with one queue, stream or topic for one trial."""

    engine: ClassVar[str]
    settings: ClassVar[dict[str, str]] = {}
    keeps: ClassVar[bool] = True
    """Its messages survive a restart."""
    orders: ClassVar[bool] = False
    """It keeps the order of a key, also when several consumers share it and one of them dies."""
    topic = "orders"

    def __init__(self) -> None:
        self.server = launch(self.engine, **self.settings)
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


class RedisStreams(Broker):
    engine = "valkey"
    settings: ClassVar[dict[str, str]] = {"appendonly": "yes", "appendfsync": "always"}

    def _url(self, stream: str, group: str) -> str:
        return f"redis://127.0.0.1:{self.server.port}/0?stream={stream}&group={group}&patience=1s"

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

    def prepare(self) -> None:
        async def declare(channel: Any) -> None:
            quorum = {"x-queue-type": "quorum"}
            await channel.declare_queue("orders", durable=True, arguments=quorum)

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


class SqsFifo(Broker):
    """On an emulator, which forgets all when it restarts."""

    engine = "ministack"
    topic = "orders.fifo"
    keeps = False
    orders = True

    def prepare(self) -> None:
        client = self.server.client()
        attributes = {"FifoQueue": "true", "VisibilityTimeout": "2"}
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
        return self._url("orders-dead.fifo")


BROKERS: Final[dict[str, type[Broker]]] = {
    kind.engine: kind for kind in (RabbitMq, JetStream, RedisStreams, SqsFifo)
}
